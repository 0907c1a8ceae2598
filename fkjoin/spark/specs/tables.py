"""The stages of aggregates, of flat maps, of tables put together, of events, and of periodic emission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.messages import ANSWER, EVENT, GROUPED, JOINED, NUMBERED, RESULT
from fkjoin.folds.cogrouped import CoFold, numbered
from fkjoin.folds.fold import Fold
from fkjoin.spark.specs import spec
from fkjoin.spark.specs.spec import ByRow, Messages, StageSpec
from fkjoin.stages import Counters, How, aggregate, close, enrich, merge, owners, pace, regroup, spread
from fkjoin.stages.answer_rows import ContributeRows
from fkjoin.stages.close import Closing, late
from fkjoin.stages.contribute import Contribute
from fkjoin.stages.time_windows import TimeWindows
from fkjoin.state import Store


@dataclass(frozen=True, kw_only=True)
class RegroupSpec(ByRow, StageSpec):
    """regroup: a table's changes become changes of what its rows contribute to groups."""

    stage = "regroup"
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""
    in_order: bool = False
    every: bool = False
    from_answers: Contribute | ContributeRows | None = None
    """Function that makes the contributions of a join's answers, where those come."""
    number: int | None = None
    """Number of the cogroup's table that the rows are of; None where its aggregate is of one table."""
    windows: TimeWindows | None = None
    """The windows that groups are of; None where they are not."""
    letters: bool = False
    """Pass on rows that are set aside, for dead letters."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (JOINED,) if self.from_answers is None else (ANSWER,)

    @property
    def part_bytes(self) -> int | None:
        return spec.PART_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        changed = regroup(
            self._rows(JOINED, self.from_answers, messages, count),
            store,
            count,
            every=self.every,
            as_read=self.as_read,
            in_order=self.in_order,
            windows=self.windows,
            letters=self.letters,
            **self._times(messages),
        )
        yield changed if self.number is None else numbered(changed, self.number)


@dataclass(frozen=True, kw_only=True)
class AggregateSpec(StageSpec):
    """aggregate: contributions become changes of a row for each group."""

    stage = "aggregate"
    fold: Fold | CoFold
    in_order: bool = False
    """regroup is in the same query, so that each change comes once."""
    every: bool = False

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (GROUPED,)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield aggregate(
            messages.take(GROUPED),
            store,
            count,
            self.fold,
            source=versions.identity(f"aggregate {self.state.operator}"),
            every=self.every,
            guarded=not self.in_order,
            **self._times(messages),
        )


@dataclass(frozen=True, kw_only=True)
class CloseSpec(StageSpec):
    """close: contributions to windows become a row for each window, when it closes; regroup is always in the same query."""

    stage = "close"
    fold: Fold
    closing: Closing
    letters: bool = False
    """Pass on the changes that are late, for dead letters, and nothing else."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (GROUPED,)

    @property
    def highwater_tags(self) -> bytes:
        return b""

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        grouped, arrivals = messages.take(GROUPED), messages.arrivals
        if self.letters:
            yield late(grouped, arrivals, store, self.closing)
            return
        source = versions.identity(f"aggregate {self.state.operator}")
        yield from close(
            grouped, arrivals, store, count, self.fold, closing=self.closing, source=source, now_ms=messages.now_ms
        )


@dataclass(frozen=True, kw_only=True)
class SpreadSpec(ByRow, StageSpec):
    """spread: a table's changes become changes of the rows that its rows make."""

    stage = "spread"
    as_read: bool = False
    """The rows come as a source has them; no operator before this one has dropped stale ones."""
    in_order: bool = False
    every: bool = False

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (JOINED,)

    @property
    def part_bytes(self) -> int | None:
        return spec.PART_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        rows, how = messages.take(JOINED), self._times(messages)
        yield spread(rows, store, count, every=self.every, as_read=self.as_read, in_order=self.in_order, **how)


@dataclass(frozen=True, kw_only=True)
class OwnersSpec(StageSpec):
    """owners: the rows that rows make under one key become the table's; spread is always in the same query."""

    stage = "owners"
    every: bool = False

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (GROUPED,)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        source, how = versions.identity(f"flat map {self.state.operator}"), self._times(messages)
        yield owners(messages.take(GROUPED), store, count, source=source, every=self.every, **how)


@dataclass(frozen=True, kw_only=True)
class MergeSpec(StageSpec):
    """merge: changes of several tables become those of one."""

    stage = "merge"
    in_order: tuple[bool, ...]
    """True for each table that an operator of the query makes."""
    every: bool = False
    origins: tuple[int, ...] = ()
    """See ``merge``."""

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (NUMBERED,)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield merge(
            messages.take(NUMBERED),
            store,
            count,
            len(self.in_order),
            source=versions.identity(f"merge {self.state.operator}"),
            every=self.every,
            in_order=self.in_order,
            origins=self.origins,
            **self._times(messages),
        )


@dataclass(frozen=True, kw_only=True)
class EnrichSpec(ByRow, StageSpec):
    """enrich: events are joined with a table's rows, each once."""

    stage = "enrich"
    how: How
    in_order: bool = False

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return JOINED, EVENT

    @property
    def part_bytes(self) -> int | None:
        return spec.PART_BYTES

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        rows, events = messages.take(JOINED), messages.take(EVENT)
        yield enrich(rows, events, store, count, how=self.how, in_order=self.in_order, **self._times(messages))


@dataclass(frozen=True, kw_only=True)
class PaceSpec(StageSpec):
    """pace: changes wait until an interval is over."""

    stage = "pace"

    @property
    def takes(self) -> tuple[pa.Schema, ...]:
        return (RESULT,)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        yield from pace(messages.take(RESULT), store, count, over=messages.arrivals.tick_ms is not None)
