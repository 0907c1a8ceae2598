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
from fkjoin.spark.frame import DELETED, KEY, LEFT_GONE, PACKED_KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.unpacking import UnpackAnswers


def evaluated(name: str, joiner: BoundJoiner) -> Columns | str:
    """The joiner of the join ``name`` for workers; or why Spark has to evaluate it."""
    if joiner.bound is None:
        return "the joiner is a function"
    kinds = schema_of(joiner.bound)
    if len(kinds) == 1 and isinstance(kinds[0].dataType, StructType):
        return "its one column is a struct, and may be null"
    columns = for_workers(dict(zip(kinds.names, joiner.bound, strict=True)), f"joiner of {name}")
    return columns or "the joiner is left to Spark"


@dataclass(frozen=True)
class Joining:
    """The making of joined rows of answers, and the fate of an answer on which the joiner throws."""

    name: str
    """The join's."""
    joiner: BoundJoiner

    def joined(self, answers: DataFrame, unpack: UnpackAnswers) -> DataFrame:
        """Answers with the joiner's struct ``row``, or one of both rows; null where there is no result.

        With a ``problem`` where the joiner throws, and, of answers that have their keys' columns, a ``letter``: why it does.
        ``on_error="fail"`` needs these columns.
        """
        bound = self.joiner
        rows = bound.on(answers.mapInArrow(unpack, spark_schema(unpack.schema)))
        named = [] if unpack.named is None else ["named"]
        keep = [*named, *(["left", "right"] if named else []), "key", "version", "ts", "gone"]
        problem = F.lit(None).cast("string") if bound.tried.problem is None else bound.tried.problem
        letter = [bound.tried.reason.alias("letter")] if named and bound.tried.reason is not None else []
        row = F.when(F.col("matched"), bound.row).alias("row")
        return rows.select(*keep, row, problem.alias("problem"), *letter, "counter", "count")

    def before_resolve(self, answers: DataFrame, unpack: UnpackAnswers) -> DataFrame:
        """The joined rows before resolve: a table's frame with ``PACKED_KEY`` and ``LEFT_GONE``; ``unpack`` names the key."""
        row = F.col("row")
        return self.joined(answers, unpack).select(
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

    def letters(self, answers: DataFrame, unpack: UnpackAnswers) -> tuple[DataFrame, ...]:
        """The frame that dead letters come from, of answers on which the joiner throws; ``unpack`` names the key."""
        if self.joiner.tried.reason is None:
            return ()
        rows = self.joined(answers, unpack).select(F.col("named").alias(KEY), "left", "right", "letter")
        return (letters(rows, F.col("letter"), self.name, F.struct("left", "right")),)
