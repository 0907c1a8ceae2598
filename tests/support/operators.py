"""Operators of each kind with their stores and files, random changes, and the table that a plain recomputation has."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import GROUPED, JOINED, LEFT, RESULT, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.folds.cogrouped import CoFold
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.spark.specs import (
    AggregateSpec,
    ChildrenSpec,
    CloseSpec,
    EnrichSpec,
    GatherSpec,
    MergeSpec,
    MultiSubscriptionSpec,
    OwnersSpec,
    PaceSpec,
    PairSpec,
    RegroupSpec,
    RekeySpec,
    ResolveSpec,
    ScatterSpec,
    SpreadSpec,
    StageSpec,
    StateSpec,
    SubscriptionSpec,
)
from fkjoin.stages.close import Closing
from fkjoin.stages.regroup import contributions
from fkjoin.stages.stream_time import CAME
from fkjoin.stages.time_windows import TimeWindows
from tests.support import child_rows, enriching, flat_maps, grouping, merging, multi_join, oracle, pairing
from tests.support.engine import Engine, Envelopes
from tests.support.grouping import COLUMNS, VALUE, Grouping

SUMS = pa.schema([("n", pa.int64())])


class Operator(ABC):
    """An operator; an attempt at a batch is committed, or not."""

    table: Any
    """The table as a reader of the results has it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._buckets, self._validate = str(folder), rng.choice([1, 2, 4]), rng.random() < 0.3
        self.engines: list[Engine] = []

    def engine(self, *kinds: Callable[[StateSpec], StageSpec], name: str = "operator") -> Engine:
        """Stages in a row."""
        state = StateSpec(name, self._buckets, 60_000, self._folder, "{}", self._validate)
        self.engines.append(Engine([kind(state) for kind in kinds]))
        return self.engines[-1]

    @abstractmethod
    def change(self, rng: random.Random, version: int) -> Any:
        """A change at random."""

    @abstractmethod
    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        """An attempt at a batch; its results."""

    def commit(self) -> None:
        """Make the attempt's states durable."""
        for engine in self.engines:
            engine.commit()

    @abstractmethod
    def apply(self, results: pa.Table) -> None:
        """Bring the table up to date; a result that breaks the law of emission fails."""

    @abstractmethod
    def wanted(self, changes: Sequence[Any]) -> Any:
        """The table from nothing."""


class Join(Operator):
    """A join by foreign key, the results kept or not."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self.how: Any = rng.choice(["inner", "left"])
        kept = rng.random() < 0.5
        self._engine = self.engine(
            lambda state: RekeySpec(state=state),
            lambda state: SubscriptionSpec(state=state, in_order=True),
            lambda state: ResolveSpec(state=state, how=self.how, materialized=kept, in_order=True),
        )
        self.table: oracle.Joined = {}

    def change(self, rng: random.Random, version: int) -> oracle.Change:
        value, name = rng.choice([None, b"x", b"y", b"z" * rng.randrange(60)]), rng.choice([b"a", b"b", b"c"])
        if rng.random() < 0.3:
            return oracle.Change(False, name, value, version)
        return oracle.Change(True, b"%d" % rng.randrange(12), value, version, rng.choice([name, name, None]))

    def sides(self, changes: Sequence[Any]) -> tuple[Envelopes, Envelopes]:
        """Left and right changes."""
        left, right = (self._engine.packed(oracle.messages(changes, left=left)) for left in (True, False))
        return left, right

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        left, right = self.sides(changes)
        return self._engine.attempted({"rekey": left, "subscription": right})

    def apply(self, results: pa.Table) -> None:
        oracle.apply(results, self.table)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return oracle.batch_join(changes, self.how)


class PacedJoin(Join):
    """A join whose results wait until an interval is over."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self._pace, self._rng, self._over, self._taken = self.engine(lambda state: PaceSpec(state=state)), rng, False, 0

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        left, right = self.sides(changes)
        waiting = self._pace.packed(RESULT.empty_table())
        for bucket, payloads in self._engine.passed({"rekey": left, "subscription": right}).items():
            waiting[bucket] += payloads
        self._over = self._rng.random() < 0.4
        return self._pace.results(self._pace.passed({"pace": waiting}, over=self._over))

    def wanted(self, changes: Sequence[Any]) -> Any:
        """The table as it was when the last interval was over."""
        self._taken = len(changes) if self._over else self._taken
        return super().wanted(changes[: self._taken])


