"""A query without Spark's streaming: its plan, run part by part over batches that are given, with stores in memory.

The plan is the one that Spark has analyzed for the query.  Its stages, packers and unpackers are the objects that Spark would
send to workers.  Only what reads a source is another: rows come from the caller.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned, SourceBound
from fkjoin.checkpoint.begun_with import spec_of
from fkjoin.checkpoint.stores import Identified
from fkjoin.codec import versions
from fkjoin.errors import TopologyError
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.planner import lower
from fkjoin.plan.nodes import Source
from fkjoin.spark.clock import Clock
from fkjoin.spark.frame import CHAINS, DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.spark.identity import read_identity
from fkjoin.spark.schemas import IN_UTC, nullable
from fkjoin.spark.specs import StageSpec
from fkjoin.spark.unpacking import UnpackResults
from fkjoin.stages import Counters, counters
from fkjoin.stages.counters import metrics_name
from fkjoin.state import MemoryStore
from fkjoin.testing.plan_parts import Leaf, Observed, PlanPart, Stateful, joined, parts_of

_PATH = f"{tempfile.gettempdir()}/fkjoin-driver"
"""Beginning of the paths that stand for inputs in plans; nothing is read there."""
_FORMAT = "parquet"
_PARTITION = versions.PLACE[1]
_COUNTED = {*counters.ALL, *(item for items in counters.OF_STAGES.values() for item in items)}


@dataclass(frozen=True, eq=False)
class Input:
    """A source that the caller feeds."""

    planned: Planned
    frame: DataFrame
    """Streaming DataFrame that stands in its place."""

    @property
    def node(self) -> Source:
        assert isinstance(self.planned.node, Source)
        return self.planned.node

    @cached_property
    def schema(self) -> pa.Schema:
        return to_arrow_schema(cast(StructType, nullable(self.frame.schema)), **IN_UTC)

    def batch(self, changes: Sequence[Fed]) -> pa.RecordBatch:
        """The changes as rows of the frame."""
        node, fields = self.node, self.schema
        identity = versions.identity(node.log or node.topic or node.name)
        titles = [field.name for field in fields.field(VERSION).type]
        columns: dict[str, list[Any]] = {
            KEY: [change.key for change in changes],
            ROW: [change.row for change in changes],
            DELETED: [change.row is None for change in changes],
            VERSION: [{title: 0 if title == _PARTITION else change.version for title in titles} for change in changes],
            SOURCE: [identity] * len(changes),
            TS: [change.ts for change in changes],
            PROBLEM: [change.problem for change in changes],
            RAW: [{"table": node.name, "key": change.raw[0], "value": change.raw[1]} for change in changes],
        }
        made = [pa.array(columns[field.name], field.type) for field in fields]
        return pa.record_batch(made, names=fields.names)


class Fed(NamedTuple):
    """A change of a source's row."""

    key: dict[str, Any] | None
    """None where the row cannot be used, which has a ``problem``."""
    row: dict[str, Any] | None
    version: int
    ts: int | None
    problem: str | None
    raw: tuple[bytes | None, bytes | None]
    """Key and value of the dead letter that the row would be."""


class DrivenBatch(NamedTuple):
    """One batch of a query."""

    rows: Mapping[str, pa.RecordBatch]
    """Rows of inputs' frames, by the inputs' names."""
    now_ms: int
    before_ms: int
    """The time of the batch before it."""

    def tick(self, interval_ms: int) -> int | None:
        """Return the last end of an interval since the batch before; None if none was."""
        end = self.now_ms - self.now_ms % interval_ms
        return end if end > self.before_ms else None


def fed(table: Planned) -> tuple[Lowered, dict[str, Input]]:
    """The table, lowered over inputs that the caller feeds, and these by their names.

    Raises ``TopologyError`` for a table whose operators are staged, and for two sources of one name.
    """
    inputs: dict[str, Input] = {}
    lowered = lower(_fed(table, inputs, {}))
    if lowered.stages:
        raise TopologyError(f"table: {lowered.stages[0].name} is a query of its own, and topics lie between it and the others")
    return lowered, inputs


def _fed(table: Planned, inputs: dict[str, Input], done: dict[int, Planned]) -> Planned:
    """The table over inputs; what stands in it twice stays one."""
    if id(table) in done:
        return done[id(table)]
    if isinstance(table.bound, SourceBound):
        if table.name in inputs:
            raise TopologyError(f"table: two of its sources are called {table.name}, and inputs go by their names")
        if not isinstance(table.bound.frame.schema[VERSION].dataType, StructType):
            raise TopologyError(f"table: {table.name} takes its versions from headers of records (roots=), which have no input")
        kind = StructType([field for field in table.bound.frame.schema if field.name != CHAINS])
        frame = _stream(table.spark, len(inputs), kind)
        letters = (frame.select(F.col(PROBLEM), F.col(RAW)),) if table.bound.dead and RAW in frame.columns else ()
        made = replace(table, bound=SourceBound(frame, letters))
        inputs[table.name] = Input(made, frame)
    else:
        made = replace(table, inputs=tuple(_fed(one, inputs, done) for one in table.inputs))
    done[id(table)] = made
    return made


def _stream(spark: SparkSession, number: int, kind: StructType) -> DataFrame:
    """A streaming DataFrame that is never read; a glob need not be there."""
    return spark.readStream.format(_FORMAT).schema(kind).load(f"{_PATH}/{number}/*")


