"""Queries that write a table's changes, batch by batch, to a place or to several.

Of several, a batch's results are kept until all have them, so that the table is worked out once;
each place has a batch before the next one begins with it.  A batch that fails in one of them is
repeated in all.

A place that comes later would lack the rows from before: the checkpoint's document lists the places
that it was begun with, and another one is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.batch_log import BatchLog
from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.claim import claimed, require_held, start_claimed
from fkjoin.checkpoint.damage import RESTORE
from fkjoin.checkpoint.files import has_begun, query_id
from fkjoin.checkpoint.indexes import owner
from fkjoin.checkpoint.query import Query
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.kafka.internal import InternalTopics, require_first_records
from fkjoin.lowering.table_plan import Results, TablePlan
from fkjoin.plan.base import unkept
from fkjoin.sinks.ledger import require_together, restore, written_to
from fkjoin.spark.frame import RAW
from fkjoin.spark.query_start import starting


@dataclass(frozen=True)
class Batch:
    """A micro-batch of a table's changes."""

    results: Results
    packed: DataFrame
    """The table's encoded results of the batch; of a table without any, its frame."""
    began_ms: int | None = None
    """Milliseconds since 1970 that tell the batch from another one of its number."""
    previous_ms: int | None = None
    """The time of the batch before it, if this run of the query knows it."""

    @cached_property
    def frame(self) -> DataFrame:
        """The table's frame, with the rows of the batch."""
        return self.results.frame(self.packed)

    @property
    def changes(self) -> DataFrame:
        """See ``Table.changes``."""
        return self.results.changes(self.frame)


Write = Callable[[Batch, str, int], None]
"""Write a batch's changes, with the name by which the place may remember it, and its number.

In a Spark Connect session it runs at the server, so it holds no frame and no session.
"""


AsBegun = Callable[[str], tuple[TablePlan, Begun]]
"""Plan a table as the query of a checkpoint reads it, and return also what that is begun with."""


class Sink(Protocol):
    """A place that a table's changes can be written to."""

    @property
    def place(self) -> str:
        """The name of the place in errors.

        Returns
        -------
        str
        """

    def begin(self, table: TablePlan) -> Write:
        """Check that the table can be written there, and make the target.

        Parameters
        ----------
        table : TablePlan
            The plan of the table.

        Returns
        -------
        callable
            A function of (batch, query, number) that writes a batch's changes.

        Raises
        ------
        TopologyError
            If such a table cannot be written there.
        FkJoinError
            If the place cannot be written to.
        """


@runtime_checkable
class Checks(Protocol):
    """A sink that can say what is wrong without making anything."""

    def check(self, table: TablePlan) -> None:
        """Raise what ``begin`` would, trying once; nothing is made or changed."""


def start(
    spark: SparkSession, table: AsBegun, sink: Sink, *, checkpoint: str, **query: Any
) -> Query:
    """Start a query that writes the table's changes to one place; ``query``: see ``started``."""
    require_one(spark, checkpoint)
    return _start(spark, table, {"": sink}, checkpoint, query)


def start_several(
    spark: SparkSession, table: AsBegun, sinks: Sequence[Sink], *, checkpoint: str, **query: Any
) -> Query:
    """Start a query that writes a table's changes to several places in order; see ``Table.to``."""
    _require_sinks(sinks)
    _require_known_places(spark, checkpoint, sinks)
    return _start(spark, table, _by_place(sinks), checkpoint, query)


def _start(
    spark: SparkSession,
    table: AsBegun,
    sinks: Mapping[str, Sink],
    checkpoint: str,
    query: Mapping[str, Any],
) -> Query:
    @starting()
    def begin() -> StreamingQuery:
        require_together(spark, checkpoint, sinks)
        begun_as, begun = table(checkpoint)
        require_as_begun(begun_as, begun, sinks, checkpoint)
        writes = {name: (sink.place, sink.begin(begun_as)) for name, sink in sinks.items()}
        begun.sinks = None if "" in sinks else [sink.place for sink in sinks.values()]
        begun.write(spark, checkpoint)
        return started(begun_as, functools.partial(_write_all, writes), checkpoint, **query)

    return start_claimed(spark, checkpoint, begin)


def require_as_begun(
    table: TablePlan, begun: Begun, sinks: Mapping[str, Any], checkpoint: str
) -> None:
    """Compare a table with its checkpoint and its sinks, and note in ``begun`` what is new.

    ``sinks``: as for ``require_together``.
    """
    for sink in sinks.values():
        # Its place has the batches of one query, and nothing else; the table is not read there.
        if hasattr(sink, "require_alone"):
            sink.require_alone(table, checkpoint)
    written = functools.partial(written_to, table.spark, checkpoint, sinks)
    tables = unkept(table.planned.node)
    require_begun_with(begun, table.spark, checkpoint, table.top, written=written, tables=tables)


def restore_places(
    spark: SparkSession, table: AsBegun, sinks: Sequence[Sink], checkpoint: str
) -> list[str]:
    """Make places what the state of a checkpoint is; the names of those that were not.

    See ``Table.restore``.
    """
    _require_sinks(sinks)
    if not has_begun(spark, checkpoint):
        raise FkJoinError(
            f"checkpoint: {checkpoint} belongs to no query: give the checkpoint of the query "
            "that writes to the target"
        )
    shared = Begun.of(spark, checkpoint).sinks is not None
    if shared:
        _require_known_places(spark, checkpoint, sinks)
    elif len(sinks) > 1:
        raise TopologyError(f"sinks: the query of {checkpoint} has one; give that one")
    with claimed(spark, checkpoint) as held:
        if running := [query.name for query in held.queries if query.isActive]:
            raise FkJoinError(
                f"checkpoint: {checkpoint} is in use by query {running[0]} of this session: "
                "stop that one first"
            )
        begun_as, begun = table(checkpoint)
        require_as_begun(begun_as, begun, {}, checkpoint)
        return restore(begun_as, checkpoint, _by_place(sinks) if shared else {"": sinks[0]})