class Aggregated(Operator):
    """An aggregate of each kind of column."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self._reader = Grouping(VALUE, *COLUMNS)
        self._engine = self.engine(
            lambda state: RegroupSpec(state=state, as_read=True),
            lambda state: AggregateSpec(state=state, fold=Fold(VALUE, COLUMNS), in_order=True),
        )

    @property
    def table(self) -> Any:  # type: ignore[override]
        return self._reader.table

    def change(self, rng: random.Random, version: int) -> grouping.Change:
        values = rng.choice([None, rng.randrange(-9, 9)]), rng.choice([None, 0.1, 1e16, -1e16]), None, rng.choice("abc"), None
        return grouping.Change(f"k{rng.randrange(15)}", version, rng.choice(["g", "h", "", None]), values)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        return self._engine.attempted({"regroup": self._engine.packed(self._reader.messages(changes))})

    def apply(self, results: pa.Table) -> None:
        self._reader.apply(results)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return grouping.recomputed(changes)


class Cogrouped(Operator):
    """Sums of two tables side by side; a change is (number of the table, change)."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        folds = [Fold(SUMS, (Count(f"rows{at}"), WholeSum(f"n{at}", 0, "sum"))) for at in (0, 1)]
        self._reader, self._fold = Grouping(SUMS, *folds[0].columns), CoFold(tuple(folds))
        self._regroup = [self.engine(self._numbered(number), name=f"table{number}") for number in (0, 1)]
        self._sums = self.engine(lambda state: AggregateSpec(state=state, fold=self._fold, in_order=True))
        self.table: dict[str, tuple[Any, ...]] = {}

    @staticmethod
    def _numbered(number: int) -> Callable[[StateSpec], StageSpec]:
        return lambda state: RegroupSpec(state=state, as_read=True, number=number)

    def change(self, rng: random.Random, version: int) -> tuple[int, grouping.Change]:
        values = (rng.choice([None, rng.randrange(-9, 9)]),)
        return rng.randrange(2), grouping.Change(f"k{rng.randrange(9)}", version, rng.choice(["g", "h", "i", None]), values)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        grouped = self._sums.packed(GROUPED.empty_table())
        for number, engine in enumerate(self._regroup):
            rows = self._reader.messages(change for of, change in changes if of == number)
            for bucket, payloads in engine.passed({"regroup": engine.packed(rows)}).items():
                grouped[bucket] += payloads
        return self._sums.attempted({"aggregate": grouped})

    def apply(self, results: pa.Table) -> None:
        columns = RowCodec(self._fold.schema).decode(results.column("value").combine_chunks())
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for one, row in zip(results.to_pylist(), rows, strict=True):
            group = one["key"].decode()
            assert self.table.get(group) != (None if one["value"] is None else row), "neither stale nor as it was"
            if one["value"] is None:
                del self.table[group]
            else:
                self.table[group] = row

    def wanted(self, changes: Sequence[Any]) -> Any:
        sums = []
        for number in (0, 1):
            newest = {change.key: change for of, change in changes if of == number}
            groups: dict[str, list[int | None]] = {}
            for change in newest.values():
                if change.group is not None:
                    groups.setdefault(change.group, []).append(change.values[0])
            sums.append({group: _summed(values) for group, values in groups.items()})
        return {group: (*sums[0].get(group, (None, None)), *sums[1].get(group, (None, None))) for group in {*sums[0], *sums[1]}}


def _summed(values: list[int | None]) -> tuple[int, int | None]:
    there = [value for value in values if value is not None]
    return len(values), sum(there) if there else None


