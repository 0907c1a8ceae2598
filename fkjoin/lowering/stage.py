"""What joins and aggregates share: stages on a streaming DataFrame, their counters, and the frame of a table that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from fkjoin.codec.rows import Path
from fkjoin.errors import TopologyError
from fkjoin.folds.fold import Fold
from fkjoin.plan.nodes import Node, join_below, read_from
from fkjoin.sessions.settings import bucket_count, index_dir, retention_ms
from fkjoin.spark.frame import DELETED, KEY, NUMBERS, OPERATION, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.identity import identity_text
from fkjoin.spark.json_lines import plain_path
from fkjoin.spark.operator import ENVELOPE, StageName, StageProcessor, StageSpec
from fkjoin.spark.schemas import spark_schema
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import counters
from fkjoin.stages.answer_rows import RowMaker
from fkjoin.stages.contribute import Fields, Place

Deployment = Literal["fused", "staged"]
"""All stages in one query, or each one a query of its own, with topics between them."""


class Kept(NamedTuple):
    """What is kept of both rows of a join."""

    left: pa.Schema
    right: pa.Schema


@dataclass(frozen=True)
class Answers:
    """A join's answers before resolve, where its rows are fields of its inputs' rows."""

    name: str
    """What they are counted as in the progress: the join's name is that of what resolve sends."""
    envelopes: DataFrame
    of: Fields
    fields: Mapping[str, Place]
    """What the columns of a joined row are, and those of its key."""
    stages: tuple[StageName, ...]
    """Whose counters come with the answers."""
    less: Callable[[Kept, str], Answers] | None = None
    """Make them with no more than that of both rows, for a reader of that name; None where the join can only be made whole."""

    @cached_property
    def counted(self) -> DataFrame:
        """The answers alone."""
        return counted(self.envelopes, self.name, *self.stages).where("counter is null")

    def places(self, given: Iterable[Any], row: pa.Schema) -> list[Place | None]:
        """Where each of what is given over the columns of row and key is; None where it is more than a field."""
        paths = (plain_path(item, self._visible(row)) for item in given)
        places = (None if path is None else self._place(path) for path in paths)
        return [place if place is not None and place[1] else None for place in places]

    def _visible(self, row: pa.Schema) -> pa.Schema:
        return pa.schema([*row, *(field for field in self.of.key if field.name not in row.names)])

    def _place(self, path: Path) -> Place | None:
        """Where a field of a joined row is, or with an empty path one of both rows; None if there is no such field."""
        if path[0] not in self.fields:
            return None
        side, above = self.fields[path[0]]
        return side, (*above, *path[1:])


@dataclass(frozen=True)
class Early:
    """The rows of a join, and of views of it, before resolve."""

    answers: Answers
    places: Callable[[Sequence[Path] | None], list[Place] | None]
    """What of the answers must be there for what is at paths of the rows (None: for all of them); None: everything."""
    frame: Callable[[Answers], DataFrame]
    """Make a frame of the rows, by Spark: see ``before_resolve``."""
    made: RowMaker | str
    """How workers make rows of answers; or why Spark has to."""


@dataclass(frozen=True)
class Narrow:
    """Joins that are one, with fewer columns."""

    possible: Callable[[Sequence[Path]], bool]
    """Whether there are fewer if only what is at paths of the rows is wanted."""
    frame: Callable[[Sequence[Path], str], DataFrame]
    """A frame of such rows, for a reader of that name."""


@dataclass(frozen=True)
class Contributions:
    """What the rows of an aggregate's table contribute, for a cogroup to fold them itself."""

    regrouped: Callable[[int, bool], DataFrame]
    """Envelopes of ``GROUPED``, as those of the table with that number; true: also of updates that contribute what they did."""
    fold: Fold


def stage_spec(
    spark: SparkSession, kind: StageName, operator: str, bound_to: Mapping[str, Any], about: Mapping[str, Any], **more: Any
) -> StageSpec:
    """A stage of the operator with that name, under the session's settings.

    ``bound_to``: facts that its checkpoint is bound to, besides name, stage and buckets; ``about``: what is kept for whoever
    reads the state, types among it.  ``more``: of ``StageSpec``.
    """
    buckets = bucket_count(spark)
    facts = {"join": operator, "stage": kind, "buckets": buckets, **bound_to}
    kept = {name: json.loads(item.json()) if isinstance(item, DataType) else item for name, item in about.items()}
    return StageSpec(kind, operator, buckets, retention_ms(spark), index_dir(spark), identity_text(facts, kept), **more)


