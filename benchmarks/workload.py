"""The benchmarks' workload, and the batch join that a result is checked against.

    python -m benchmarks.workload OUT.jsonl [--right 100000 --left 500000 --updates 200000]

Lines {"side", "key", "value", "seq"}, the same for the same sizes, in three phases: right rows ``c…``; left rows ``o…`` with a
uniform foreign key ``fk``; updates, of which 70% change a left value, 15% a foreign key, 5% delete a left row and 10% change a
right value.  Values are about 100 bytes of JSON.  OUT.jsonl.meta.json says at which line each phase ends ("phase_end").
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Change = tuple[str, str, dict[str, Any] | None]


def changes(right: int, left: int, updates: int, seed: int = 7) -> Iterator[Change]:
    """(side, key, value) of all three phases; a deleted left row never comes back."""
    rng = random.Random(seed)
    version: dict[str, int] = {}
    foreign_key = [rng.randrange(right) for _ in range(left)]
    alive = list(range(left))

    def row(key: str, **columns: Any) -> dict[str, Any]:
        version[key] = version.get(key, -1) + 1
        return {**columns, "v": version[key], "pad": f"{rng.getrandbits(128):032x}"}

    def right_row(place: int) -> Change:
        key = f"c{place}"
        tier = rng.choice(("gold", "silver", "bronze", "basic"))
        return "right", key, row(key, name=f"customer-{place:08}", tier=tier)

    def left_row(place: int) -> Change:
        key = f"o{place}"
        return "left", key, row(key, fk=f"c{foreign_key[place]}", amount=rng.randrange(1_000_000) / 100)

    yield from map(right_row, range(right))
    yield from map(left_row, range(left))
    for _ in range(updates):
        kind = rng.random()
        if kind >= 0.9 or not alive:
            yield right_row(rng.randrange(right))
            continue
        at = rng.randrange(len(alive))
        if kind >= 0.85:
            alive[at], alive[-1] = alive[-1], alive[at]
            yield "left", f"o{alive.pop()}", None
            continue
        if kind >= 0.7:
            foreign_key[alive[at]] = rng.randrange(right)
        yield left_row(alive[at])


def write(out: Path, right: int, left: int, updates: int) -> None:
    """Write OUT.jsonl and OUT.jsonl.meta.json."""
    made = changes(right, left, updates)
    phases = (itertools.islice(made, right), itertools.islice(made, left), made)
    write_phases(out, phases, right=right, left=left, updates=updates)


def write_phases(out: Path, phases: Iterable[Iterable[Change]], **sizes: int) -> None:
    """Write these phases to OUT.jsonl, and where they end to OUT.jsonl.meta.json."""
    lines, ends = 0, []
    with out.open("w") as sink:
        for phase in phases:
            for side, key, value in phase:
                line = {"side": side, "key": key, "value": value, "seq": lines}
                sink.write(json.dumps(line, separators=(",", ":")) + "\n")
                lines += 1
            ends.append(lines)
    Path(f"{out}.meta.json").write_text(json.dumps({**sizes, "lines": lines, "phase_end": ends}))


def write_batches(folder: Path, left: int, batch: int) -> set[tuple[Any, ...]]:
    """Write changes of orders and customers, a file of each for a micro-batch; the rows of their batch join.

    The first micro-batch has the customers, a fifth as many as orders.  Those under ``later`` have the orders, and then two
    fifths as many updates.
    """
    batches: dict[str, dict[str, list[str]]] = {}
    rows: dict[str, dict[str, Any]] = {"orders": {}, "customers": {}}
    for lsn, (side, key, value) in enumerate(changes(left // 5, left, left * 2 // 5)):
        name, row = "customers", {**(value or {}), "customer_id": key, "lsn": lsn, "gone": value is None}
        if side == "left":
            name, row = "orders", {**row, "order_id": key, "customer_id": row.get("fk")}
        rows[name][key] = row
        number = max(0, 1 + (lsn - left // 5) // batch)
        lines = batches.setdefault(f"{'later/' if number else ''}{{}}/{number:05}.json", {table: [] for table in rows})
        lines[name].append(json.dumps(row) + "\n")
    for path, name in itertools.product(batches, rows):
        (file := folder / path.format(name)).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(batches[path][name]))
    orders, customers = rows.values()
    pairs = [(order, customers[order["customer_id"]]) for order in orders.values() if not order["gone"]]
    return {(o["order_id"], o["customer_id"], o["amount"], c["name"], c["tier"]) for o, c in pairs}


def tables(workload: Path) -> dict[str, dict[str, Any]]:
    """The last value of each key by side; None of a row that is deleted."""
    found: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
    with workload.open() as lines:
        for change in map(json.loads, lines):
            found[change["side"]][change["key"]] = change["value"]
    return found


def wrong_keys(workload: Path, result: Path) -> int:
    """The number of keys of a result ({"key", "fk", "amount", "v", "name", "tier", "rv"} a line) differ from a batch join."""
    lefts, rights = tables(workload).values()
    wanted = {
        key: (row["fk"], row["amount"], row["v"], right["name"], right["tier"], right["v"])
        for key, row in lefts.items()
        if row is not None and (right := rights.get(row["fk"])) is not None
    }
    found: dict[str, tuple[Any, ...]] = {}
    repeated = 0
    with result.open() as lines:
        for row in map(json.loads, lines):
            repeated += row["key"] in found
            found[row["key"]] = tuple(row[name] for name in ("fk", "amount", "v", "name", "tier", "rv"))
    return repeated + sum(found.get(key) != wanted.get(key) for key in found.keys() | wanted.keys())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    given = parser.parse_args()
    write(given.out, given.right, given.left, given.updates)


if __name__ == "__main__":
    main()
