"""Writes the demo's change logs, fkjoin/data/{orders,customers}.jsonl.gz; always the same ones.

Every line is a change: an upsert (op "u") or a delete ("d") with the sequence number (lsn) of its log.  About one line
in thirty is repeated later, and about as many stand some hundred lines too late.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

CUSTOMERS, ORDERS, EVENTS = 1_500, 9_000, 30_000
FIRST_NAMES = ("Ada", "Bo", "Chi", "Dov", "Eva", "Fay", "Gus", "Hal", "Ida", "Jo", "Kim", "Lea", "Max", "Nia", "Ole")
LAST_NAMES = ("Adler", "Brand", "Cruz", "Dahl", "Egan", "Frey", "Gray", "Holm", "Iyer", "Jung", "Koch", "Lund", "Moss")
START = datetime(2026, 1, 5, 8, 0, 0)


def changes(rng: random.Random) -> Iterator[tuple[str, dict[str, object]]]:
    """The two logs as they happened, interleaved."""
    alive: dict[str, dict[str, object]] = {}
    present: set[int] = set()
    for event in range(EVENTS):
        at = (START + timedelta(seconds=7 * event)).isoformat()
        about = {"lsn": event, "at": at}
        if rng.random() < 0.2 or event < 500:
            number = rng.randrange(CUSTOMERS)
            if number in present and rng.random() < 0.12:
                present.discard(number)
                yield "customers", {"customer_id": f"c{number:04}", "op": "d", **about}
                continue
            present.add(number)
            name = f"{FIRST_NAMES[number % 15]} {LAST_NAMES[number % 13]}"
            tier = rng.choice(("basic", "silver", "gold"))
            yield "customers", {"customer_id": f"c{number:04}", "name": name, "tier": tier, "op": "u", **about}
            continue
        order = f"o{rng.randrange(ORDERS):05}"
        row = alive.get(order)
        if row is not None and rng.random() < 0.1:
            del alive[order]
            yield "orders", {"order_id": order, "op": "d", **about}
            continue
        if row is None or rng.random() < 0.3:
            customer = None if rng.random() < 0.05 else f"c{rng.randrange(CUSTOMERS):04}"
        else:
            customer = row["customer_id"]  # type: ignore[assignment]
        row = {"order_id": order, "customer_id": customer, "amount": rng.randrange(100, 50_000) / 100}
        row["status"] = rng.choice(("new", "paid", "sent"))
        alive[order] = row
        yield "orders", {**row, "op": "u", **about}


def disturbed(log: list[dict[str, object]], rng: random.Random) -> list[dict[str, object]]:
    """The log with some lines twice and some late."""
    places = [(float(at + (rng.randrange(100, 600) if rng.random() < 0.03 else 0)), line) for at, line in enumerate(log)]
    places += [(at + rng.randrange(1, 900), line) for at, line in places if rng.random() < 0.03]
    return [line for _, line in sorted(places, key=lambda place: place[0])]


def main() -> None:
    rng = random.Random(20260105)
    logs: dict[str, list[dict[str, object]]] = {"orders": [], "customers": []}
    for name, line in changes(rng):
        logs[name].append(line)
    for name, log in logs.items():
        path = Path(__file__).parent.parent / "fkjoin" / "data" / f"{name}.jsonl.gz"
        text = "".join(json.dumps(line) + "\n" for line in disturbed(log, rng))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
