"""What one foreign-key join is on a streaming DataFrame: its stages, its answers for whoever reads them, its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.columns import arrow_schema, schema_text, spark_schema
from fkjoin.emission import Emission, paced
from fkjoin.errors import TopologyError
from fkjoin.foreign_key import dead_frames, packed_sides
from fkjoin.joiner import before_resolve, evaluated, joined
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import InternalTopics, staged
from fkjoin.optimizer import allowed
from fkjoin.pruning import Kept, needed, read
from fkjoin.rows import Path
from fkjoin.rules import RESOLVE_MAKES_ROWS
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import PackJoined
from fkjoin.spark.settings import bucket_count
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages.answer_rows import AnswerRows, Joined, Made
from fkjoin.stages.contribute import Fields, Place
from fkjoin.star_join import Joins, begin
from fkjoin.stateful import Answers, Early, counted, frame_of, pickled, stage, stage_spec
from fkjoin.table import Extractor, Joiner, Table
from fkjoin.topology import Join, Verdict, verdicts


class _Answered(NamedTuple):
    """The answers, the queries that make them if they are others, and what became of rules for the left side."""

    envelopes: DataFrame
    queries: tuple[StageQuery, ...]
    rules: tuple[Verdict, ...]


class _Joined(NamedTuple):
    """What comes to resolve, and what the joined rows are."""

    envelopes: DataFrame
    makes: bytes
    """A ``Joined``, pickled, where resolve makes rows of answers itself; else empty."""
    rows: tuple[pa.Schema, ...]
    result: DataType
    rule: Verdict | None


@dataclass(frozen=True, eq=False)
class JoinPlan:
    """A join that was checked; what is made of it is made when it is asked for."""

    left: Table
    right: Table
    extractor: Extractor
    joiner: Joiner | None
    node: Join
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
        return dead_frames(self.left, self.right, self.rows, self.extractor)

    def table(self, shared: Verdict | None) -> Table:
        """The table; ``shared``: what became of ``joins-share-stages``."""
        rules = (*verdicts(shared), *self._answered.rules, *verdicts(self._kept.rule, self._joined.rule))
        node, left, right, label = replace(self.node, rules=rules), self.left, self.right, self.node.name
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
                dead=self.dead,
                connection=left.connection or right.connection,
                packed=(results, unpack),
                answers=None if self.fields is None else self._answers,
                early=None if self.topics is not None else Early(self._early, self._before_resolve, self._made),
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
    def _kept(self) -> Kept:
        """What is kept of both rows."""
        whole = arrow_schema("left", self.left.row_type), arrow_schema("right", self.right.row_type)
        return needed(self.joiner, *whole, self._spark)

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
            materialized=materialized is not None,
            every=self.emission.every,
            from_answers=from_answers,
        )
        done = stage(rows, spec)
        if kind == "resolve":
            return counted(done, node.name, *self._before, kind)
        return done if fused else counted(done, f"{node.name}-{kind}", kind)  # within a query counters travel on

    def _answering(self, left: pa.Schema, right: pa.Schema) -> _Answered:
        """The answers with these rows."""
        label, buckets = self.node.name, bucket_count(self._spark)
        schemas = self._key, self._foreign_key, left, right
        sides = packed_sides(
            *(self.left, self.right, self.rows, self.extractor, schemas, buckets, label), validate=self.validate
        )

        def through(rows: DataFrame, kind: StageName) -> DataFrame:
            return self._through(kind, rows, left, right, from_answers=sides.from_answers if kind == "rekey" else b"")

        if self.topics is not None:
            return _Answered(*staged(sides.left, sides.right, through, label, buckets, self.topics), sides.rules)
        rekeyed = through(sides.left, "rekey")
        return _Answered(through(rekeyed.unionAll(sides.right), "subscription"), (), sides.rules)

    @cached_property
    def _answered(self) -> _Answered:
        return self._answering(self._kept.left, self._kept.right)

    @cached_property
    def _answers(self) -> Answers:
        of = Fields(self._key, self._kept.left, self._kept.right, self.node.how)
        less = None if self.topics is not None else self._narrowed
        return Answers(f"{self.node.name}-answers", self._answered.envelopes, of, self.fields or {}, self._before, less)

    def _narrowed(self, places: Iterable[Place], reader: str) -> tuple[Answers, Verdict]:
        """See ``Answers.narrowed``."""
        left, right, verdict = read(places, self._answers.of, self._spark)
        if not verdict.fired:
            return self._answers, verdict
        of = Fields(self._key, left, right, self.node.how)
        name = f"{self.node.name}-answers-for-{reader}"
        return Answers(name, self._answering(left, right).envelopes, of, self._answers.fields, self._before), verdict

    def _early(self, paths: Sequence[Path] | None, reader: str) -> tuple[Answers, tuple[Verdict, ...]]:
        """See ``Early``.  Without a joiner rows are both rows, and a path in them one of left or right."""
        if self.joiner is not None or paths is None:
            return self._answers, ()
        fields = self._answers.fields
        answers, less = self._answers.narrowed([(fields[path[0]][0], path[1:]) for path in paths], reader)
        return answers, verdicts(less)

    def _before_resolve(self, answers: Answers) -> DataFrame:
        unpack = UnpackAnswers(answers.of.left, answers.of.right, self.node.how, self._key)
        return before_resolve(answers.counted, unpack, self.joiner)

    @cached_property
    def _made(self) -> Made | str:
        """How workers make rows of answers, or why Spark has to."""
        if (why := allowed(self._spark, RESOLVE_MAKES_ROWS)) is not None:
            return why
        if self.joiner is None:
            return Made(None)
        found = evaluated(self.joiner, self._kept.left, self._kept.right, self._spark)
        return found if isinstance(found, str) else Made(found)

    @cached_property
    def _joined(self) -> _Joined:
        left, right = self._kept.left, self._kept.right
        if self.joiner is None:
            both = StructType([StructField("left", self.left.row_type), StructField("right", self.right.row_type)])
            return _Joined(self._answered.envelopes, b"", (left, right), both, None)
        rows = joined(self._answered.envelopes, UnpackAnswers(left, right, self.node.how), self.joiner)
        result = rows.schema["row"].dataType
        schema = arrow_schema("joiner", result)
        if clash := set(schema.names) & set(self.left.key):
            raise TopologyError(f"joiner: column {min(clash)!r} is already there as the key; leave it out or give it an alias")
        rule = Verdict(RESOLVE_MAKES_ROWS, self._made if isinstance(self._made, str) else None)
        if isinstance(self._made, str):
            packed = rows.mapInArrow(PackJoined(schema, bucket_count(self._spark)), ENVELOPE)
            return _Joined(packed, b"", (schema,), result, rule)
        makes = pickled(Joined(AnswerRows(self._answers.of, self._made), schema))
        return _Joined(self._answered.envelopes, makes, (schema,), result, rule)
