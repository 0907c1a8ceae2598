"""Joins in a row by foreign keys of the same left table, as one: the rule ``joins-share-stages``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bind import named_fields
from fkjoin.codec.messages import LEFT
from fkjoin.codec.rows import Path
from fkjoin.lowering.emission import Emission, paced
from fkjoin.lowering.foreign_keys import described, packed
from fkjoin.lowering.joiner import is_function
from fkjoin.lowering.pruning import narrow
from fkjoin.lowering.stage import Narrow, counted, frame_of, made_by_operators, pickled, stage, stage_spec
from fkjoin.plan.nodes import Join, shares_stages, starts_over
from fkjoin.plan.optimizer import Off, join_keeps_what_it_needs, joins_share_stages
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.sessions.settings import bucket_count
from fkjoin.spark.frame import DELETED, KEY, ROW
from fkjoin.spark.names import quoted, quoted_if_needed
from fkjoin.spark.operator import StageName
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.schemas import arrow_schema, listed, schema_text, spark_schema
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import How
from fkjoin.stages.contribute import Place
from fkjoin.stages.multi_join import KEY as KEY_PART
from fkjoin.stages.multi_join import Field, MultiJoin, Nested, Origin, Right, fields_at, fields_of, pruned
from fkjoin.table import Extractor, Table

_MOST = 100
_STAGES: tuple[StageName, ...] = ("scatter", "subscription", "gather")


@dataclass(frozen=True)
class Joins:
    """A left table and the right tables that it is joined with; for another join of the result to be one with them."""

    left: Table
    rows: DataFrame
    """The left frame with a struct ``foreign_key``: the columns of all foreign keys, one after the other."""
    extractor: tuple[Any, ...]
    """The same, as the user gave them or as names of the left table's fields."""
    rights: tuple[tuple[Table, How], ...]
    made: Nested
    """Columns of the joined rows."""

    def joined(
        self, table: Table, right: Table, extractor: Extractor, how: How, fields: Mapping[str, Place] | None
    ) -> Joins | str:
        """With one more; or why it cannot be one with the others.  ``table`` is the result so far."""
        if fields is None:
            return "the joiner makes more of the rows than fields of them"
        if is_function(extractor):
            return "the extractor is a function, and may read rows of the right tables"
        named = named_fields(listed(extractor), table.visible_schema, table.frame.sparkSession)
        if named is None:
            return "the foreign key is more than fields"
        found = [self.made.at(path) if path[0] in table.row_type.names else Field(KEY_PART, path) for _, path in named]
        places = [place for place in found if isinstance(place, Field) and place.part < 0]
        if len(places) < len(found):
            return "the foreign key reads a right table's columns"
        if len(self.rights) >= _MOST:
            return f"{_MOST} right tables are the most"
        columns = [_column(place) for place in places]
        return replace(
            self,
            rows=_with(self.rows, columns),
            extractor=(
                *self.extractor,
                *(place.path[0] if len(place.path) == 1 else ".".join(map(quoted_if_needed, place.path)) for place in places),
            ),
            rights=(*self.rights, (right, how)),
            made=_made(fields, table.key, len(self.rights), self.made),
        )


def begin(left: Table, right: Table, rows: DataFrame, extractor: Extractor, how: How, fields: Mapping[str, Place]) -> Joins:
    """A join, for others to be one with it; ``rows``: ``with_foreign_key``'s, ``fields``: where the joined columns are."""
    given = (extractor,) if is_function(extractor) else tuple(listed(extractor))
    return Joins(left, rows, given, ((right, how),), _made(fields, left.key, 0, Field(LEFT, ())))


def share(
    node: Join,
    off: Off,
    left: Table,
    right: Table,
    extractor: Extractor,
    fields: Mapping[str, Place] | None,
    obstacle: str | None,
) -> tuple[Join, Joins | None]:
    """A join, and the joins that ``left`` is with this one more, if they are one.

    ``obstacle``: what is in the way, whatever the rows are.
    """
    found: Joins | str | None = left.star
    if obstacle is None and isinstance(found, Joins):
        found = found.joined(left, right, extractor, node.how, fields)
    if not isinstance(found, Joins):
        return joins_share_stages(node, off, obstacle or found or "its rows are kept"), None
    node = joins_share_stages(node, off, obstacle)
    return node, found if shares_stages(node) else None


def star_table(
    node: Join,
    off: Off,
    joins: Joins,
    left: Table,
    emission: Emission,
    dead: tuple[DataFrame, ...],
    *,
    validate: bool,
) -> Table:
    """The table of the joins; ``left`` and ``node`` are those of the last one."""
    label, whole_rows = node.name, JOIN_KEEPS_WHAT_IT_NEEDS in off
    star = _kept(joins, whole=whole_rows)
    all_read = star == _kept(joins, whole=True)
    node = join_keeps_what_it_needs(node, off, "the joiner reads every column" if all_read else None)
    versions = {"versions": [list(version) for version in node.versions]}
    about = {"key": joins.left.key_type, "result": spark_schema(star.schema), **versions}
    unpack = UnpackResults(star.key, (star.schema,), node.versions)
    tables = [joins.left, *(table for table, _ in joins.rights)]

    def fewer(paths: Sequence[Path]) -> tuple[Joins, MultiJoin]:
        known = [path for path in paths if path[0] in star.schema.names]  # others are the key's
        less = replace(joins, made=pruned(joins.made, known))
        return less, _kept(less, list(fields_at(joins.made, known)), whole=whole_rows)

    def with_fewer(paths: Sequence[Path], reader: str) -> DataFrame:
        less, some = fewer(paths)
        results = _results(less, some, label, None, versions, f"{label}-for-{reader}", validate=validate)
        return frame_of(results, UnpackResults(some.key, (some.schema,), node.versions))

    narrow = Narrow(lambda paths: fewer(paths)[1] != star, with_fewer)

    def built(materialized: str | None) -> Table:
        results = _results(joins, star, label, materialized, versions, label, validate=validate)
        results = paced(results, label, emission, about, validate)
        return Table(
            replace(node, materialized=materialized),
            frame_of(results, unpack),
            joins.left.key,
            next((table.timestamps for table in tables if table.timestamps), None),
            joins.left.on_error,
            dead,
            connection=next((table.connection for table in tables if table.connection), None),
            packed=(results, unpack),
            stages=tuple(query for table in tables for query in table.stages),
            star=joins,
            narrow=None if materialized is not None or emission.interval_ms is not None else narrow,
            materialized_as=built,
        )

    return built(None)


