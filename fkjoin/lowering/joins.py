"""What one foreign-key join is on a streaming DataFrame: its stages, its answers for whoever reads them, its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.codec.rows import Path
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import InternalTopics, staged
from fkjoin.lowering.emission import Emission, paced
from fkjoin.lowering.foreign_keys import dead_frames, packed_sides
from fkjoin.lowering.joiner import Joining, evaluated
from fkjoin.lowering.multi_join import Joins, begin
from fkjoin.lowering.pruning import needed
from fkjoin.lowering.stage import Answers, Early, Kept, counted, frame_of, made_by_operators, pickled, stage, stage_spec
from fkjoin.plan.nodes import Join, fired
from fkjoin.plan.optimizer import Off, join_keeps_what_it_needs, resolve_makes_rows
from fkjoin.plan.rules import JOIN_KEEPS_WHAT_IT_NEEDS, RESOLVE_MAKES_ROWS
from fkjoin.sessions.settings import bucket_count
from fkjoin.spark.names import require_beside
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import PackJoined
from fkjoin.spark.schemas import arrow_schema, schema_text, spark_schema
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, RowMaker
from fkjoin.stages.contribute import Fields, Place
from fkjoin.table import Extractor, Joiner, Table


class _Answered(NamedTuple):
    """The answers, and the queries that make them if they are others."""

    node: Join
    """After the rules that are for what is before resolve."""
    envelopes: DataFrame
    queries: tuple[StageQuery, ...]


class _Joined(NamedTuple):
    """What comes to resolve, and what the joined rows are."""

    node: Join
    """After all rules."""
    envelopes: DataFrame
    makes: bytes
    """A ``Joined``, pickled, where resolve makes rows of answers itself; else empty."""
    rows: tuple[pa.Schema, ...]
    result: DataType


@dataclass(frozen=True, eq=False)
class JoinPlan:
    """A join that was checked; what is made of it is made when it is asked for."""

    left: Table
    right: Table
    extractor: Extractor
    joiner: Joiner | None
    node: Join
    off: Off
    """The rules that the session does not want."""
    emission: Emission
    topics: InternalTopics | None
    """Of a staged join."""
    rows: DataFrame
    """``with_foreign_key``'s."""
    fields: Mapping[str, Place] | None
    """What the columns of a joined row are, and those of its key, if they are fields of both rows."""
    validate: bool

    @property
    def alone(self) -> str | None:
        """Why it cannot be one with other joins, whatever its rows are."""
        if self.topics is not None:
            return "the join is staged"
        return f"it is {self.node.emit}" if self.emission.every else None

    @cached_property
    def dead(self) -> tuple[DataFrame, ...]:
        """What dead letters come from."""
        found = dead_frames(self.left, self.right, self.rows, self.extractor)
        if self.fields is not None or self.left.on_error != "dead-letter":  # fields cannot throw
            return found
        unpack = UnpackAnswers(self._kept.left, self._kept.right, self.node.how, self._key)
        return (*found, *self._joining.letters(self._answers.counted, unpack))

    def table(self) -> Table:
        node, left, right, label = self._joined.node, self.left, self.right, self.node.name
        about = {**self._about, "result": self._joined.result}
        unpack = UnpackResults(self._key, self._joined.rows, node.versions)

        def built(materialized: str | None) -> Table:
            resolved = self._through(
                *("resolve", self._joined.envelopes, self._kept.left, self._kept.right),
                from_answers=self._joined.makes,
                materialized=materialized,
                result=self._joined.result,
            )
            results = paced(resolved, label, self.emission, about, self.validate, joiner=node.joiner)
            return Table(
                replace(node, materialized=materialized),
                frame_of(results, unpack),
                left.key,
                left.timestamps or right.timestamps,
                left.on_error,
                self.dead,
                connection=left.connection or right.connection,
                packed=(results, unpack),
                answers=None if self.fields is None else self._answers,
                early=None if self.topics is not None else Early(self._answers, self._places, self._before_resolve, self._made),
                star=None if materialized is not None else self._star,
                stages=(*left.stages, *right.stages, *self._answered.queries),
                materialized_as=built,
            )

        return built(None)

    @property
    def _spark(self) -> SparkSession:
        return self.left.frame.sparkSession

    @cached_property
    def _key(self) -> pa.Schema:
        return arrow_schema("left", self.left.key_type)

    @cached_property
    def _foreign_key(self) -> pa.Schema:
        return arrow_schema("right", self.right.key_type)

    @cached_property
    def _needed(self) -> tuple[Join, Kept]:
        """The node after the rule for what the joiner reads, and what is kept of both rows."""
        whole = Kept(arrow_schema("left", self.left.row_type), arrow_schema("right", self.right.row_type))
        less = needed(self.joiner, whole, self._spark)
        node = join_keeps_what_it_needs(self.node, self.off, less if isinstance(less, str) else None)
        return node, less if isinstance(less, Kept) and fired(node, JOIN_KEEPS_WHAT_IT_NEEDS) else whole

    @property
    def _kept(self) -> Kept:
        return self._needed[1]

    @property
    def _before(self) -> tuple[StageName, ...]:
        """The stages whose counters come with the answers: they are within the query."""
        return () if self.topics is not None else ("rekey", "subscription")

    @property
    def _about(self) -> dict[str, object]:
        node = self.node
        parts = node.left.parts, node.right.parts
        kinds = {"key": self.left.key_type, "foreign_key": self.right.key_type}
        return {**kinds, "parts": parts, "fused": self.topics is None}

    @property
    def _star(self) -> Joins | str:
        """What another join needs to be one with this one; or why it cannot."""
        label = self.node.name
        if self.alone is not None:
            return f"{label} is staged" if self.topics is not None else f"{label} is {self.node.emit}"
        if self.fields is None:
            return f"{label} makes more of the rows than fields of them"
        return begin(self.left, self.right, self.rows, self.extractor, self.node.how, self.fields)

    def _through(
        self,
        kind: StageName,
        rows: DataFrame,
        left: pa.Schema,
        right: pa.Schema,
        *,
        from_answers: bytes = b"",
        materialized: str | None = None,
        result: DataType | None = None,
    ) -> DataFrame:
        """Envelopes through a stage; ``left``, ``right``: what is kept of both rows."""
        node, fused = self.node, self.topics is None
        named = {"key": self._key, "foreign_key": self._foreign_key, "left": left, "right": right}
        bound_to = {
            "how": node.how,
            "materialized": materialized,
            "extractor": node.extractor,
            "joiner": node.joiner,
            **{what: schema_text(schema) for what, schema in named.items()},
        }
        types = {side: spark_schema(schema) for side, schema in (("left", left), ("right", right))}
        spec = stage_spec(
            *(self._spark, kind, node.name, bound_to, {**self._about, **types, "result": result}),
            validate=self.validate,
            how=node.how,
            shared_log=node.left.log is not None and node.left.log == node.right.log,
            right_parts=node.right.parts,
            in_order=fused,
            made=made_by_operators(node.left if kind == "rekey" else node.right),
            materialized=materialized is not None,
            every=self.emission.every,
            from_answers=from_answers,
        )
        done = stage(rows, spec)
        if kind == "resolve":
            return counted(done, node.name, *self._before, kind)
        return done if fused else counted(done, f"{node.name}-{kind}", kind)  # within a query counters travel on

    def _answering(self, kept: Kept) -> _Answered:
        """The answers with so much of both rows."""
        label, buckets = self.node.name, bucket_count(self._spark)
        left, right = kept
        sides = packed_sides(
            *(self._needed[0], self.off, self.left, self.right, self.rows, self.extractor),
            schemas=(self._key, self._foreign_key, left, right),
            buckets=buckets,
            validate=self.validate,
        )

        def through(rows: DataFrame, kind: StageName) -> DataFrame:
            return self._through(kind, rows, left, right, from_answers=sides.from_answers if kind == "rekey" else b"")

        if self.topics is not None:
            return _Answered(sides.node, *staged(sides.left, sides.right, through, label, buckets, self.topics))
        rekeyed = through(sides.left, "rekey")
        return _Answered(sides.node, through(rekeyed.unionAll(sides.right), "subscription"), ())

    @cached_property
    def _answered(self) -> _Answered:
        return self._answering(self._kept)

    @cached_property
    def _answers(self) -> Answers:
        of = Fields(self._key, self._kept.left, self._kept.right, self.node.how)
        less = None if self.topics is not None else self._with_less
        return Answers(f"{self.node.name}-answers", self._answered.envelopes, of, self.fields or {}, self._before, less)

    def _with_less(self, kept: Kept, reader: str) -> Answers:
        """See ``Answers.less``."""
        of = Fields(self._key, kept.left, kept.right, self.node.how)
        name = f"{self.node.name}-answers-for-{reader}"
        return Answers(name, self._answering(kept).envelopes, of, self._answers.fields, self._before)

    def _places(self, paths: Sequence[Path] | None) -> list[Place] | None:
        """See ``Early``.  Without a joiner rows are both rows, and a path in them one of left or right."""
        if self.joiner is not None or paths is None:
            return None
        fields = self._answers.fields
        return [(fields[path[0]][0], path[1:]) for path in paths]

    def _before_resolve(self, answers: Answers) -> DataFrame:
        unpack = UnpackAnswers(answers.of.left, answers.of.right, self.node.how, self._key)
        return self._joining.before_resolve(answers.counted, unpack)

    @property
    def _joining(self) -> Joining:
        return Joining(self.node.name, self.joiner, self.left.on_error)

    @cached_property
    def _made(self) -> RowMaker | str:
        """How workers make rows of answers, or why Spark has to."""
        if (why := self.off.get(RESOLVE_MAKES_ROWS)) is not None:
            return why
        if self.joiner is None:
            return RowMaker(None)
        found = evaluated(self.node.name, self.joiner, self._kept.left, self._kept.right, self._spark)
        return found if isinstance(found, str) else RowMaker(found)

    @cached_property
    def _joined(self) -> _Joined:
        left, right = self._kept.left, self._kept.right
        if self.joiner is None:
            require_beside(self.left.key, "joiner", ("left", "right"), "name the result's columns in a joiner")
            both = StructType([StructField("left", self.left.row_type), StructField("right", self.right.row_type)])
            return _Joined(self._answered.node, self._answered.envelopes, b"", (left, right), both)
        named = self._key if self.left.on_error == "fail" else None
        rows = self._joining.joined(self._answered.envelopes, UnpackAnswers(left, right, self.node.how, named))
        result = rows.schema["row"].dataType
        assert isinstance(result, StructType)
        require_beside(self.left.key, "joiner", result.names)
        schema = arrow_schema("joiner", result)
        node = resolve_makes_rows(self._answered.node, self.off, self._made if isinstance(self._made, str) else None)
        if isinstance(self._made, str):
            rows = rows.select("key", "version", "ts", "gone", "row", "problem", "counter", "count")
            packed = rows.mapInArrow(PackJoined(schema, bucket_count(self._spark)), ENVELOPE)
            return _Joined(node, packed, b"", (schema,), result)
        makes = pickled(Joined(AnswerRows(self._answers.of, self._made, self.left.on_error == "fail"), schema))
        return _Joined(node, self._answered.envelopes, makes, (schema,), result)
