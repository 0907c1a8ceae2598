"""The plan of a streaming DataFrame in parts: those that Python can run, and those that Spark evaluates over rows at hand.

Spark evaluates a projection or a condition over a local relation while it optimizes the plan, so no job runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from fkjoin.sessions.access import require_classic
from fkjoin.sessions.classic import Classic
from fkjoin.sessions.plan_sources import STATEFUL, analyzed, listed, source_of
from fkjoin.spark.schemas import IN_UTC, kept_type

GIVEN = "given"
"""The ``source`` of a leaf that stands for a frame that is given; its option ``name`` says which."""

_BYTES = 1 << 30
"""Bytes and rows of a batch that Spark hands over at once."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A source that the query reads."""

    source: str
    """The name that Spark gives its format."""
    options: Mapping[str, str]
    schema: pa.Schema
    below: tuple[PlanPart, ...] = ()


@dataclass(frozen=True, eq=False)
class Mapped:
    """A function of batches (``mapInArrow``)."""

    function: Any
    schema: pa.Schema
    below: tuple[PlanPart, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        given = [pa.record_batch(rows.columns, names=rows.schema.names)] if rows.num_rows else []
        return joined(list(self.function(iter(given))), self.schema)


@dataclass(frozen=True, eq=False)
class Stateful:
    """A stateful operator over envelopes."""

    function: Any
    schema: pa.Schema
    below: tuple[PlanPart, ...]


@dataclass(frozen=True, eq=False)
class Observed:
    """Rows that are summed up for the query's progress under a name."""

    name: str
    schema: pa.Schema
    below: tuple[PlanPart, ...]


@dataclass(frozen=True, eq=False)
class Union:
    """The rows of several parts."""

    schema: pa.Schema
    below: tuple[PlanPart, ...]

    def __call__(self, *rows: pa.RecordBatch) -> pa.RecordBatch:
        return joined([part for part in rows if part.num_rows], self.schema)


@dataclass(frozen=True, eq=False)
class PickedFields:
    """Columns, or fields of columns, and nulls."""

    places: tuple[tuple[int, ...] | None, ...]
    """The place of each column in the rows below, and of the field in it; None for nulls."""
    schema: pa.Schema
    below: tuple[PlanPart, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            pa.nulls(rows.num_rows, kind.type) if place is None else _at(rows.column(place[0]), place[1:])
            for place, kind in zip(self.places, self.schema, strict=True)
        ]
        return pa.record_batch(columns, names=self.schema.names)


@dataclass(frozen=True, eq=False)
class NullIn:
    """The rows that have a null in a column, or none."""

    place: int
    null: bool
    schema: pa.Schema
    below: tuple[PlanPart, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        test = pc.is_null if self.null else pc.is_valid
        return rows.filter(test(rows.column(self.place)))


@dataclass(frozen=True, eq=False)
class BySpark:
    """Expressions that Spark evaluates."""

    of: Evaluated
    schema: pa.Schema
    below: tuple[PlanPart, ...]

    def __call__(self, *rows: pa.RecordBatch) -> pa.RecordBatch:
        if not any(part.num_rows for part in rows):
            return joined([], self.schema)
        return joined(list(self.of.over(rows)), self.schema)


class PlanPart(Protocol):
    """A part of a plan, with the parts that it reads."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def below(self) -> tuple[PlanPart, ...]: ...


def parts_of(frame: DataFrame, given: Mapping[str, DataFrame] | None = None) -> PlanPart:
    """Read the plan that Spark has analyzed; ``SessionError`` in a session without a JVM to ask.

    ``given``: frames by name; where the plan reads one of them it ends in a leaf.
    """
    spark = frame.sparkSession
    require_classic(spark, "fkjoin.testing.Driver", "make the table in a process with a classic session")
    ends = {name: analyzed(one) for name, one in (given or {}).items()}
    return _Reading(spark, ends).part(analyzed(frame))


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of several, under the names of ``schema``."""
    some = [batch for batch in batches if batch.num_rows]
    if not some:
        return pa.record_batch([pa.array([], field.type) for field in schema], names=schema.names)
    if len(some) == 1:
        return pa.record_batch(some[0].columns, names=schema.names)
    columns = [_concatenated([batch.column(at) for batch in some], field.type) for at, field in enumerate(schema)]
    return pa.record_batch(columns, names=schema.names)


def _concatenated(columns: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Columns one after the other; of ``kind`` where they are of several types, such as binary and large binary."""
    alike = all(column.type == columns[0].type for column in columns)
    return pa.concat_arrays(columns if alike else [column.cast(kind) for column in columns])


def _at(column: pa.Array, places: Sequence[int]) -> pa.Array:
    return pc.struct_field(column, list(places)) if places else column


@dataclass(frozen=True, eq=False)
class _Reading:
    spark: SparkSession
    ends: Mapping[str, Any]
    """Plans of the frames that are given."""

    def part(self, node: Any) -> PlanPart:
        """The part that a node is the top of."""
        schema = _schema(node)
        kind = node.nodeName()
        if (name := self._given(node)) is not None:
            return Leaf(GIVEN, {"name": name}, schema)
        if (source := source_of(node)) is not None:
            return Leaf(*source, schema)
        if kind == "MapInArrow":
            return Mapped(self._function(node), schema, (self.part(node.child()),))
        if kind in STATEFUL:
            return Stateful(self._function(node), schema, (self.part(_envelopes(node.left())),))
        children = [*listed(node.children())]
        if kind == "CollectMetrics":
            return Observed(str(node.name()), schema, (self.part(children[0]),))
        if kind == "Union":
            return Union(schema, tuple(map(self.part, children)))
        if kind == "Project" and (places := _places(node, children[0])) is not None:
            return PickedFields(places, schema, (self.part(children[0]),))
        if kind == "Filter" and (test := _null_test(node, children[0])) is not None:
            return NullIn(*test, schema, (self.part(children[0]),))
        read: list[Any] = []
        top = self._evaluated(node, read)
        return BySpark(Evaluated(self.spark, top, tuple(read)), schema, tuple(map(self.part, read)))

    def _evaluated(self, node: Any, read: list[Any]) -> _Node:
        """The nodes down to what others run, which go to ``read``."""
        below: list[_Node | int] = []
        for child in listed(node.children()):
            if child.nodeName() in _OTHERS or child.nodeName() in STATEFUL or self._given(child) is not None:
                read.append(child)
                below.append(len(read) - 1)
            else:
                below.append(self._evaluated(child, read))
        return _Node(node, tuple(below))

    def _given(self, node: Any) -> str | None:
        """The frame that is given whose rows the node has."""
        return next((name for name, plan in self.ends.items() if node.sameResult(plan)), None)

    def _function(self, node: Any) -> Any:
        return Classic(self.spark).function(node)


_OTHERS = ("StreamingRelation", "StreamingRelationV2", "MapInArrow", "CollectMetrics", "Union")
"""Kinds of nodes that Spark is not asked to evaluate."""


@dataclass(frozen=True, eq=False)
class _Node:
    node: Any
    below: tuple[_Node | int, ...]
    """Nodes, or the numbers of the relations that come in their place."""


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A piece of a plan over relations that stand in the place of what it reads."""

    spark: SparkSession
    top: _Node
    read: tuple[Any, ...]
    _outputs: dict[int, Any] = field(default_factory=dict)

    def over(self, rows: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Evaluate the piece over rows of what it reads."""
        jvm: Any = self.spark._jvm
        relations = [self._relation(node, batch) for node, batch in zip(self.read, rows, strict=True)]
        plan = self._plan(self.top, relations)
        session: Any = self.spark
        run = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan).queryExecution().executedPlan()
        collected = jvm.java.util.ArrayList()
        for row in run.executeCollect():
            collected.add(row)
        found = jvm.PythonUtils.toSeq(collected).iterator()
        zone = self.spark.conf.get("spark.sql.session.timeZone")
        batches = self._converters.toBatchWithSchemaIterator(found, run.schema(), _BYTES, _BYTES, zone, False, False)
        while batches.hasNext():
            yield from pa.ipc.open_stream(batches.next())

    @property
    def _converters(self) -> Any:
        jvm: Any = self.spark._jvm
        return getattr(getattr(jvm.org.apache.spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")

    def _plan(self, top: _Node, relations: Sequence[Any]) -> Any:
        jvm: Any = self.spark._jvm
        below = [relations[one] if isinstance(one, int) else self._plan(one, relations) for one in top.below]
        return top.node.withNewChildren(jvm.PythonUtils.toSeq(below)) if below else top.node

    def _relation(self, node: Any, rows: pa.RecordBatch) -> Any:
        """The rows as a relation with the columns of a node."""
        jvm: Any = self.spark._jvm
        listed = jvm.java.util.ArrayList()
        if rows.num_rows:
            told = jvm.java.util.ArrayList()
            told.add(_stream(rows))
            given = self._converters.fromBatchWithSchemaIterator(jvm.PythonUtils.toSeq(told).iterator(), None)._1()
            while given.hasNext():
                listed.add(given.next().copy())
        relation = getattr(getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, "LocalRelation$"), "MODULE$")
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        return relation.apply(node.output(), jvm.PythonUtils.toSeq(listed), False, none)


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def _envelopes(node: Any) -> Any:
    """The plan of the envelopes below what a stateful operator gets: to it, keys of the grouping and the time are added."""
    while node.nodeName() == "Project":
        node = node.child()
    return node


def _schema(node: Any) -> pa.Schema:
    return to_arrow_schema(kept_type(json.loads(node.schema().json())), **IN_UTC)


def _columns(node: Any) -> dict[int, int]:
    """The places of a node's columns, by their ids."""
    return {one.exprId().id(): place for place, one in enumerate(listed(node.output()))}


def _places(node: Any, below: Any) -> tuple[tuple[int, ...] | None, ...] | None:
    """See ``PickedFields``; None where one is more than a field."""
    known = _columns(below)
    try:
        return tuple(_place(item, known) for item in listed(node.projectList()))
    except _MoreThanFieldError:
        return None


class _MoreThanFieldError(Exception):
    """An expression is more than a field of a column."""


def _place(item: Any, known: Mapping[int, int]) -> tuple[int, ...] | None:
    kind = item.getClass().getSimpleName()
    if kind == "Alias":
        return _place(item.child(), known)
    if kind == "AttributeReference":
        return (known[item.exprId().id()],)
    if kind == "Literal" and item.value() is None:
        return None
    if kind == "GetStructField" and (above := _place(item.child(), known)) is not None:
        return (*above, item.ordinal())
    raise _MoreThanFieldError


def _null_test(node: Any, below: Any) -> tuple[int, bool] | None:
    """See ``NullIn``; None where the condition is another one."""
    condition = node.condition()
    kind = condition.getClass().getSimpleName()
    if kind not in ("IsNull", "IsNotNull") or condition.child().getClass().getSimpleName() != "AttributeReference":
        return None
    return _columns(below)[condition.child().exprId().id()], kind == "IsNull"
