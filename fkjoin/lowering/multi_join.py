"""Joins in a row by foreign keys of the same left table, as one: the rule ``joins-share-stages``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bound import Bound, bind
from fkjoin.analysis.checks import described
from fkjoin.analysis.extractor import ForeignKey
from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned, Settings
from fkjoin.codec.messages import LEFT
from fkjoin.codec.rows import Path
from fkjoin.lowering.foreign_keys import packed_left_rows, packed_right_rows
from fkjoin.lowering.lowered import Lowered, Narrow, stages_of
from fkjoin.lowering.pace import paced
from fkjoin.lowering.pruning import narrow
from fkjoin.lowering.stage import counted, frame_of, let_through, made_by_operators, stage, state_spec
from fkjoin.plan.nodes import Join, shares_stages, starts_over
from fkjoin.plan.optimizer import join_keeps_what_it_needs, joins_share_stages
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.spark.frame import DELETED, KEY, ROW
from fkjoin.spark.names import quoted, quoted_if_needed
from fkjoin.spark.operator import StageName
from fkjoin.spark.packing import PackChanges
from fkjoin.spark.schemas import arrow_schema, listed, schema_text, spark_schema
from fkjoin.spark.specs import GatherSpec, MultiSubscriptionSpec, ScatterSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import How
from fkjoin.stages.contribute import Place
from fkjoin.stages.multi_join import KEY as KEY_PART
from fkjoin.stages.multi_join import Field, MultiJoin, Nested, Origin, Right, fields_at, fields_of, pruned

_MOST = 100
_STAGES: tuple[StageName, ...] = ("scatter", "subscription", "gather")


@dataclass(frozen=True)
class Joins:
    """A left table and the right tables that it is joined with; for another join of the result to be one with them."""

    left: Lowered
    rows: DataFrame
    """The left frame with a struct ``foreign_key``: the columns of all foreign keys, one after the other."""
    extractor: tuple[Any, ...]
    """Foreign keys as the user gave them, or as names of the left table's fields."""
    bound: tuple[Bound, ...] | None
    """Foreign keys, analyzed; None where one is a function."""
    rights: tuple[tuple[Lowered, How], ...]
    made: Nested
    """Columns of the joined rows."""

    def joined(
        self, table: Lowered, right: Lowered, foreign_key: ForeignKey, how: How, fields: Mapping[str, Place] | None
    ) -> Joins | str:
        """With one more; or why it cannot be one with the others.  ``table`` is the result so far."""
        if fields is None:
            return "the joiner makes more of the rows than fields of them"
        if foreign_key.bound is None:
            return "the extractor is a function, and may read rows of the right tables"
        paths = [one.path for one in foreign_key.bound if one.path is not None]
        if len(paths) < len(foreign_key.bound):
            return "the foreign key is more than fields"
        found = [self.made.at(path) if path[0] in table.row_type.names else Field(KEY_PART, path) for path in paths]
        places = [place for place in found if isinstance(place, Field) and place.part < 0]
        if len(places) < len(found):
            return "the foreign key reads a right table's columns"
        if len(self.rights) >= _MOST:
            return f"{_MOST} right tables are the most"
        named = [place.path[0] if len(place.path) == 1 else ".".join(map(quoted_if_needed, place.path)) for place in places]
        bound = None if self.bound is None else (*self.bound, *bind("extractor", named, self.left.planned.scope))
        return replace(
            self,
            rows=_with(self.rows, [_column(place) for place in places]),
            extractor=(*self.extractor, *named),
            bound=bound,
            rights=(*self.rights, (right, how)),
            made=_nested(fields, table.key, len(self.rights), self.made),
        )


def begin(
    left: Lowered, right: Lowered, rows: DataFrame, *, foreign_key: ForeignKey, how: How, fields: Mapping[str, Place]
) -> Joins:
    """A join, for others to be one with it; ``rows``: with foreign keys, ``fields``: where the joined columns are."""
    return Joins(
        left,
        rows,
        tuple(listed(foreign_key.given)),
        foreign_key.bound,
        ((right, how),),
        _nested(fields, left.key, 0, Field(LEFT, ())),
    )


def share(node: Join, alone: str | None, left: Lowered, right: Lowered, bound: JoinBound) -> tuple[Join, Joins | None]:
    """A join, and the joins that ``left`` is with this one more, if they are one.

    ``alone``: what is in the way, whatever the rows are.
    """
    off = bound.settings.off
    joins: Joins | str | None = left.joins
    if alone is None and isinstance(joins, Joins):
        joins = joins.joined(left, right, bound.foreign_key, node.how, bound.fields)
    if not isinstance(joins, Joins):
        return joins_share_stages(node, off, alone or joins or "its rows are kept"), None
    node = joins_share_stages(node, off, alone)
    return node, joins if shares_stages(node) else None


