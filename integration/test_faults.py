"""Processes killed at every point of a batch, on a cluster of two executors; nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from integration.faults.cluster import WORKER_POINTS, written

from .faults.cluster import Cluster

pytestmark = pytest.mark.nightly
Table = dict[str, tuple[int, str | None]]

WHEN, WHO = ("before", "after"), ("worker", "executor", "driver")
EVERY = [
    *product(WORKER_POINTS, WHEN, WHO),
    *product(["state commit"], WHEN, ["executor"]),
    *product(["offset log", "sink write", "offset commit"], WHEN, ["driver"]),
    *product(["read", "subscription", "log write"], ["after"], ["zombie"]),
]

OF_WINDOWS = list(product(["regroup", "close"], WHEN, WHO))
"""Points of the stages of windows, which are in the query of the join."""

EVENTS = [("sink write", "after", "driver"), ("enrich", "before", "worker"), ("enrich", "after", "executor")]
"""Points of a batch with events, one for each process that may die with them; ``EVERY`` one is tried with tables.

The driver's point is not the last: its batch is right when it dies, and only later batches show how it is repeated."""


class Logs:
    """Two growing change logs, and the table that they lead to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rng, self.seq = folder, random.Random(12508), 0
        self.customers: dict[str, Any] = {}
        self.files: list[list[dict[str, Any]]] = []
        """Lines of the log of orders by file; a batch reads one."""
        for name in ("orders", "customers"):
            (folder / name).mkdir()

    def grow(self, changes: int = 60) -> None:
        """Write one more file in each log; deleted rows may come back."""
        lines: dict[str, list[dict[str, Any]]] = {"orders": [], "customers": []}
        for _ in range(changes):
            self.seq += 1
            op, customer = self.rng.choice("uuuud"), f"c{self.rng.randrange(8)}"
            line = {"c": customer, "op": op, "seq": self.seq}
            if self.rng.random() < 0.7:
                order, amount = f"o{self.rng.randrange(30)}", self.rng.randrange(100)
                payer = f"c{(self.seq + amount) % 8}"
                lines["orders"].append(line | {"o": order, "amount": amount, "payer": payer, "at": self.seq})
            else:
                self.customers[customer] = None if op == "d" else f"n{self.seq}"
                lines["customers"].append(line | {"name": f"n{self.seq}"})
        for name, rows in lines.items():
            draft = self.folder / f".{name}"
            draft.write_text("\n".join(map(json.dumps, rows)))
            draft.rename(self.folder / name / f"{self.seq:06d}.json")
        self.files.append(lines["orders"])

    def live(self) -> list[dict[str, Any]]:
        """The orders that are there."""
        last = {row["o"]: row for rows in self.files for row in rows}
        return [row for row in last.values() if row["op"] == "u"]

    def are_joined(self) -> bool:
        joined = {row["o"]: (row["amount"], self.customers.get(row["c"])) for row in self.live()}
        return written(self.folder) == {**joined, **self.windows()}

    def windows(self) -> Table:
        """Sums and numbers of orders when their windows closed, by closed window and customer."""
        live: dict[str, Any] = {}
        found: Table = {}
        closed = 0
        for lines in self.files:
            live |= {row["o"]: row for row in lines}
            now = lines[-1]["seq"]
            for row in live.values():
                start = row["at"] // 20 * 20
                if row["op"] == "u" and closed < start + 20 <= now:
                    total, n = found.get(f"{start} {row['c']}", (0, "0"))
                    found[f"{start} {row['c']}"] = (total + row["amount"], str(int(n or 0) + 1))
            closed = now
        return found

    def with_payers(self) -> dict[str, tuple[int, str | None, str | None]]:
        """Each order's amount, and the names of its customer and its payer."""
        name = self.customers.get
        return {row["o"]: (row["amount"], name(row["c"]), name(row["payer"])) for row in self.live()}

    def summed(self) -> dict[str, tuple[int, ...]]:
        """The number, sum and maximum of orders, for each customer that is there and has some."""
        groups: dict[str, list[int]] = defaultdict(list)
        for row in self.live():
            if self.customers.get(row["c"]) is not None:
                groups[row["c"]].append(row["amount"])
        return {customer: (len(amounts), sum(amounts), max(amounts)) for customer, amounts in groups.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The one cluster of all tests; each test has a job of its own."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


def killed_in_turn(
    cluster: Cluster, job: str, logs: Logs, faults: Sequence[tuple[str, str, str]], right: Callable[[], bool], **conf: str
) -> None:
    """Work on one batch per fault: Spark or the test starts a dead process again, and the table must come out ``right``.

    A zombie is an executor that stands still until Spark has given its tasks to the other one, and then goes on.
    """
    logs.grow()
    cluster.begin(logs.folder, job, **conf)
    try:
        cluster.wait("the first batch", right)
        for point, when, victim in faults:
            name = f"{victim} killed {when} {point}"
            cluster.driver.arm(f"{point}|{when}|{victim}")
            logs.grow()
            cluster.wait(f"{name}: it is killed", cluster.driver.struck)
            cluster.wait(f"{name}: the table is right", right)
            cluster.wake_zombies()
    finally:
        cluster.end()


def test_processes_killed_at_points_of_a_batch_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """The job is a join with windows beside it, each of which has one result."""
    logs = Logs(tmp_path)
    killed_in_turn(cluster, "joined", logs, [*EVERY, *OF_WINDOWS], logs.are_joined)


def test_stages_of_one_operator_converge_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """A worker dies when some of its stores have written their batch, and others have not."""
    logs = Logs(tmp_path)
    some = [fault for fault in EVERY if fault[2] == "worker" or fault[0] in ("log write", "state commit", "offset commit")]
    conf = {"spark.fkjoin.buckets": "1", "spark.sql.shuffle.partitions": "1"}
    killed_in_turn(cluster, "joined", logs, some, logs.are_joined, **conf)


def test_sums_are_exact_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    logs, stages = Logs(tmp_path), {"resolve": "regroup"}
    every = [(stages.get(point, point), when, victim) for point, when, victim in EVERY]
    every += product(["aggregate"], WHEN, WHO)
    columns = ("orders", "amount", "largest")
    killed_in_turn(cluster, "summed", logs, every, lambda: written(tmp_path, "c", columns) == logs.summed())


def test_each_event_is_sent_once_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    logs = Logs(tmp_path)

    def sent_once() -> bool:
        """Tell whether all events are sent; fail on one that is sent again, and on one that sees a half-done count."""
        lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
        found = [json.loads(line) for line in lines]
        assert len({row["seq"] for row in found}) == len(found)
        assert all(row.get("n", 1) == 1 for row in found), "a customer that changes counts once"
        every = [row["seq"] for rows in logs.files for row in rows]
        return sorted(row["seq"] for row in found) == every

    killed_in_turn(cluster, "enriched", logs, EVENTS, sent_once)


def test_joins_that_are_one_converge_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    logs, stages = Logs(tmp_path), {"rekey": "scatter", "resolve": "gather"}
    every = [(stages.get(point, point), when, victim) for point, when, victim in EVERY]
    columns = ("amount", "name", "payer")
    killed_in_turn(cluster, "star", logs, every, lambda: written(tmp_path, "o", columns) == logs.with_payers())
