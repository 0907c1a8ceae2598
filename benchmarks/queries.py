"""The queries that ``benchmarks.operators`` measures: in fkjoin, in Flink SQL, and as plain recomputations."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import workload as workloads
from benchmarks.compare import QUERY, SINK_COLUMNS
from benchmarks.fk_join import table
from benchmarks.workload import Change
from fkjoin import Table, aggregates, window
from fkjoin.events import Enriched

VALUE = "fk:string,amount:double,v:bigint,pad:string,sku:string,units:bigint,made_at:timestamp"
LEFT, ORDERS = f"struct<{VALUE}>", f"struct<{VALUE},items:array<struct<sku:string,n:bigint>>>"
START = datetime(2026, 1, 1)
STEP = timedelta(milliseconds=10)
WINDOW = timedelta(seconds=10)

Phases = list[list[Change]]
Batches = Iterable[list[dict[str, Any]]]
"""Lines of a workload, as the micro-batches have them."""
Rows = dict[tuple[Any, ...], tuple[Any, ...]]
"""Columns of rows by their keys."""


def of_rows(right: int, left: int, updates: int) -> Phases:
    """The left table; the first phase is a tenth of its rows."""
    changes = [change for change in workloads.changes(right, left, updates) if change[0] == "left"]
    return [changes[: left // 10], changes[left // 10 : left], changes[left:]]


def of_orders(right: int, left: int, updates: int) -> Phases:
    """The left table, with three items in each row; an update leaves two of them."""
    number = itertools.count()

    def with_items(change: Change) -> Change:
        side, key, value = change
        place, changing = int(key[1:]), next(number)
        items = [("a", place, place % 5), ("b", place, place % 7), ("c", changing, changing % 5)]
        made = [{"sku": f"{letter}{at % 50:02}", "n": n} for letter, at, n in items]
        return side, key, value and {**value, "items": made}

    return [list(map(with_items, phase)) for phase in of_rows(right, left, updates)]


def of_two_tables(right: int, left: int, updates: int) -> Phases:
    """Two tables of the same size with the same keys."""
    changes = [(side, key[1:], value) for side, key, value in workloads.changes(left, left, updates)]
    return [changes[:left], changes[left : 2 * left], changes[2 * left :]]


def of_events(right: int, left: int, updates: int) -> Phases:
    """The left table's changes, appended: each has a key of its own."""
    phases = of_rows(right, left, updates)
    number = itertools.count()
    return [[("left", f"e{next(number)}", value) for _, _, value in phase if value is not None] for phase in phases]


def of_events_and_rows(right: int, left: int, updates: int) -> Phases:
    """The right table, then events and its updates in a random order.

    The last rows let Flink's time go on until the end: they have no partners.
    """
    changes = list(workloads.changes(right, left, updates))
    first, rest = changes[:right], [change for change in changes[right:] if change[2] is not None]
    random.Random(7).shuffle(rest)
    last: Any = [(side, f"z{n}", {"fk": "none", "amount": 0.0}) for side in ("right", "left") for n in range(20)]
    events = [(side, f"e{n}" if side == "left" else key, value) for n, (side, key, value) in enumerate(rest + last)]
    return [first, events[: len(rest) // 2], events[len(rest) // 2 :]]


def dated(phases: Phases) -> Phases:
    """The changes with a time, and left ones with a product and a number of pieces."""
    number = itertools.count()

    def one(change: Change) -> Change:
        side, key, value = change
        at = next(number)
        more: dict[str, Any] = {"sku": f"s{at % 20:02}", "units": at % 7} if side == "left" else {}
        made_at = (START + at * STEP).isoformat(timespec="milliseconds") + "Z"
        return side, key, value and {**value, **more, "made_at": made_at}

    return [list(map(one, phase)) for phase in phases]


def flat_map(spark: SparkSession, folder: Path) -> Table:
    return table(spark, folder, "left", ORDERS).flat_map("value.items", key=["key", "sku"], name="bench")


def windows(spark: SparkSession, folder: Path) -> Table:
    rows = table(spark, folder, "left", LEFT, timestamp="value.made_at")
    key = [window("value.made_at", "10 seconds"), "value.sku as sku"]
    grouped = rows.group_by(key, name="bench", emit="on-close")
    return grouped.agg(n=aggregates.count(), units=aggregates.sum("value.units"))


def key_join(spark: SparkSession, folder: Path) -> Table:
    left = [f"left.value.{name}" for name in ("fk", "amount", "v", "pad")]
    joiner = [*left, "right.value.name", "right.value.tier", "right.value.v as rv", "right.value.pad as rpad"]
    return table(spark, folder, "left", LEFT).join(table(spark, folder, "right"), joiner=joiner, name="bench")


def enrich(spark: SparkSession, folder: Path) -> Enriched:
    schema = f"key string, value {LEFT}, seq bigint"
    lines = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / "left"))
    events = lines.select("key", "value.fk", "value.amount")
    rows = table(spark, folder, "right").select("value.name", "value.tier", "value.v")
    return rows.enrich(events, on="fk", name="bench")