def lower_joins(planned: Planned, node: Join, joins: Joins, left: Lowered, dead: tuple[DataFrame, ...]) -> Lowered:
    """The table of the joins; ``left`` and ``node`` are those of the last one."""
    bound: JoinBound = planned.bound
    settings, emission, label = bound.settings, bound.emission, node.name
    whole_rows = JOIN_KEEPS_WHAT_IT_NEEDS in settings.off
    multi_join = _kept(joins, whole=whole_rows)
    all_read = multi_join == _kept(joins, whole=True)
    node = join_keeps_what_it_needs(node, settings.off, "the joiner reads every column" if all_read else None)
    versions = {"versions": [list(version) for version in node.versions]}
    about = {"key": joins.left.key_type, "result": spark_schema(multi_join.schema), **versions}
    unpack = UnpackResults(multi_join.key, (multi_join.schema,), node.versions)
    tables = [joins.left, *(table for table, _ in joins.rights)]

    def fewer(paths: Sequence[Path]) -> tuple[Joins, MultiJoin]:
        known = [path for path in paths if path[0] in multi_join.schema.names]  # others are the key's
        less = replace(joins, made=pruned(joins.made, known))
        return less, _kept(less, list(fields_at(joins.made, known)), whole=whole_rows)

    def with_fewer(paths: Sequence[Path], reader: str) -> DataFrame:
        less, some = fewer(paths)
        results = _results(
            less, some, label, materialized=None, versions=versions, counted_as=f"{label}-for-{reader}", settings=settings
        )
        return frame_of(results, UnpackResults(some.key, (some.schema,), node.versions))

    narrow = Narrow(lambda paths: fewer(paths)[1] != multi_join, with_fewer)
    results = _results(
        joins, multi_join, label, materialized=node.materialized, versions=versions, counted_as=label, settings=settings
    )
    results = paced(results, label, emission, about, settings)
    return Lowered(
        planned,
        node,
        frame_of(results, unpack),
        dead,
        stages_of(*tables),
        encoded=(results, unpack),
        joins=joins,
        narrow=None if node.materialized is not None or emission.interval_ms is not None else narrow,
    )


def _results(
    joins: Joins,
    multi_join: MultiJoin,
    label: str,
    *,
    materialized: str | None,
    versions: Mapping[str, Any],
    counted_as: str,
    settings: Settings,
) -> DataFrame:
    """The envelopes of what gather sends."""
    buckets, validate = settings.buckets, settings.validate
    kinds = {"key": joins.left.key_type, "left": spark_schema(multi_join.left), "result": spark_schema(multi_join.schema)}
    rights = list(zip((table for table, _ in joins.rights), multi_join.rights, strict=True))
    tables = dict.fromkeys(("key", "left"), joins.left.name)
    for at, (table, right) in enumerate(rights):
        tables |= {f"foreign_key{at}": table.name, f"right{at}": table.name}
        kinds |= {f"foreign_key{at}": table.key_type, f"right{at}": spark_schema(right.row)}
    about = {**kinds, **versions, "star": multi_join.facts(), "fused": True}  # "star": the name in stores that are there
    facts = {
        "materialized": materialized,
        "of": [right.name for right in multi_join.rights],
        "how": [right.how for right in multi_join.rights],
        "extractor": [described(one, "key", "row") for one in joins.extractor],
        "columns": multi_join.columns,
        **{name: schema_text(arrow_schema(name, kind)) for name, kind in kinds.items()},
    }

    def state(kind: type[StageSpec]) -> StateSpec:
        return state_spec(settings, kind, label, bound_to=facts, about=about, tables=tables)

    keys = tuple(right.key for right in multi_join.rights)
    anew = starts_over(joins.left.node)
    pack = PackChanges(multi_join.key, None, multi_join.left, buckets, validate, keys, start_over=anew)
    rows = packed_left_rows(joins.left, joins.rows, joins.bound, settings, pack)
    sent = stage(rows, ScatterSpec(state(ScatterSpec), rights=len(rights), in_order=let_through(joins.left.node)))
    for at, (table, right) in enumerate(rights):
        pack = PackChanges(right.key, None, right.row, buckets, validate, number=at, start_over=starts_over(table.node))
        sent = sent.unionAll(packed_right_rows(table, pack))
    subscription = MultiSubscriptionSpec(
        state(MultiSubscriptionSpec),
        right_parts=tuple(right.parts for right in multi_join.rights),
        rights_in_order=made_by_operators(*(table.node for table, _ in joins.rights)),
    )
    gather = GatherSpec(state(GatherSpec), multi_join=multi_join)
    return counted(stage(stage(sent, subscription), gather), counted_as, *_STAGES)


def _kept(joins: Joins, read: Iterable[Field] | None = None, *, whole: bool) -> MultiJoin:
    """Choose what is kept of all rows; ``read``: the columns, if not all of them; ``whole``: all there is."""
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
    """Return the names of the right tables, those that come again with a number."""
    names: list[str] = []
    for table, _ in joins.rights:
        again = sum(name.split("#")[0] == table.name for name in names)
        names.append(f"{table.name}#{again + 1}" if again else table.name)
    return names


def _nested(fields: Mapping[str, Place], key: Iterable[str], right: int, left: Field | Nested) -> Nested:
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
    column = F.col(quoted(KEY if place.part == KEY_PART else ROW, place.path[0]))
    for name in place.path[1:]:
        column = column.getField(name)
    return column


def _with(rows: DataFrame, more: Sequence[Column]) -> DataFrame:
    """The frame with more columns of ``foreign_key``."""
    had = len(rows.schema["foreign_key"].dataType.names)  # type: ignore[attr-defined]
    columns = [F.col(f"foreign_key.k{at}") for at in range(had)]
    columns += [column.alias(f"k{had + at}") for at, column in enumerate(more)]
    return rows.withColumn("foreign_key", F.when(~F.col(DELETED), F.struct(*columns)))
