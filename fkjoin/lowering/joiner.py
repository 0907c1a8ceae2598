"""The joiner, applied to answers between subscription and resolve."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fkjoin.analysis.attempt import letters
from fkjoin.analysis.bound import for_workers, schema_of
from fkjoin.analysis.joiner import BoundJoiner
from fkjoin.codec.vectors import Columns
from fkjoin.plan.physical import InWorkers, Physical, by_spark
from fkjoin.spark.frame import (
    DELETED,
    KEY,
    LEFT_GONE,
    PACKED_KEY,
    PROBLEM,
    ROW,
    SOURCE,
    TS,
    VERSION,
)
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.unpacking import UnpackAnswers


def evaluated(name: str, joiner: BoundJoiner) -> Columns | str:
    """The joiner of the join ``name`` for workers; or why Spark has to evaluate it."""
    if joiner.bound is None:
        return "the joiner is a function"
    kinds = schema_of(joiner.bound)
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        return "its one column is a struct, and may be null"
    columns = dict(zip(kinds.names, joiner.bound, strict=True))
    return for_workers(columns, f"joiner of {name}") or "the joiner is left to Spark"


@dataclass(frozen=True)
class Joining:
    """The making of joined rows of answers, and the fate of answers on which the joiner throws."""

    name: str
    """The join's."""
    joiner: BoundJoiner

    def joined(self, answers: Physical, unpack: UnpackAnswers) -> Physical:
        """Answers with the joiner's struct ``row``, or one of both rows; null without a result.

        With a ``problem`` where the joiner throws, and, of answers that have their keys' columns, a
        ``letter``: why it does.  ``on_error="fail"`` needs these columns.
        """
        named = unpack.named is not None
        unpacked = InWorkers(answers, unpack, spark_schema(unpack.schema))
        return by_spark(lambda frame: self._with_rows(frame, named=named), unpacked)

    def _with_rows(self, answers: DataFrame, *, named: bool) -> DataFrame:
        tried = self.joiner.tried
        columns = ["key", "version", "ts", "gone"]
        if named:
            columns = ["named", "left", "right", *columns]
        problem = F.lit(None).cast("string") if tried.problem is None else tried.problem
        letter = []
        if named and tried.reason is not None:
            letter = [tried.reason.alias("letter")]
        row = F.when(F.col("matched"), self.joiner.row).alias("row")
        rows = self.joiner.on(answers)
        return rows.select(*columns, row, problem.alias("problem"), *letter, "counter", "count")

    def before_resolve(self, answers: Physical, unpack: UnpackAnswers) -> Physical:
        """The joined rows before resolve: a table's rows with ``PACKED_KEY`` and ``LEFT_GONE``.

        ``unpack`` names the key.
        """
        return by_spark(_as_frame, self.joined(answers, unpack))

    def letters(self, answers: Physical, unpack: UnpackAnswers) -> tuple[Physical, ...]:
        """The rows that dead letters come from, of answers on which the joiner throws.

        ``unpack`` names the key.
        """
        if self.joiner.tried.reason is None:
            return ()
        return (by_spark(self._letters, self.joined(answers, unpack)),)

    def _letters(self, joined: DataFrame) -> DataFrame:
        rows = joined.select(F.col("named").alias(KEY), "left", "right", "letter")
        return letters(rows, F.col("letter"), self.name, F.struct("left", "right"))


def _as_frame(joined: DataFrame) -> DataFrame:
    row = F.col("row")
    return joined.select(
        F.col("named").alias(KEY),
        row.alias(ROW),
        row.isNull().alias(DELETED),
        F.col("version").alias(VERSION),
        F.lit(None).cast("binary").alias(SOURCE),
        F.col("ts").alias(TS),
        F.col("problem").alias(PROBLEM),
        F.col("key").alias(PACKED_KEY),
        F.col("gone").alias(LEFT_GONE),
    )
