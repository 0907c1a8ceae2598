"""Operators of each kind with their stores and files, and random changes.

That an operator's results are right is proved in ``tests/stages`` and ``tests/folds``; here two of a kind are compared.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import versions
from fkjoin.codec.arrays import as_bytes
from fkjoin.codec.messages import GROUPED, JOINED, LEFT, table
from fkjoin.folds.cogrouped import CoFold
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.spark import specs
from fkjoin.spark.buckets import TICK
from fkjoin.spark.specs import StageSpec, StateSpec
from fkjoin.stages.close import Closing
from fkjoin.stages.regroup import contributions
from fkjoin.stages.stream_time import CAME
from fkjoin.stages.time_windows import TimeWindows
from tests.support import child_rows, enriching, flat_maps, grouping, merging, multi_join, oracle, pairing
from tests.support.engine import Engine

SUMS = pa.schema([("n", pa.int64())])
TIME = pa.schema([("time", pa.timestamp("us", "UTC"))])

Rows = Mapping[str, Sequence[pa.Table]]
"""Messages from sources, by the stage to which they come."""


OPERATORS: list[type[Operator]] = []
"""All kinds, in the order in which they stand here."""


class Operator(ABC):
    """An operator; an attempt at a batch is committed, or not.  Two that are made with the same numbers do the same."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        state = StateSpec("operator", rng.choice([1, 2, 4]), 60_000, str(folder), "{}", rng.random() < 0.3)
        self.engine = Engine(self.specs(state, rng))

    def __init_subclass__(cls) -> None:
        OPERATORS.append(cls)

    @property
    def engines(self) -> list[Engine]:
        """All that runs."""
        return [self.engine]

    @abstractmethod
    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        """Stages in a row."""

    @abstractmethod
    def change(self, rng: random.Random, version: int) -> Any:
        """A change at random."""

    def rows(self, changes: Sequence[Any]) -> Rows:
        """The messages of changes."""
        return {}

    def told(self, changes: Sequence[Any]) -> Mapping[str, Mapping[str, int]]:
        """Counters that come to a stage with a batch."""
        return {}

    def attempt(self, changes: Sequence[Any]) -> list[str]:
        """An attempt at a batch; its results as text, in an order."""
        given = {stage: self.engine.packed(*tables) for stage, tables in self.rows(changes).items()}
        return lines(self.engine.attempted(given, told=self.told(changes)))

    def commit(self) -> None:
        """Make the attempt's states durable."""
        for engine in self.engines:
            engine.commit()


def lines(results: pa.Table) -> list[str]:
    """Results as text, in an order."""
    return sorted(map(repr, results.to_pylist()))


def row_of(rng: random.Random) -> bytes | None:
    return rng.choice([None, b"x", b"y", b"z" * rng.randrange(60)])


class Join(Operator):
    """A join by foreign key, the results kept or not."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        about: Any = {"how": rng.choice(["inner", "left"]), "materialized": rng.random() < 0.5}
        subscription = specs.SubscriptionSpec(state, in_order=True)
        return [specs.RekeySpec(state), subscription, specs.ResolveSpec(state, **about, in_order=True)]

    def change(self, rng: random.Random, version: int) -> oracle.Change:
        value, name = row_of(rng), rng.choice([b"a", b"b", b"c"])
        if rng.random() < 0.3:
            return oracle.Change(False, name, value, version)
        return oracle.Change(True, b"%d" % rng.randrange(12), value, version, rng.choice([name, name, None]))

    def rows(self, changes: Sequence[Any]) -> Rows:
        left, right = (oracle.messages(changes, left=left) for left in (True, False))
        return {"rekey": [left], "subscription": [right]}


class PacedJoin(Join):
    """A join whose results wait until an interval is over."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        return [*super().specs(state, rng), specs.PaceSpec(state)]

    def told(self, changes: Sequence[Any]) -> Mapping[str, Mapping[str, int]]:
        is_over = sum(change.version for change in changes) % 5 < 2
        return {"pace": {TICK: 1} if is_over else {}}


class Aggregated(Operator):
    """An aggregate of each kind of column."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        fold = Fold(grouping.VALUE, grouping.COLUMNS)
        return [specs.RegroupSpec(state, as_read=True), specs.AggregateSpec(state, fold=fold, in_order=True)]

    def change(self, rng: random.Random, version: int) -> grouping.Change:
        values = rng.choice([None, rng.randrange(-9, 9)]), rng.choice([None, 0.1, 1e16, -1e16]), None, rng.choice("abc"), None
        return grouping.Change(f"k{rng.randrange(15)}", version, rng.choice(["g", "h", "", None]), values)

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"regroup": [grouping.Grouping(grouping.VALUE).messages(changes)]}


class Cogrouped(Operator):
    """Sums of two tables side by side; a change is (number of the table, change)."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        state = self.engine.specs["aggregate"].state
        self.regroups = [Engine([self._regroup(state, number)]) for number in (0, 1)]

    @staticmethod
    def _regroup(state: StateSpec, number: int) -> StageSpec:
        return specs.RegroupSpec(replace(state, operator=f"table{number}"), as_read=True, number=number)

    @property
    def engines(self) -> list[Engine]:
        return [*self.regroups, self.engine]

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        folds = tuple(Fold(SUMS, (Count(f"rows{at}"), WholeSum(f"n{at}", 0, "sum"))) for at in (0, 1))
        return [specs.AggregateSpec(state, fold=CoFold(folds), in_order=True)]

    def change(self, rng: random.Random, version: int) -> tuple[int, grouping.Change]:
        values = (rng.choice([None, rng.randrange(-9, 9)]),)
        return rng.randrange(2), grouping.Change(f"k{rng.randrange(9)}", version, rng.choice(["g", "h", "i", None]), values)

    def attempt(self, changes: Sequence[Any]) -> list[str]:
        grouped = self.engine.packed(GROUPED.empty_table())
        for number, engine in enumerate(self.regroups):
            rows = grouping.Grouping(SUMS).messages(change for table, change in changes if table == number)
            for bucket, payloads in engine.passed({"regroup": engine.packed(rows)}).items():
                grouped[bucket] += payloads
        return lines(self.engine.attempted({"aggregate": grouped}))