def grouped(wanted: aggregates.Wanted) -> Callable[[SparkSession, Path], Table]:
    """An aggregate of the left rows by their foreign key."""
    return lambda spark, folder: table(spark, folder, "left", LEFT).group_by("value.fk as fk", name="bench").agg(found=wanted)


def newest(batches: Batches) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of both sides that changes lead to."""
    sides: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    for line in itertools.chain.from_iterable(batches):
        sides[line["side"]][line["key"]] = line["value"]
    return {side: {key: value for key, value in rows.items() if value is not None} for side, rows in sides.items()}


def items_of(batches: Batches) -> Rows:
    return {(key, item["sku"]): (item["n"],) for key, row in newest(batches)["left"].items() for item in row["items"]}


def closed(batches: Batches) -> Rows:
    """The windows that end when the last row comes, or before."""
    rows = [(datetime.fromisoformat(row["made_at"][:-1]), row) for row in newest(batches)["left"].values()]
    last = max(time for time, _ in rows)
    found: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    for time, row in rows:
        start = time - (time - START) % WINDOW
        if start + WINDOW <= last:
            found[start, row["sku"]].append(row["units"])
    return {(f"{at}", f"{at + WINDOW}", sku): (len(units), sum(units)) for (at, sku), units in found.items()}


def joined(batches: Batches) -> Rows:
    left, right = newest(batches).values()
    sides = {key: (row, right[key]) for key, row in left.items() if key in right}
    return {
        (key,): (*(row[name] for name in ("fk", "amount", "v", "pad")), *(other[name] for name in ("name", "tier", "v", "pad")))
        for key, (row, other) in sides.items()
    }


def enriched(batches: Batches) -> Rows:
    """Events with the right rows as they are after the changes of their batch."""
    rights: dict[str, Any] = {}
    found: Rows = {}
    for batch in batches:
        rights |= {line["key"]: line["value"] for line in batch if line["side"] == "right"}
        for line in batch:
            event = line["value"]
            if line["side"] == "left" and (row := rights.get(event["fk"])) is not None:
                found[line["key"],] = event["fk"], event["amount"], row["name"], row["tier"], row["v"]
    return found


def groups(fold: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Batches], Rows]:
    """The aggregates of each group, by the foreign key."""

    def found(batches: Batches) -> Rows:
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for key, row in newest(batches)["left"].items():
            groups[row["fk"]].append({"key": key, **row})
        return {(group,): (fold(rows),) for group, rows in groups.items()}

    return found


def greatest(rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
    ordered = sorted(rows, key=lambda row: (-row["amount"], row["key"]))
    return [(row["key"], row["amount"]) for row in ordered[:3]]


def places(batches: Batches) -> Rows:
    """The greatest of each group, a row each."""
    lists = groups(greatest)(batches)
    return {(group, place): row for (group,), (rows,) in lists.items() for place, row in enumerate(rows, 1)}


_VALUE = "fk STRING, amount DOUBLE, v INT, pad STRING, sku STRING, units BIGINT"
_EVENT = "`after` ROW<k STRING, fk STRING, amount DOUBLE, sku STRING, units BIGINT, made_at TIMESTAMP_LTZ(3)>"
_TIME = "WATERMARK FOR made_at AS made_at"
_ROWS = f"(k STRING, {_VALUE}, PRIMARY KEY (k) NOT ENFORCED)"
_ORDERS = f"(k STRING, {_VALUE}, items ARRAY<ROW<sku STRING, n BIGINT>>, PRIMARY KEY (k) NOT ENFORCED)"
_FIELDS = "k", "fk", "amount", "sku", "units", "made_at"
_EVENTS = ", ".join([_EVENT, *(f"{name} AS `after`.{name}" for name in _FIELDS), _TIME])
_VERSIONED = f"(k STRING, name STRING, tier STRING, v INT, made_at TIMESTAMP_LTZ(3), {_TIME}, PRIMARY KEY (k) NOT ENFORCED)"


@dataclass(frozen=True)
class Flink:
    """The query in Flink SQL.  ``left``, ``right``: columns of the tables A and B; A has rows of JSON if they are appended."""

    query: str
    sink: str
    left: str = _ROWS
    right: str | None = None
    wanted: Callable[[Batches], Rows] | None = None
    """Flink's result, recomputed; None: it is that of fkjoin."""

    def lines(self) -> dict[str, str]:
        """Lines of the harness, by the beginnings of those that they replace."""
        appended = "json" if self.left.startswith("(`after`") else "debezium-json"
        made = {
            SINK_COLUMNS: f'OUTCOLS = "{self.sink}"',
            QUERY: f'Q = "INSERT INTO S {self.query}"',
            _CREATE.format("A"): _CREATE.format("A") + self.left,
            _FILES.format("left"): _files("left", appended),
        }
        if self.right is not None:
            made[_CREATE.format("B")] = _CREATE.format("B") + self.right
            made[_FILES.format("right")] = _files("right", "debezium-json")
        return made


