"""Joins in a row by foreign keys of one left table, as one: the rule ``joins-share-stages``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fkjoin.analysis.bound import bind
from fkjoin.analysis.checks import described
from fkjoin.analysis.joins import JoinBound
from fkjoin.analysis.planned import Planned
from fkjoin.codec.messages import LEFT
from fkjoin.codec.rows import Path
from fkjoin.lowering.answers import ALL_READ, narrow
from fkjoin.lowering.foreign_keys import JoinSides, packed_left_rows, packed_right_rows
from fkjoin.lowering.stage import let_through, state_spec
from fkjoin.lowering.table_plan import Joins, TablePlan, paced, pack_changes, rows_of, table_of
from fkjoin.plan.nodes import Join, fired, shares_stages
from fkjoin.plan.optimizer import (
    N,
    Off,
    answers_keep_what_is_read,
    join_keeps_what_it_needs,
    joins_share_stages,
)
from fkjoin.plan.physical import Counted, Physical, Stage, by_spark, union
from fkjoin.plan.rules import ANSWERS_KEEP_WHAT_IS_READ, JOIN_KEEPS_WHAT_IT_NEEDS
from fkjoin.spark.frame import DELETED, KEY, ROW
from fkjoin.spark.names import quoted, quoted_if_needed
from fkjoin.spark.schemas import arrow_schema, column_texts, listed, spark_schema
from fkjoin.spark.specs import GatherSpec, MultiSubscriptionSpec, ScatterSpec, StageSpec, StateSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages.contribute import Place
from fkjoin.stages.join_rows import How
from fkjoin.stages.multi_join import KEY as KEY_PART
from fkjoin.stages.multi_join import (
    Field,
    MultiJoin,
    Nested,
    Origin,
    Right,
    fields_at,
    fields_of,
    pruned,
)

_MOST = 100
_STAGES = ("scatter", "subscription", "gather")


def begin(sides: JoinSides, *, how: How, fields: Mapping[str, Place]) -> Joins:
    """A join, for others to be one with it; ``fields``: where the joined columns are."""
    left, foreign_key = sides.left, sides.foreign_key
    return Joins(
        left,
        by_spark(foreign_key.on, left.visible),
        tuple(listed(foreign_key.extractor)),
        foreign_key.bound,
        ((sides.right, how),),
        _nested(fields, left.key, 0, Field(LEFT, ())),
    )


def _name(key: Field, columns: Sequence[str]) -> str:
    """The text of a field of the left table, which has these columns."""
    if len(key.path) == 1:
        return key.path[0]
    text = ".".join(map(quoted_if_needed, key.path))
    # A column may be called as the path is written.
    return quoted(*key.path) if text in columns else text


def share(
    node: Join, alone: str | None, left: TablePlan, right: TablePlan, bound: JoinBound
) -> tuple[Join, Joins | None]:
    """A join, and the joins that ``left`` is with this one more, if they are one.

    ``alone``: what is in the way, whatever the rows are.
    """
    off = bound.settings.off
    joins: Joins | str | None = left.joins
    if alone is None and isinstance(joins, Joins):
        joins = _joined(joins, left, right, bound, node.how)
    if not isinstance(joins, Joins):
        return joins_share_stages(node, off, alone or joins or "its rows are kept"), None
    node = joins_share_stages(node, off, alone)
    return node, joins if shares_stages(node) else None


def _joined(
    joins: Joins, table: TablePlan, right: TablePlan, join: JoinBound, how: How
) -> Joins | str:
    """The joins with one more; or why it cannot be one with the others.

    ``table``: the result so far.
    """
    foreign_key = join.foreign_key
    if join.fields is None:
        return "the joiner makes more of the rows than fields of them"
    if foreign_key.bound is None:
        return "the extractor is a function, and may read rows of the right tables"
    paths = [key.path for key in foreign_key.bound if key.path is not None]
    if len(paths) < len(foreign_key.bound):
        return "the foreign key is more than fields"
    origins: list[Origin | None] = []
    for path in paths:
        in_row = path[0] in table.row_type.names
        origins.append(joins.result.at(path) if in_row else Field(KEY_PART, path))
    keys = [origin for origin in origins if isinstance(origin, Field) and origin.part < 0]
    if len(keys) < len(origins):
        return "the foreign key reads a right table's columns"
    if len(joins.rights) >= _MOST:
        return f"{_MOST} right tables are the most"
    names = [_name(key, joins.left.row_type.names) for key in keys]
    bound = joins.bound
    if bound is not None:
        bound = (*bound, *bind("extractor", names, joins.left.planned.scope))
    width = sum(len(table.key_type) for table, _ in joins.rights)
    columns = [field_in(key.part == KEY_PART, key.path) for key in keys]
    return replace(
        joins,
        rows=by_spark(lambda frame: _with(frame, width, columns), joins.rows),
        extractor=(*joins.extractor, *names),
        bound=bound,
        rights=(*joins.rights, (right, how)),
        result=_nested(join.fields, table.key, len(joins.rights), joins.result),
    )


def plan_joins(planned: Planned, node: Join, joins: Joins, dead: tuple[Physical, ...]) -> TablePlan:
    """The table of the joins; ``node`` is the node of the last one."""
    bound: JoinBound = planned.bound
    multi = MultiJoinPlan(node, bound, joins)
    reads_all = multi.whole == _kept(joins, whole=True)
    obstacle = "the joiner reads every column" if reads_all else None
    node = join_keeps_what_it_needs(node, bound.settings.off, obstacle)
    multi = replace(multi, node=node)
    kinds = {"key": joins.left.key_type, "result": spark_schema(multi.whole.schema)}
    gathered = multi.results(joins, multi.whole, node.name, node.materialized)
    results = paced(planned, gathered, {**kinds, **multi.versions})
    apart = node.materialized is not None or bound.emission.interval_ms is not None
    return table_of(
        planned,
        node,
        results,
        multi.unpack(multi.whole),
        joins.left,
        *(table for table, _ in joins.rights),
        dead=dead,
        joins=joins,
        multi=None if apart else multi.narrowed,
    )


@dataclass(frozen=True, eq=False)
class MultiJoinPlan:
    """A multi-way join, which can be made with fewer columns."""

    node: Join
    bound: JoinBound
    joins: Joins

    @property
    def _keeps_whole_rows(self) -> bool:
        return JOIN_KEEPS_WHAT_IT_NEEDS in self.bound.settings.off

    @cached_property
    def whole(self) -> MultiJoin:
        """Columns that are kept of all rows."""
        return _kept(self.joins, whole=self._keeps_whole_rows)

    @property
    def versions(self) -> dict[str, Any]:
        return {"versions": [list(version) for version in self.node.versions]}

    def unpack(self, multi_join: MultiJoin) -> UnpackResults:
        """The function that makes rows of results."""
        return UnpackResults(multi_join.key, (multi_join.schema,), self.node.versions)

    def narrowed(
        self, node: N, off: Off, paths: Sequence[Path] | None
    ) -> tuple[N, Physical | None]:
        """An operator, and the rows with what is at ``paths`` of them, if the rule allows it.

        No rows if they are to be the table's own.
        """
        joins, less = self.joins, self.whole
        if paths is not None:
            joins, less = self._fewer(paths)
        node = answers_keep_what_is_read(node, off, ALL_READ if less == self.whole else None)
        if paths is None or not fired(node, ANSWERS_KEEP_WHAT_IS_READ):
            return node, None
        results = self.results(joins, less, f"{self.node.name}-for-{node.name}", None)
        return node, rows_of(results, self.unpack(less))

    def _fewer(self, paths: Sequence[Path]) -> tuple[Joins, MultiJoin]:
        names = self.whole.schema.names
        known = [path for path in paths if path[0] in names]  # others are the key's
        # A row has one column at least, so that it can be told from none.
        known = known or [(names[0],)]
        joins = replace(self.joins, result=pruned(self.joins.result, known))
        read = list(fields_at(self.joins.result, known))
        return joins, _kept(joins, read, whole=self._keeps_whole_rows)

    def results(
        self, joins: Joins, multi_join: MultiJoin, counted_as: str, materialized: str | None
    ) -> Physical:
        """The envelopes of what gather sends."""
        settings = self.bound.settings
        state = self._state(joins, multi_join, materialized)
        scatter = ScatterSpec(
            state(ScatterSpec),
            rights=len(joins.rights),
            in_order=let_through(joins.left.node),
        )
        among = tuple(right.key for right in multi_join.rights)
        pack = pack_changes(joins.left, multi_join.left, settings, among=among)
        rows = packed_left_rows(joins.left, joins.rows, joins.bound, settings, pack)
        sent = [Stage(rows, scatter), *self._packed_rights(joins, multi_join)]
        subscription = MultiSubscriptionSpec(
            state(MultiSubscriptionSpec),
            right_parts=tuple(right.parts for right in multi_join.rights),
            rights_in_order=tuple(let_through(table.node) for table, _ in joins.rights),
        )
        answers = Stage(union(*sent), subscription)
        gather = GatherSpec(state(GatherSpec), multi_join=multi_join)
        return Counted(Stage(answers, gather), counted_as, _STAGES)

    def _packed_rights(self, joins: Joins, multi_join: MultiJoin) -> Iterator[Physical]:
        settings = self.bound.settings
        for number, right in enumerate(multi_join.rights):
            table, _ = joins.rights[number]
            pack = pack_changes(table, right.row, settings, number=number)
            yield packed_right_rows(table, pack)

    def _state(
        self, joins: Joins, multi_join: MultiJoin, materialized: str | None
    ) -> Callable[[type[StageSpec]], StateSpec]:
        """Facts that each stage says of its state."""
        left = joins.left
        kinds = {
            "key": left.key_type,
            "left": spark_schema(multi_join.left),
            "result": spark_schema(multi_join.schema),
        }
        reads = [left.planned.node]
        for number, right in enumerate(multi_join.rights):
            table, _ = joins.rights[number]
            kinds |= {
                f"foreign_key{number}": table.key_type,
                f"right{number}": spark_schema(right.row),
            }
            reads.append(table.planned.node)
        facts = {
            "materialized": materialized,
            "how": [right.how for right in multi_join.rights],
            "extractor": [described(key, "key", "row") for key in joins.extractor],
            "columns": multi_join.columns,
        }
        for name, kind in kinds.items():
            facts[name] = column_texts(arrow_schema(name, kind))
        star = {"star": multi_join.facts(), "fused": True}
        about = {**kinds, **self.versions, **star}
        return lambda kind: state_spec(
            self.bound.settings, kind, self.node, bound_to=facts, about=about, reads=reads
        )


def _kept(joins: Joins, read: Iterable[Field] | None = None, *, whole: bool) -> MultiJoin:
    """Choose what is kept of all rows.

    ``read``: the columns, if not all of them; ``whole``: keep all there is.
    """
    paths: dict[int, list[Path]] = {}
    for part, path in fields_of(joins.result) if read is None else read:
        paths.setdefault(part, []).append(path)
    rows = {LEFT: arrow_schema("left", joins.left.row_type)}
    for number, (table, _) in enumerate(joins.rights):
        rows[number] = arrow_schema("right", table.row_type)
    if not whole:
        rows = {part: narrow(schema, paths.get(part, [])) for part, schema in rows.items()}
    rights = []
    for number, (name, (table, how)) in enumerate(zip(_names(joins), joins.rights, strict=True)):
        foreign_key = arrow_schema("foreign_key", table.key_type)
        rights.append(Right(name, foreign_key, rows[number], table.node.parts, how))
    key = arrow_schema("key", joins.left.key_type)
    return MultiJoin(key, rows[LEFT], joins.left.node.parts, tuple(rights), joins.result)


def _names(joins: Joins) -> list[str]:
    """Return the names of the right tables, those that come again with a number."""
    names: list[str] = []
    for table, _ in joins.rights:
        again = sum(name.split("#")[0] == table.name for name in names)
        names.append(f"{table.name}#{again + 1}" if again else table.name)
    return names


def _nested(
    fields: Mapping[str, Place], key: Iterable[str], right: int, left: Field | Nested
) -> Nested:
    """The columns of joined rows.

    ``left`` is what their left row is, ``right`` the number of the right table.
    """

    def origin(side: str, path: Path) -> Origin:
        if side == "right":
            return Field(right, path)
        if isinstance(left, Field):
            return Field(left.part, path)
        return left.at(path)

    named = set(key)
    columns = [(name, origin(*field)) for name, field in fields.items() if name not in named]
    return Nested(tuple(columns))


def field_in(of_key: bool, path: Path) -> Column:
    """A field of a table's frame: of the key, or of the row."""
    column = F.col(KEY if of_key else ROW)
    for name in path:
        column = column.getField(name)
    return column


def _with(rows: DataFrame, width: int, columns: Sequence[Column]) -> DataFrame:
    """The frame with more columns of ``foreign_key``, which has so many."""
    keys = [F.col(f"foreign_key.k{number}") for number in range(width)]
    keys += [column.alias(f"k{number}") for number, column in enumerate(columns, width)]
    return rows.withColumn("foreign_key", F.when(~F.col(DELETED), F.struct(*keys)))
