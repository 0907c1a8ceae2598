"""Any rows of any types that sinks take, for Hypothesis, and what tells whether two tables have the same rows."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.kafka.formats import Json
from fkjoin.spark.schemas import spark_schema
from tests.support.sessions import SPARK_4_0

Values: TypeAlias = st.SearchStrategy[Any]
Kind: TypeAlias = tuple[pa.DataType, Values]
"""A type, and values of it; times and days are numbers, since Python has no objects for all of them."""

YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last microsecond of the years 1 to 9999."""
DAYS = (-719_162, 2_932_896)
_EXACT = decimal.Context(prec=60)
TEXTS = st.one_of(st.text(max_size=5), st.sampled_from(["", "\0", "null", "NaN", '"\\', "a\\u0000", "\\.", "\u2028é😀", " "]))

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
"""Without a search for smaller examples, each of which would be a job of Spark's."""


def without_nul(text: str) -> str:
    return text.replace("\0", "")


@dataclass(frozen=True)
class Rows:
    """The rows that are drawn: a place may not take all texts, times, days or types."""

    texts: Values = TEXTS
    times: tuple[int, int] = (-(2**63), 2**63 - 1)
    days: tuple[int, int] = (-(2**31), 2**31 - 1)
    takes: Callable[[pa.DataType], bool] = lambda kind: True
    text_keys: bool = False
    """True if keys of maps are texts only."""
    below_zero: bool = True
    """True if -0.0 is among the values."""

    @property
    def plain(self) -> list[Kind]:
        times = _moments(*(YEARS if SPARK_4_0 else self.times))
        days = DAYS if SPARK_4_0 else self.days
        every = [
            (pa.bool_(), st.booleans()),
            *((kind, _whole(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
            (pa.float64(), self._floats(64)),
            (pa.float32(), self._floats(32)),
            *((pa.decimal128(*size), _decimals(*size)) for size in ((9, 2), (38, 18), (38, 0), (5, 5))),
            (pa.string(), self.texts),
            (pa.binary(), st.binary(max_size=4)),
            (pa.date32(), st.one_of(st.integers(*days), st.sampled_from([0, *days]))),
            (pa.timestamp("us", "UTC"), times),
            (pa.timestamp("us"), times),
            (pa.duration("us"), _whole(64)),
            *([] if SPARK_4_0 else [(pa.time64("ns"), st.integers(0, 86_400_000_000 - 1).map(lambda at: 1000 * at))]),
        ]
        return [kind for kind in every if self.takes(kind[0])]

    def _floats(self, width: Literal[32, 64]) -> Values:
        floats = st.floats(width=width, allow_nan=not SPARK_4_0)
        return floats if self.below_zero else floats.map(lambda number: number + 0.0)

    def kinds(self, depth: int = 2) -> st.SearchStrategy[Kind]:
        """Types, nested ones among them, with nulls in their values."""
        plain = st.sampled_from(self.plain).map(_or_null)
        if not depth:
            return plain
        inner = self.kinds(depth - 1)
        keys = st.sampled_from([kind for kind in self.plain if pa.types.is_string(kind[0]) or not self.text_keys])
        nested = [
            inner.map(lambda of: (pa.list_(of[0]), st.lists(of[1], max_size=3))),
            st.lists(inner, min_size=1, max_size=3).map(_struct),
            st.builds(_map, keys, inner),
        ]
        return st.one_of(plain, *(kinds.map(_or_null) for kinds in nested))

    def tables(self, rows: int, columns: int = 6) -> st.SearchStrategy[pa.Table]:
        """Tables with a column ``id`` and others."""
        return st.lists(self.kinds(), min_size=1, max_size=columns).flatmap(lambda kinds: _table(kinds, rows))

    def every_type(self, rows: int) -> st.SearchStrategy[pa.Table]:
        """Tables with a column ``id`` and one of each type that is not nested."""
        return _table([_or_null(kind) for kind in self.plain], rows)


def differences(found: pa.Table, given: pa.Table) -> list[tuple[str, Any, Any]]:
    """Columns of ``given``, with a value found and the one given, row by ``id``: -0.0 is not 0.0, and NaN is NaN."""
    assert len(found) == len(given)
    pairs = [
        (name, ours, theirs)
        for name, kind in zip(given.column_names, given.schema.types, strict=True)
        for ours, theirs in zip(*(_seen(table.sort_by("id")[name], kind) for table in (found, given)), strict=True)
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _whole(bits: int) -> Values:
    limit = 1 << (bits - 1)
    return st.one_of(st.integers(-limit, limit - 1), st.sampled_from([0, limit - 1, -limit]))


def _decimals(precision: int, scale: int) -> Values:
    limit = 10**precision - 1
    numbers = st.one_of(st.integers(-limit, limit), st.sampled_from([0, 1, 100, limit, -limit]))
    return numbers.map(lambda number: decimal.Decimal(number).scaleb(-scale, _EXACT))


def _moments(first: int, last: int) -> Values:
    """Microseconds, whole milliseconds and seconds among them, and both ends."""
    moments = st.integers(first, last)
    rounded = (moments.map(lambda at, step=step: max(first, at // step * step)) for step in (1000, 1_000_000))
    return st.one_of(moments, *rounded, st.sampled_from([0, -1, 1, first, last]))


def _or_null(kind: Kind) -> Kind:
    return kind[0], st.one_of(kind[1], kind[1], kind[1], st.none())


def _struct(fields: list[Kind]) -> Kind:
    named = {f"f {place}": of for place, of in enumerate(fields)}
    return pa.struct([(name, of[0]) for name, of in named.items()]), st.fixed_dictionaries(
        {name: of[1] for name, of in named.items()}
    )


def _map(key: Kind, item: Kind) -> Kind:
    """Keys as Spark tells them apart: NaN is NaN, -0.0 is 0.0."""
    entries = st.lists(st.tuples(key[1], item[1]), max_size=3, unique_by=lambda entry: str(entry[0]).removeprefix("-"))
    return pa.map_(key[0], item[0]), entries


def _table(kinds: list[Kind], rows: int) -> st.SearchStrategy[pa.Table]:
    names = ["id", *(f"c{place}" for place in range(len(kinds)))]
    return st.tuples(*(st.lists(values, min_size=rows, max_size=rows) for _, values in kinds)).map(
        lambda found: pa.table(
            [
                pa.array(range(rows), pa.int64()),
                *(pa.array(values, _numbers(kind)).cast(kind) for values, (kind, _) in zip(found, kinds, strict=True)),
            ],
            names,
        )
    )


def _numbers(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in the place of times and days."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_numbers(kind.key_type), _numbers(kind.item_type))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def _seen(values: pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    return [_told(value, kind) for value in values.cast(kind).cast(_numbers(kind)).to_pylist()]


def _told(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _told(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_told(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, dict) else value
        return sorted((repr(_told(key, kind.key_type)), _told(item, kind.item_type)) for key, item in entries)
    return repr(value) if pa.types.is_floating(kind) else value


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, spark_schema(table.schema))


def read_json(data: DataFrame, schema: pa.Schema) -> pa.Table:
    read = Json(spark_schema(schema)).decode(F.col("data"))
    found = data.select(read.row.alias("row"), read.problem.alias("problem")).toArrow()
    assert found["problem"].null_count == len(found), found["problem"]
    return pa.table(found["row"].combine_chunks().flatten(), schema.names)
