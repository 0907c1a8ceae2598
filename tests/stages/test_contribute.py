"""Aggregates, joins and joiners that read a join's answers against those that read its results: the same after every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bools, as_bytes, masked, paired, valid
from fkjoin.codec.expressions import Part
from fkjoin.codec.messages import CHANGE, JOINED, column, table
from fkjoin.codec.rows import RowCodec
from fkjoin.codec.vectors import Columns, Where
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.contribute import Carry, Contribute, Fields
from fkjoin.stages.counters import Counters
from fkjoin.stages.join_rows import join_rows, split_rows
from fkjoin.stages.regroup import regroup
from fkjoin.stages.resolve import resolve
from fkjoin.state import MemoryStore
from tests.support.laws import law
from tests.support.replay.memory_join import MemoryJoin

LEFT = pa.schema([("fk", pa.string()), ("n", pa.int64()), ("deep", pa.struct([("a", pa.bool_()), ("m", pa.int64())]))])
RIGHT = pa.schema([("name", pa.string()), ("region", pa.string())])
KEY = pa.schema([("id", pa.string())])
GROUP = pa.schema([("region", pa.string()), ("id_again", pa.string())])
VALUE = pa.schema([("n", pa.int64()), ("m", pa.int64())])
FOLD = Fold(VALUE, (Count("rows"), WholeSum("n", 0, "sum"), Extreme("m", 1, "max", pa.int64())))
TIMES: Any = {"now_ms": 0, "retention_ms": 1}

EVENT = st.tuples(
    st.booleans(),
    st.sampled_from(["k1", "k2"]),
    st.sampled_from(["a", "b", None]),
    st.none() | st.tuples(st.integers(-2, 2), st.none() | st.tuples(st.booleans(), st.integers(0, 3) | st.none())),
    st.sampled_from(["north", "south", None]),
)


def changes(rows: list[tuple[int, Any]], *, left: bool) -> pa.Table:
    """Events of one side as ``CHANGE``."""
    keys = [one[1] if left else one[2] or "a" for _, one in rows]
    there = [one[3] is not None for _, one in rows]
    if left:
        deep = [None if not one[3] or one[3][1] is None else {"a": one[3][1][0], "m": one[3][1][1]} for _, one in rows]
        columns = [[one[2] for _, one in rows], [one[3][0] if one[3] else None for _, one in rows], deep]
    else:
        columns = [["x"] * len(rows), [one[4] for _, one in rows]]
    schema = LEFT if left else RIGHT
    made = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    value = masked(RowCodec(schema).encode(made, len(rows)), pa.array(there, pa.bool_()).to_numpy(False))
    foreign = as_bytes(pa.array([one[2] if left and one[3] is not None else None for _, one in rows], pa.string()))
    number = pa.array([number for number, _ in rows], pa.int64()).to_numpy()
    key = as_bytes(pa.array(keys, pa.string()))
    return table(CHANGE, key, foreign, value, versions.encode(b"12345678", [number]), number)


def joined(join: MemoryJoin, part: list[tuple[int, Any]]) -> tuple[pa.Table, pa.Table]:
    """The answers of one batch of events of both sides, and the results."""
    sides = [changes([one for one in part if one[1][0] == left], left=left) for left in (True, False)]
    answers = join.answers(*sides)
    return answers, join.resolved(answers)


def batches(events: list[Any], cut: int) -> Iterator[list[tuple[int, Any]]]:
    """Events with their numbers."""
    numbered = list(enumerate(events))
    for start in range(0, len(events), cut):
        yield numbered[start : start + cut]


def live(seen: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in seen.items() if value is not None}


def decoded(results: pa.Table) -> tuple[pa.StructArray, pa.StructArray, pa.Array, Bools]:
    """Left and right rows of results, their keys, and which are there."""
    value = column(results, "value")
    rows = []
    for schema, side in zip((LEFT, RIGHT), split_rows(value), strict=True):
        fields = RowCodec(schema).decode(side)
        rows.append(pa.StructArray.from_arrays(fields, fields=list(schema), mask=pa.array(~valid(side))))
    return *rows, column(results, "key").cast(pa.large_string()).cast(pa.string()), valid(value)


@law(
    48,
    events=st.lists(EVENT, max_size=25),
    cut=st.integers(1, 6),
    how=st.sampled_from(["inner", "left"]),
    by_region=st.booleans(),
)
def test_answers_make_the_same_aggregates_as_results(events: list[Any], cut: int, how: Any, by_region: bool) -> None:
    """Groups are by a field of the right row, or by the left key alone, which is there without a right row, too."""
    first: Any = ("right", ("region",)) if by_region else ("key", ("id",))
    take = Contribute(
        Fields(KEY, LEFT, RIGHT, how), (first, ("key", ("id",))), (("left", ("n",)), ("left", ("deep", "m"))), *(GROUP, VALUE)
    )
    join = MemoryJoin(how)
    merged, plain = (((MemoryStore(), MemoryStore()), dict[bytes, Any]()) for _ in range(2))
    count = Counters()
    for part in batches(events, cut):
        answers, results = joined(join, part)
        for (stores, seen), rows in ((merged, take(answers)), (plain, contributed(results, by_region))):
            grouped = regroup(rows, stores[0], count, **TIMES)
            made = aggregate(grouped, stores[1], count, FOLD, source=b"aggregat", **TIMES)
            seen |= {one["key"]: one["value"] for one in made.to_pylist()}
        assert live(merged[1]) == live(plain[1])


def contributed(results: pa.Table, by_region: bool) -> pa.Table:
    """Results of the join as rows that contribute."""
    left, right, key, there = decoded(results)
    region = right.flatten()[1] if by_region else key
    group = RowCodec(GROUP, canonical=True).encode([region, key], len(results))
    (_, n, deep), ts, version = left.flatten(), column(results, "ts"), column(results, "version")
    values = masked(paired(group, RowCodec(VALUE).encode([n, deep.flatten()[1]], len(results))), there & valid(region))
    return table(JOINED, column(results, "key"), version, values, ~there, ts)


ROW = pa.schema([("region", pa.string()), ("m", pa.int64()), ("id", pa.string()), ("deep", LEFT.field("deep").type)])


def field(name: str, kind: pa.DataType, *path: str) -> Part:
    """A column, or a field inside it."""
    found = Part("AttributeReference", kind, argument=name)
    for part in path:
        found = Part("GetStructField", found.type.field(part).type, (found,), part)
    return found


LEFT_SIDE, RIGHT_SIDE = pa.struct(list(LEFT)), pa.struct(list(RIGHT))
PICKED = Columns(
    (
        ("region", field("right", RIGHT_SIDE, "region")),
        ("m", field("left", LEFT_SIDE, "deep", "m")),
        ("id", field("id", pa.string())),
        ("deep", field("left", LEFT_SIDE, "deep")),
    )
)
POSITIVE = Where(
    Part("GreaterThan", pa.bool_(), (field("left", LEFT_SIDE, "n"), Part("Literal", pa.int64(), argument=0))),
)


@law(48, events=st.lists(EVENT, max_size=25), cut=st.integers(1, 6), how=st.sampled_from(["inner", "left"]), some=st.booleans())
def test_rows_made_of_answers_are_those_made_of_results(events: list[Any], cut: int, how: Any, some: bool) -> None:
    """With ``some``, a filter leaves rows out; a change that leaves a row as it was is not sent."""
    steps = (POSITIVE, PICKED) if some else (PICKED,)
    make = Joined(AnswerRows(Fields(KEY, LEFT, RIGHT, how), RowMaker(None, steps)), ROW)
    join, own = MemoryJoin(how), MemoryStore()
    count, whole, fewer = Counters(), dict[bytes, Any](), dict[bytes, Any]()
    for part in batches(events, cut):
        answers, results = joined(join, part)
        whole.update(zip(column(results, "key").to_pylist(), as_made(results, some), strict=True))
        made, as_they_are = make(answers), join_rows(answers, how)
        assert made.drop_columns("value").equals(as_they_are.drop_columns("value")), "a row without a result is not gone"
        for one in resolve(made, own, count, **TIMES).to_pylist():
            assert one["value"] != fewer.get(one["key"]), "nothing has changed"
            fewer[one["key"]] = one["value"]
        assert live(whole) == live(fewer)


def as_made(results: pa.Table, some: bool) -> list[Any]:
    """The rows that the test makes, in bytes; None of deletes and of those that are left out."""
    left, right, key, there = decoded(results)
    _, n, deep = left.flatten()
    if some:
        there = there & (n.fill_null(0).to_numpy() > 0)
    rows = RowCodec(ROW).encode([right.flatten()[1], deep.flatten()[1], key, deep], len(results))
    return list(masked(rows, there).to_pylist())


REGION = pa.schema([("region", pa.string())])
BOTH = pa.schema([("left", pa.struct(list(LEFT))), ("right", pa.struct(list(RIGHT))), ("id", pa.string())])
OF_A_REGION = st.tuples(st.sampled_from(["north", "south"]), st.sampled_from([b"1", b"2", None]))


@law(
    48,
    events=st.lists(EVENT | OF_A_REGION, max_size=25),
    cut=st.integers(1, 6),
    hows=st.tuples(*[st.sampled_from(["inner", "left"])] * 2),
    by_region=st.booleans(),
)
def test_answers_make_the_same_joins_as_results(events: list[Any], cut: int, hows: Any, by_region: bool) -> None:
    """The next join's foreign key is a field of the right row, or of the left row, which is there without a right row, too."""
    how, then = hows
    first: Any = ("right", ("region",)) if by_region else ("left", ("fk",))
    carry = Carry(Fields(KEY, LEFT, RIGHT, how), (first,), (("left", ()), ("right", ()), ("key", ("id",))), REGION, BOTH)
    join = MemoryJoin(how)
    merged, plain = ((MemoryJoin(then), dict[bytes, Any]()) for _ in range(2))
    for part in batches(events, cut):
        of_joined = [one for one in part if len(one[1]) == 5]
        regions = region_changes([one for one in part if len(one[1]) == 2])
        answers, results = joined(join, of_joined)
        for (other, seen), left in ((merged, carry(answers)), (plain, carried(results, by_region))):
            made = other.process(left, regions).to_pylist()
            assert all(one["operation"] != 2 or seen.get(one["key"]) is not None for one in made), "a stale tombstone"
            seen |= {one["key"]: one["value"] for one in made}
        assert live(merged[1]) == live(plain[1])


def region_changes(rows: list[tuple[int, Any]]) -> pa.Table:
    key, value = (as_bytes(pa.array([one[at] for _, one in rows], pa.large_binary())) for at in range(2))
    number = pa.array([number for number, _ in rows], pa.int64()).to_numpy()
    return table(CHANGE, key, pa.nulls(len(rows), key.type), value, versions.encode(b"regions.", [number]), number)


def carried(results: pa.Table, by_region: bool) -> pa.Table:
    """Results of the join as changes of the next one's left table."""
    left, right, key, there = decoded(results)
    row = masked(RowCodec(BOTH).encode([left, right, key], len(results)), there)
    foreign = right.flatten()[1] if by_region else left.flatten()[0]
    version, ts = column(results, "version"), column(results, "ts")
    return table(CHANGE, column(results, "key"), masked(as_bytes(foreign), there), row, version, ts)