def let_through(node: Node) -> bool:
    """Whether changes of the node come to an operator in the order in which another operator of the query has let them through.

    Not of a source, nor of a staged join: its answers may be read in the place of its rows, and overtake each other in a topic.
    """
    join = join_below(node)
    return read_from(node) is None and (join is None or join.topics is None)


def made_by_operators(*nodes: Node) -> tuple[bool, ...]:
    """Which of the tables come as an operator of the query makes them: see ``let_through``."""
    return tuple(map(let_through, nodes))


def stage(rows: DataFrame, spec: StageSpec) -> DataFrame:
    """Envelopes through a stage."""
    return rows.groupBy("bucket").transformWithStateInPandas(StageProcessor(spec), ENVELOPE, "append", "None")


def counted(envelopes: DataFrame, name: str, *stages: StageName) -> DataFrame:
    """The envelopes; in the progress of the query, their counters summed up, and what else is said of the ``stages``."""
    counter, count = F.col("counter"), F.col("count")

    def total(item: str) -> Column:
        return F.sum(F.when(counter == item, count).otherwise(0)).alias(item)

    hot = counter.startswith(counters.HOT_KEY)
    about = [total(item) for item in (*counters.SIZES, *(f"{stage}-ms" for stage in stages))]
    about += [
        F.max(F.when(counter == counters.FAN_OUT, count)).alias(counters.FAN_OUT),
        F.max_by(F.when(hot, F.substr(counter, F.lit(len(counters.HOT_KEY) + 1))), F.when(hot, count)).alias("hot-key"),
    ]
    observed = envelopes.observe(metrics_name(name), *(total(item) for item in counters.ALL))
    return observed.observe(state_metrics_name(name), *about)


def metrics_name(operator: str) -> str:
    """Under which name an operator's counters stand in a query progress' ``observedMetrics``."""
    return f"fkjoin:{operator}"


def state_metrics_name(operator: str) -> str:
    """Under which name it says how large its state is, how long its stages took (ms of all tasks), and where it is hot."""
    return f"fkjoin-state:{operator}"


def frame_of(results: DataFrame, unpack: UnpackResults) -> DataFrame:
    """The frame of a table, from the last stage's results."""
    return results.mapInArrow(unpack, spark_schema(unpack.schema)).select(
        F.col("key").alias(KEY),
        F.col("row").alias(ROW),
        (F.col("operation") == "delete").alias(DELETED),
        F.col("version").alias(VERSION),
        F.lit(None).cast("binary").alias(SOURCE),
        F.col("ts").alias(TS),
        F.lit(None).cast("string").alias(PROBLEM),
        F.col("operation").alias(OPERATION),
        *(F.col(f"numbers_{name}").alias(f"{NUMBERS}{name}") for name, _ in unpack.versions),
    )


INTERNAL = {"key": KEY, "row": ROW, "deleted": DELETED, "version": VERSION, "source": SOURCE, "ts": TS, "problem": PROBLEM}


def packing_columns(**more: Column) -> list[Column]:
    """Columns of a table's frame under the names that packing knows them by; ``more`` come in the place of some, or after."""
    chosen = {outer: F.col(internal) for outer, internal in INTERNAL.items()} | more
    return [column.alias(outer) for outer, column in chosen.items()]


def pickled(given: object) -> bytes:
    """What a stage needs to know, for a ``StageSpec``."""
    return cloudpickle.dumps(given)  # type: ignore[no-untyped-call]


def refuse_same_name(name: str, nodes: Iterable[Node], what: str) -> None:
    """``TopologyError`` if ``name`` already names something below the new operator."""
    for node in nodes:
        if node.name == name:
            raise TopologyError(f"name: {name!r} already names an input of this {what}; choose another")
        refuse_same_name(name, node.inputs, what)


def once(frames: Iterable[DataFrame]) -> tuple[DataFrame, ...]:
    """The frames, each once: several tables may be made of the same."""
    found: list[DataFrame] = []
    for frame in frames:
        if all(frame is not known for known in found):
            found.append(frame)
    return tuple(found)