class MultiJoined(Operator):
    """A join with two right tables."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self.how = rng.choice(["inner", "left"]), rng.choice(["inner", "left"])
        joined = multi_join.of_rights(*self.how)
        self._engine = self.engine(
            lambda state: ScatterSpec(state=state, rights=2),
            lambda state: MultiSubscriptionSpec(state=state, right_parts=(1, 1), rights_in_order=(False, False)),
            lambda state: GatherSpec(state=state, multi_join=joined),
        )
        self.table = multi_join.Joined(joined)

    def change(self, rng: random.Random, version: int) -> multi_join.Change:
        text, number = rng.choice([None, "x", "y", "z"]), rng.choice([LEFT, LEFT, 0, 1])
        if number != LEFT:
            return multi_join.Change(number, rng.choice("abc"), version, text)
        foreign = rng.choice(["a", "b", None]), rng.choice(["b", "c", None])
        return multi_join.Change(LEFT, f"o{rng.randrange(9)}", version, text, foreign)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        left, right = multi_join.messages(changes, LEFT), multi_join.right_messages(changes)
        return self._engine.attempted({"scatter": self._engine.packed(left), "subscription": self._engine.packed(right)})

    def apply(self, results: pa.Table) -> None:
        self.table.take(results)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return multi_join.batch_join(changes, self.how)


class Children(Operator):
    """Right rows with a map of their left rows."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self._engine = self.engine(
            lambda state: RekeySpec(state=state), lambda state: ChildrenSpec(state=state, family=child_rows.FAMILY)
        )
        self._maps = child_rows.Maps()

    @property
    def table(self) -> Any:  # type: ignore[override]
        return self._maps.table

    def change(self, rng: random.Random, version: int) -> oracle.Change:
        value, name = rng.choice([None, b"x", b"y"]), rng.choice([b"a", b"b", b"c"])
        if rng.random() < 0.3:
            return oracle.Change(False, name, value, version)
        return oracle.Change(True, b"%d" % rng.randrange(9), value, version, rng.choice([name, None]))

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        left, right = (self._engine.packed(side) for side in child_rows.sides(changes))
        return self._engine.attempted({"rekey": left, "children": right})

    def apply(self, results: pa.Table) -> None:
        self._maps.apply(results)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return child_rows.wanted(list(changes))


class Merged(Operator):
    """Three tables as one."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self._engine = self.engine(lambda state: MergeSpec(state=state, in_order=(False, False, False)))
        self.table: dict[str, bytes] = {}

    def change(self, rng: random.Random, version: int) -> merging.Event:
        return rng.randrange(3), f"k{rng.randrange(9)}", version, rng.choice(merging.ROWS)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        return self._engine.attempted({"merge": self._engine.packed(merging.messages(changes))})

    def apply(self, results: pa.Table) -> None:
        merging.apply(results, self.table)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return merging.overlaid(changes)


class Paired(Operator):
    """A join by primary key, the results kept or not."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self.how: Any = rng.choice(pairing.HOWS)
        kept = rng.random() < 0.5
        about: dict[str, Any] = {"how": self.how, "parts": (1, 1), "in_order": (False, False), "materialized": kept}
        self._engine = self.engine(lambda state: PairSpec(state=state, **about))
        self._table: dict[str, pairing.Result] = {}

    @property
    def table(self) -> Any:  # type: ignore[override]
        return {key: one.pair for key, one in self._table.items()}

    def change(self, rng: random.Random, version: int) -> pairing.Event:
        row = rng.choice([None, b"x", b"y", b"z" * rng.randrange(60)])
        return pairing.Event(rng.randrange(2), f"k{rng.randrange(9)}", version, row)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        return self._engine.attempted({"pair": self._engine.packed(pairing.messages(changes))})

    def apply(self, results: pa.Table) -> None:
        pairing.apply(results, self._table)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return {key: one.pair for key, one in pairing.joined(changes, self.how).items()}


class FlatMapped(Operator):
    """Rows that rows make, under keys of their own."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self._engine = self.engine(lambda state: SpreadSpec(state=state, as_read=True), lambda state: OwnersSpec(state=state))
        self.table: dict[str, bytes] = {}

    def change(self, rng: random.Random, version: int) -> flat_maps.Change:
        made = rng.choice([None, {}, {"a": b"x"}, {"a": b"y", "b": b"z"}, {"c": b"x" * rng.randrange(60)}])
        return flat_maps.Change(rng.choice("pqrs"), version, made)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        return self._engine.attempted({"spread": self._engine.packed(flat_maps.messages(changes))})

    def apply(self, results: pa.Table) -> None:
        merging.apply(results, self.table)

    def wanted(self, changes: Sequence[Any]) -> Any:
        return flat_maps.recomputed(changes)


class Enriched(Operator):
    """Events with a table's rows; the table is all that was sent."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        self.how: Any = rng.choice(["inner", "left"])
        self._engine = self.engine(lambda state: EnrichSpec(state=state, how=self.how))
        self._batches: list[Sequence[enriching.Message]] = []
        self._known = 0
        self.table: list[enriching.Sent] = []
        self._wanted: list[enriching.Sent] = []

    def change(self, rng: random.Random, version: int) -> enriching.Message:
        key = rng.choice("abcdefgh")
        if rng.random() < 0.5:
            return enriching.Change(key, version, rng.choice([None, b"x", b"y", b"z" * rng.randrange(60)]))
        return enriching.Event(version, rng.choice([key, key, None]))

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        given = self._engine.packed(enriching.rows_of(changes))
        for bucket, payloads in self._engine.packed(enriching.events_of(changes)).items():
            given[bucket] += payloads
        return self._engine.attempted({"enrich": given})

    def apply(self, results: pa.Table) -> None:
        self.table += enriching.sent(results)

    def wanted(self, changes: Sequence[Any]) -> Any:
        self._batches.append(changes[self._known :])
        self._known = len(changes)
        self._wanted += enriching.wanted(self._batches, self.how)
        return self._wanted