def _results(
    joins: Joins,
    star: MultiJoin,
    label: str,
    materialized: str | None,
    versions: Mapping[str, Any],
    counted_as: str,
    *,
    validate: bool,
) -> DataFrame:
    """The envelopes of what gather sends."""
    spark = joins.left.frame.sparkSession
    buckets = bucket_count(spark)
    kinds = {"key": joins.left.key_type, "left": spark_schema(star.left), "result": spark_schema(star.schema)}
    rights = list(zip((table for table, _ in joins.rights), star.rights, strict=True))
    for at, (table, right) in enumerate(rights):
        kinds |= {f"foreign_key{at}": table.key_type, f"right{at}": spark_schema(right.row)}
    about = {**kinds, **versions, "star": star.facts(), "fused": True}
    facts = {
        "materialized": materialized,
        "of": [right.name for right in star.rights],
        "how": [right.how for right in star.rights],
        "extractor": [described(one, "key", "row") for one in joins.extractor],
        "columns": star.columns,
        **{name: schema_text(arrow_schema(name, kind)) for name, kind in kinds.items()},
    }

    def through(rows: DataFrame, kind: StageName) -> DataFrame:
        made = made_by_operators(*([joins.left.node] if kind == "scatter" else (table.node for table, _ in joins.rights)))
        spec = stage_spec(spark, kind, label, facts, about, validate=validate, star=pickled(star), made=made)
        return stage(rows, spec)

    keys = tuple(right.key for right in star.rights)
    anew = starts_over(joins.left.node)
    pack = PackChanges(star.key, None, star.left, buckets, validate, keys, start_over=anew)
    rows = packed(joins.left, joins.rows, joins.extractor, pack)
    sent = through(rows, "scatter")
    for at, (table, right) in enumerate(rights):
        pack = PackChanges(right.key, None, right.row, buckets, validate, number=at, start_over=starts_over(table.node))
        sent = sent.unionAll(packed(table, table.frame.withColumn("foreign_key", F.lit(None)), None, pack))
    return counted(through(through(sent, "subscription"), "gather"), counted_as, *_STAGES)


def _kept(joins: Joins, read: Iterable[Field] | None = None, *, whole: bool) -> MultiJoin:
    """What is kept of all rows; ``read``: what of the columns, if that is not all of them; ``whole``: all there is."""
    paths: dict[int, list[Path]] = {}
    for part, path in fields_of(joins.made) if read is None else read:
        paths.setdefault(part, []).append(path)
    kept = {at: arrow_schema("right", table.row_type) for at, (table, _) in enumerate(joins.rights)}
    kept[LEFT] = arrow_schema("left", joins.left.row_type)
    if not whole:
        kept = {part: narrow(schema, paths.get(part, [])) for part, schema in kept.items()}
    rights = tuple(
        Right(name, arrow_schema("foreign_key", table.key_type), kept[at], table.node.parts, how)
        for at, (name, (table, how)) in enumerate(zip(_names(joins), joins.rights, strict=True))
    )
    key = arrow_schema("key", joins.left.key_type)
    return MultiJoin(key, kept[LEFT], joins.left.node.parts, rights, joins.made)


def _names(joins: Joins) -> list[str]:
    """Of the right tables, those that come again with a number."""
    names: list[str] = []
    for table, _ in joins.rights:
        again = sum(name.split("#")[0] == table.name for name in names)
        names.append(f"{table.name}#{again + 1}" if again else table.name)
    return names


def _made(fields: Mapping[str, Place], key: Iterable[str], right: int, left: Field | Nested) -> Nested:
    """The columns of joined rows; ``left`` is what their left row is, ``right`` the number of the right table."""

    def at(place: Place) -> Origin:
        side, path = place
        if side == "right":
            return Field(right, path)
        if isinstance(left, Field):
            return Field(left.part, path)
        return left.at(path)

    named = set(key)
    return Nested(tuple((name, at(place)) for name, place in fields.items() if name not in named))


def _column(place: Field) -> Column:
    """A field of a table's frame."""
    found = F.col(quoted(KEY if place.part == KEY_PART else ROW, place.path[0]))
    for name in place.path[1:]:
        found = found.getField(name)
    return found


def _with(rows: DataFrame, more: Sequence[Column]) -> DataFrame:
    """The frame with more columns of ``foreign_key``."""
    had = len(rows.schema["foreign_key"].dataType.names)  # type: ignore[attr-defined]
    columns = [F.col(f"foreign_key.k{at}") for at in range(had)]
    columns += [column.alias(f"k{had + at}") for at, column in enumerate(more)]
    return rows.withColumn("foreign_key", F.when(~F.col(DELETED), F.struct(*columns)))