def _by_place(sinks: Sequence[Sink]) -> dict[str, Sink]:
    """The sinks of a query with several, by what they add to its id to remember its batches."""
    return {f" {sink.place}": sink for sink in sinks}


def _named(target: str, write: Write, batch: Batch, query: str, number: int) -> None:
    """Write a batch; an error of the driver's own names the sink.

    Spark works the batch out meanwhile, so that an error of Spark's may be of any operator.
    """
    try:
        write(batch, query, number)
    except (FkJoinError, PySparkException, Py4JError):
        raise
    except Exception as error:
        raise FkJoinError(f"sink {target}: {type(error).__name__}: {error}") from error


def _write_all(
    writes: Mapping[str, tuple[str, Write]], batch: Batch, query: str, number: int
) -> None:
    """Write a batch to each place; ``writes``: by what is added to the query's id there."""
    if len(writes) > 1:
        batch.packed.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        for name, (target, write) in writes.items():
            _named(target, write, batch, f"{query}{name}", number)
    finally:
        if len(writes) > 1:
            batch.packed.unpersist()


def require_one(spark: SparkSession, checkpoint: str) -> None:
    """``TopologyError`` if the query has several sinks: the others would miss batches."""
    if (places := Begun.of(spark, checkpoint).sinks) is not None:
        raise TopologyError(
            f"checkpoint: {checkpoint} belongs to a query that writes to {', '.join(places)}: "
            "continue with Table.to, which may leave some of them out, or give another checkpoint"
        )


def make_topics(table: TablePlan, checkpoint: str) -> None:
    """Create missing internal topics of the table; a new query needs their first records."""
    for topics in _internal_topics(table):
        topics.create()
    require_whole_topics(table, checkpoint)


def require_whole_topics(table: TablePlan, checkpoint: str) -> None:
    """Raise ``FkJoinError`` if the query is new, and an internal topic lost its first records."""
    for topics in _internal_topics(table):
        require_first_records(table.spark, checkpoint, topics.connection, topics.last)


def _internal_topics(table: TablePlan) -> list[InternalTopics]:
    return list({stage.topics.last: stage.topics for stage in table.stages}.values())


def _require_sinks(sinks: Sequence[Sink]) -> None:
    if not sinks:
        raise TopologyError("sinks: name one at least, such as fkjoin.sinks.Parquet(path)")
    for sink in sinks:
        if not hasattr(sink, "begin"):
            raise TopologyError(
                f"sinks: a {type(sink).__name__} is not a sink; give sinks of fkjoin.sinks, such "
                "as Parquet(path)"
            )
    places = [sink.place for sink in sinks]
    if twice := [name for name in places if places.count(name) > 1]:
        raise TopologyError(f"sinks: {twice[0]} is given twice; each place once")


def _require_known_places(spark: SparkSession, checkpoint: str, sinks: Sequence[Sink]) -> None:
    known = Begun.of(spark, checkpoint).sinks
    if known is None:
        if has_begun(spark, checkpoint):
            raise TopologyError(
                f"checkpoint: {checkpoint} belongs to a query with one sink: continue with "
                "to_kafka, to_parquet, to_postgres, to_delta, to_iceberg or to_sink, or give "
                "another checkpoint"
            )
        return
    if later := [sink.place for sink in sinks if sink.place not in known]:
        raise TopologyError(
            f"sinks: {later[0]} is not one of the sinks that {checkpoint} was last started with "
            f"({', '.join(known)}), so it would lack the rows from before: write to it in a query "
            "with a checkpoint of its own"
        )


def _writing(
    results: Results, write: Write, checkpoint: str, previous_ms: int | None
) -> Callable[[DataFrame, int], None]:
    """Give a query's batches to the function that writes them.

    ``previous_ms``: when this run's last batch began: by the next one another run may have it.
    """
    query = ""

    def write_batch(batch: DataFrame, number: int) -> None:
        nonlocal query, previous_ms
        spark = batch.sparkSession
        # The checkpoint has the query's id from the first batch on.
        query = query or query_id(spark, checkpoint)
        began = BatchLog(spark, checkpoint).mark(number).began_ms
        if began is None:  # a place could not recognize a batch without a time
            raise FkJoinError(
                f"checkpoint: {checkpoint} does not say when batch {number} began: {RESTORE}"
            )
        require_held(spark, checkpoint)
        write(Batch(results, batch, began, previous_ms), query, number)
        require_held(spark, checkpoint)
        previous_ms = began

    return write_batch


def started(
    table: TablePlan,
    write: Write,
    checkpoint: str,
    *,
    trigger: Mapping[str, Any] | None,
    query_name: str | None,
) -> StreamingQuery:
    """The query that writes the table's changes, started."""
    make_topics(table, checkpoint)
    frame = table.frame
    if table.planned.connection is None:
        # What dead letters say of changes is long, and sinks read it of topics alone.
        frame = frame.drop(RAW)

    log = BatchLog(table.spark, checkpoint)
    write_batch = _writing(table.results, write, checkpoint, log.mark(log.done).began_ms)
    writer = frame.writeStream.foreachBatch(write_batch)
    writer = writer.option("checkpointLocation", checkpoint).queryName(query_name or table.name)
    with owner(table.spark, checkpoint):
        return (writer.trigger(**trigger) if trigger else writer).start()