class MultiJoined(Operator):
    """A join with two right tables."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        joined = multi_join.of_rights(rng.choice(["inner", "left"]), rng.choice(["inner", "left"]))
        subscription = specs.MultiSubscriptionSpec(state, right_parts=(1, 1), rights_in_order=(False, False))
        return [specs.ScatterSpec(state, rights=2), subscription, specs.GatherSpec(state, multi_join=joined)]

    def change(self, rng: random.Random, version: int) -> multi_join.Change:
        text, number = rng.choice([None, "x", "y", "z"]), rng.choice([LEFT, LEFT, 0, 1])
        if number != LEFT:
            return multi_join.Change(number, rng.choice("abc"), version, text)
        foreign = rng.choice(["a", "b", None]), rng.choice(["b", "c", None])
        return multi_join.Change(LEFT, f"o{rng.randrange(9)}", version, text, foreign)

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"scatter": [multi_join.messages(changes, LEFT)], "subscription": [multi_join.right_messages(changes)]}


class Children(Join):
    """Right rows with a map of their left rows."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        return [specs.RekeySpec(state), specs.ChildrenSpec(state, family=child_rows.FAMILY)]

    def rows(self, changes: Sequence[Any]) -> Rows:
        left, right = child_rows.sides(changes)
        return {"rekey": [left], "children": [right]}


class Merged(Operator):
    """Three tables as one."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        return [specs.MergeSpec(state, in_order=(False, False, False))]

    def change(self, rng: random.Random, version: int) -> merging.Event:
        return rng.randrange(3), f"k{rng.randrange(9)}", version, rng.choice(merging.ROWS)

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"merge": [merging.messages(changes)]}


class Paired(Operator):
    """A join by primary key, the results kept or not."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        about: Any = {"how": rng.choice(pairing.HOWS), "materialized": rng.random() < 0.5}
        return [specs.PairSpec(state, parts=(1, 1), in_order=(False, False), **about)]

    def change(self, rng: random.Random, version: int) -> pairing.Event:
        return pairing.Event(rng.randrange(2), f"k{rng.randrange(9)}", version, row_of(rng))

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"pair": [pairing.messages(changes)]}


class FlatMapped(Operator):
    """Rows that rows make, under keys of their own."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        return [specs.SpreadSpec(state, as_read=True), specs.OwnersSpec(state)]

    def change(self, rng: random.Random, version: int) -> flat_maps.Change:
        outputs = rng.choice([None, {}, {"a": b"x"}, {"a": b"y", "b": b"z"}, {"c": b"x" * rng.randrange(60)}])
        return flat_maps.Change(rng.choice("pqrs"), version, outputs)

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"spread": [flat_maps.messages(changes)]}


class Enriched(Operator):
    """Events with a table's rows."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        how: Any = rng.choice(["inner", "left"])
        return [specs.EnrichSpec(state, how=how)]

    def change(self, rng: random.Random, version: int) -> enriching.Message:
        key = rng.choice("abcdefgh")
        if rng.random() < 0.5:
            return enriching.Change(key, version, row_of(rng))
        return enriching.Event(version, rng.choice([key, key, None]))

    def rows(self, changes: Sequence[Any]) -> Rows:
        return {"enrich": [enriching.rows_of(changes), enriching.events_of(changes)]}


class Windowed(Operator):
    """Rows in windows that close; a change is a row's key, its version, its time, and a number."""

    def specs(self, state: StateSpec, rng: random.Random) -> list[StageSpec]:
        windows, fold = TimeWindows(10, 10, TIME), Fold(SUMS, (Count("rows"), WholeSum("n", 0, "sum")))
        close = specs.CloseSpec(state, fold=fold, closing=Closing(windows, 0, ("rows",)))
        return [specs.RegroupSpec(state, as_read=True, windows=windows), close]

    def change(self, rng: random.Random, version: int) -> Any:
        return rng.choice("abcdefgh"), version, version // 2 + rng.randrange(12), rng.randrange(5)

    def rows(self, changes: Sequence[Any]) -> Rows:
        key, version, time, number = zip(*changes, strict=True)
        there, times = np.ones(len(changes), bool), np.array(time, np.int64)
        group, value = pa.array(times).cast(TIME[0].type), pa.array(number, pa.int64())
        made = contributions(TIME, [group], SUMS, [value], there)
        keys, at = as_bytes(pa.array(key, pa.string())), [np.array(version, np.int64)]
        version = versions.encode(grouping.SOURCE, at)
        return {"regroup": [table(JOINED, keys, version, made, ~there, times)]}

    def told(self, changes: Sequence[Any]) -> Mapping[str, Mapping[str, int]]:
        return {"close": {f"{CAME}0": max(time for _, _, time, _ in changes)}}