class Windowed(Operator):
    """Rows in windows that close; the table is all that was sent."""

    GROUP = pa.schema([("time", pa.timestamp("us", "UTC"))])
    SIZE = 10

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        windows = TimeWindows(self.SIZE, self.SIZE, self.GROUP)
        fold, closing = Fold(SUMS, (Count("rows"), WholeSum("n", 0, "sum"))), Closing(windows, 0, ("rows",))
        self._key, self._row = KeyCodec(windows.key), RowCodec(fold.schema)
        self._engine = self.engine(
            lambda state: RegroupSpec(state=state, as_read=True, windows=windows),
            lambda state: CloseSpec(state=state, fold=fold, closing=closing),
        )
        self.table: dict[int, tuple[int, int]] = {}
        self._wanted: dict[int, tuple[int, int]] = {}
        self._open: dict[int, dict[str, int]] = {}
        self._rows: dict[str, tuple[int, int, int]] = {}
        self._time, self._known = -1, 0

    def change(self, rng: random.Random, version: int) -> Any:
        return rng.choice("abcdefgh"), version, version // 2 + rng.randrange(12), rng.randrange(5)

    def attempt(self, changes: Sequence[Any]) -> pa.Table:
        key, version, time, number = ([one[at] for one in changes] for at in range(4))
        there = np.ones(len(changes), bool)
        made = contributions(
            self.GROUP, [pa.array(time, pa.int64()).cast(self.GROUP[0].type)], SUMS, [pa.array(number, pa.int64())], there
        )
        rows = table(
            JOINED,
            as_bytes(pa.array(key, pa.string())),
            versions.encode(versions.identity("test"), [np.array(version, np.int64)]),
            made,
            ~there,
            np.array(time, np.int64),
        )
        given = self._engine.packed(rows)
        return self._engine.attempted({"regroup": given}, told={"close": {f"{CAME}0": max(time)} if time else {}})

    def apply(self, results: pa.Table) -> None:
        ends = self._key.decode(results.column("key").combine_chunks())[1].cast(pa.int64()).to_pylist()
        rows, sums = (one.to_pylist() for one in self._row.decode(results.column("value").combine_chunks()))
        for end, *row in zip(ends, rows, sums, strict=True):
            assert end not in self.table, "a window has one result"
            self.table[end] = tuple(row)

    def wanted(self, changes: Sequence[Any]) -> Any:
        batch, self._known = changes[self._known :], len(changes)
        newest = {one[0]: one for one in sorted(batch, key=lambda one: one[1])}
        for key, version, time, number in newest.values():
            before = self._rows.get(key)
            if before is not None and before[0] >= version:
                continue
            for end, value in ((before and before[1], None), (time // self.SIZE * self.SIZE + self.SIZE, number)):
                if end is not None and end > self._time:
                    self._open.setdefault(end, {}).pop(key, None)
                    if value is not None:
                        self._open[end][key] = value
            self._rows[key] = version, time // self.SIZE * self.SIZE + self.SIZE, number
        self._time = max([self._time, *(one[2] for one in batch)])
        for end in [end for end in self._open if end <= self._time]:
            if found := self._open.pop(end):
                self._wanted[end] = len(found), sum(found.values())
        return self._wanted


OPERATORS: list[type[Operator]] = [
    Join,
    PacedJoin,
    Aggregated,
    Cogrouped,
    MultiJoined,
    Children,
    Merged,
    Paired,
    FlatMapped,
    Enriched,
    Windowed,
]