_CREATE = 't.execute_sql(f"""CREATE TABLE {} '
_FILES = " WITH ('connector'='filesystem', 'path'='file://{{W}}/in/{}'"


def _files(side: str, format: str) -> str:
    return f"{_FILES.format(side)}, 'format'='{format}', '{format}.timestamp-format.standard'='ISO-8601'{{mon}})\"\"\")"


@dataclass(frozen=True)
class Query:
    """A query in fkjoin and in Flink, its workload, and its result."""

    phases: Callable[[int, int, int], Phases]
    """The changes, of the numbers of right rows, left rows and updates."""
    build: Callable[[SparkSession, Path], Table | Enriched]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    wanted: Callable[[Batches], Rows]
    flink: Flink
    versions: tuple[str, ...] = ("_version",)
    """Columns that order the changes of a key; none if a row comes once."""


QUERIES = {
    "flat-map": Query(
        of_orders,
        flat_map,
        ("key", "sku"),
        ("n",),
        items_of,
        Flink(
            "SELECT k, T.sku, T.n FROM A CROSS JOIN UNNEST(A.items) AS T (sku, n) WHERE TRUE ON CONFLICT DO DEDUPLICATE",
            "k STRING, sku STRING, n BIGINT, PRIMARY KEY (k, sku) NOT ENFORCED",
            left=_ORDERS,
        ),
    ),
    "windows": Query(
        of_events,
        windows,
        ("cast(window_start as string)", "cast(window_end as string)", "sku"),
        ("n", "units"),
        closed,
        Flink(
            "SELECT DATE_FORMAT(window_start, 'yyyy-MM-dd HH:mm:ss'), DATE_FORMAT(window_end, 'yyyy-MM-dd HH:mm:ss'), sku, "
            "COUNT(*), SUM(units) FROM TABLE(TUMBLE(TABLE A, DESCRIPTOR(made_at), INTERVAL '10' SECOND)) "
            "GROUP BY window_start, window_end, sku",
            "window_start STRING, window_end STRING, sku STRING, n BIGINT, units BIGINT",
            left=f"({_EVENTS})",
        ),
        versions=(),
    ),
    "key-join": Query(
        of_two_tables,
        key_join,
        ("key",),
        ("fk", "amount", "v", "pad", "name", "tier", "rv", "rpad"),
        joined,
        Flink(
            "SELECT A.k, fk, amount, A.v, A.pad, name, tier, B.v, B.pad FROM A JOIN B ON A.k = B.k",
            "k STRING, fk STRING, amount DOUBLE, v INT, pad STRING, name STRING, tier STRING, rv INT, rpad STRING, "
            "PRIMARY KEY (k) NOT ENFORCED",
        ),
        versions=("_left_version", "_right_version"),
    ),
    "enrich": Query(
        of_events_and_rows,
        enrich,
        ("key",),
        ("fk", "amount", "name", "tier", "v"),
        enriched,
        Flink(
            "SELECT A.k, fk, amount, name, tier, v FROM A JOIN B FOR SYSTEM_TIME AS OF A.made_at ON A.fk = B.k",
            "k STRING, fk STRING, amount DOUBLE, name STRING, tier STRING, v INT",
            left=f"({_EVENTS})",
            right=_VERSIONED,
            wanted=lambda batches: enriched([line] for batch in batches for line in batch),
        ),
        versions=(),
    ),
    "count-distinct": Query(
        of_rows,
        grouped(aggregates.count_distinct("value.sku")),
        ("fk",),
        ("found",),
        groups(lambda rows: len({row["sku"] for row in rows})),
        Flink(
            "SELECT fk, COUNT(DISTINCT sku) FROM A GROUP BY fk",
            "fk STRING, found BIGINT, PRIMARY KEY (fk) NOT ENFORCED",
        ),
    ),
    "collect-list": Query(
        of_rows,
        grouped(aggregates.collect_list("value.sku", order_by="value.sku")),
        ("fk",),
        ("found",),
        groups(lambda rows: sorted(row["sku"] for row in rows)),
        Flink(
            "SELECT fk, ARRAY_SORT(ARRAY_AGG(sku)) FROM A GROUP BY fk",
            "fk STRING, found ARRAY<STRING>, PRIMARY KEY (fk) NOT ENFORCED",
        ),
    ),
    "largest": Query(
        of_rows,
        grouped(aggregates.max_by("struct(key, value.amount)", "value.amount", 3)),
        ("fk",),
        ("found",),
        groups(greatest),
        Flink(
            "SELECT fk, place, k, amount FROM (SELECT fk, k, amount, ROW_NUMBER() OVER "
            "(PARTITION BY fk ORDER BY amount DESC, k) AS place FROM A) WHERE place <= 3",
            "fk STRING, place BIGINT, k STRING, amount DOUBLE, PRIMARY KEY (fk, place) NOT ENFORCED",
            wanted=places,
        ),
    ),
}