class LostError(Exception):
    """A batch was lost, as it should be."""


@dataclass
class DrivenStage(Identified):
    """A stage with its stores, a bucket's each."""

    spec: StageSpec
    stores: dict[int, MemoryStore] = field(default_factory=dict)
    checkpoint = "the driver"

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.spec.state.identity.encode())

    def over(self, envelopes: pa.RecordBatch, now_ms: int, schema: pa.Schema) -> pa.RecordBatch:
        """Envelopes in, envelopes out, as the stage's operator has them in a batch."""
        from fkjoin.spark.bucket_run import InMemoryRun

        frame = pd.DataFrame(dict(zip(schema.names, (column.to_pylist() for column in envelopes.columns), strict=True)))
        sent: list[pd.DataFrame] = []
        for bucket in sorted(map(int, frame["bucket"].unique())):
            store = self.stores.setdefault(bucket, MemoryStore())
            rows = frame[frame["bucket"] == bucket]
            sent += InMemoryRun(self.spec, bucket, store, now_ms).process(iter([rows]))
        return joined([_envelopes(one, schema) for one in sent], schema)


def _envelopes(frame: pd.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(frame[name].to_numpy(), kind.type, from_pandas=True) for name, kind in zip(frame, schema, strict=True)]
    return pa.record_batch(columns, names=schema.names)


class DrivenQuery:
    """The query that keeps a frame up to date."""

    def __init__(self, frame: DataFrame, inputs: Mapping[str, Input], unpack: UnpackResults | None = None) -> None:
        self._unpack = unpack
        self._names = {f"{_PATH}/{number}/*": name for number, name in enumerate(inputs)}
        self._top = parts_of(frame)
        self._stages: dict[int, DrivenStage] = {}
        for part in _all(self._top):
            if isinstance(part, Stateful):
                self._stages[id(part)] = DrivenStage(_spec(part))
            elif isinstance(part, Leaf):
                self._require_known(part)
        self.count: Counters = Counters()

    @property
    def stages(self) -> list[DrivenStage]:
        """The stages, each after those that it reads."""
        return list(self._stages.values())

    def clear(self) -> None:
        """Forget all state."""
        for stage in self.stages:
            stage.stores = {}
        self.count = Counters()

    def run(self, batch: DrivenBatch) -> pa.RecordBatch:
        """Run a batch; return the rows of the frame, or what ``unpack`` makes of them."""
        return self._run(batch, len(self._stages))

    def lose(self, batch: DrivenBatch) -> None:
        """Run a batch up to each stage in turn, and lose all that it did."""
        for stages in range(1, len(self._stages) + 1):
            kept = copy.deepcopy([stage.stores for stage in self.stages]), self.count.copy()
            self._run(batch, stages)
            for stage, stores in zip(self.stages, kept[0], strict=True):
                stage.stores = stores
            self.count = kept[1]

    def _run(self, batch: DrivenBatch, stages: int) -> pa.RecordBatch:
        done: list[DrivenStage] = []
        try:
            found = self._rows(self._top, batch, done, stages)
        except LostError:
            return joined([], self._top.schema)
        return found if self._unpack is None else joined(list(self._unpack(iter([found]))), self._unpack.schema)

    def _rows(self, part: PlanPart, batch: DrivenBatch, done: list[DrivenStage], stages: int) -> pa.RecordBatch:
        below = [self._rows(one, batch, done, stages) for one in part.below]
        if isinstance(part, Leaf):
            return self._read(part, batch)
        if isinstance(part, Stateful):
            stage = self._stages[id(part)]
            columns = below[0].columns[-len(part.schema) :]  # the keys of the grouping come before them
            found = stage.over(pa.record_batch(columns, names=part.schema.names), batch.now_ms, part.schema)
            done.append(stage)
            if len(done) == stages < len(self._stages):
                raise LostError
            return found
        if isinstance(part, Observed):
            if part.name.startswith(metrics_name("")):
                self._count(below[0])
            return below[0]
        assert callable(part)
        made: pa.RecordBatch = part(*below)
        return made

    def _read(self, leaf: Leaf, batch: DrivenBatch) -> pa.RecordBatch:
        """Rows of a source.  A new kind of source is read here, and known to ``_require_known``."""
        if leaf.source == Clock.name():
            tick = batch.tick(int(leaf.options["interval_ms"]))
            return pa.record_batch([pa.array([] if tick is None else [tick], pa.int64())], names=leaf.schema.names)
        rows = batch.rows.get(self._names[leaf.options["path"]])
        return joined([] if rows is None else [rows], leaf.schema)

    def _require_known(self, leaf: Leaf) -> None:
        if leaf.source != Clock.name() and leaf.options.get("path") not in self._names:
            raise TopologyError(
                f"table: its query reads a source of format {leaf.source} that is none of its tables, and has no input"
            )

    def _count(self, envelopes: pa.RecordBatch) -> None:
        named = zip(envelopes.column("counter").to_pylist(), envelopes.column("count").to_pylist(), strict=True)
        for name, count in named:
            if name in _COUNTED:
                self.count[name] += count


def _all(part: PlanPart) -> Iterator[PlanPart]:
    """The parts of a plan, each after those that it reads."""
    for below in part.below:
        yield from _all(below)
    yield part


def _spec(part: Stateful) -> StageSpec:
    spec = spec_of(part.function)
    if spec is None:
        raise TopologyError("table: its query has a stateful operator that is not fkjoin's, and only Spark runs that")
    return spec
