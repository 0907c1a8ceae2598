"""Progress events as Spark gives them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from fkjoin.metrics import Metrics
from fkjoin.stages import counters

SIZES = {"buckets": 6, "state-rows": 300, "state-bytes": 9000, "log-bytes": 12000, "index-bytes": 5000}


def idle(batch: int) -> Any:
    """An event of a query that waits: no batch was made, and the next one will have this number."""
    about = json.loads(progress(batch).json)
    about |= {"numInputRows": 0, "durationMs": {"latestOffset": 3, "triggerExecution": 4}, "observedMetrics": {}}
    about["sources"][0]["latestOffset"]["orders"]["0"] = 70
    return SimpleNamespace(batchId=batch, timestamp=about["timestamp"], durationMs=about["durationMs"], json=json.dumps(about))


def taken(*batches: int, query: str = "sink-out") -> Metrics:
    """Metrics of a query after these batches."""
    metrics = Metrics()
    for batch in batches:
        metrics.take(progress(batch), query)
    return metrics


def progress(batch: int, **state: Any) -> Any:
    """An event of a query with one join, half a second for 100 rows; each batch begins a second after the one before."""
    counted = dict.fromkeys(counters.ALL, 0) | {"left-in": 90, "right-in": 10, "out": 50, "stale-dropped": 1}
    timed = {"rekey-ms": 100, "subscription-ms": 250, "resolve-ms": None, "rekey-skips": 0, "resolve-skips": 3}
    about = {
        "id": "3f9a",
        "name": None,
        "timestamp": f"2026-01-01T00:00:{batch:02}.000Z",
        "batchId": batch,
        "numInputRows": 100,
        "durationMs": {"triggerExecution": 500, "addBatch": 400},
        "sources": [
            {
                "endOffset": {"orders": {"0": 70, "1": 20}},
                "latestOffset": {"orders": {"0": 75, "1": 20, "2": 9}},
            },
            {"endOffset": {"logOffset": 3}, "latestOffset": None},
        ],
        "observedMetrics": {
            "fkjoin:joined": counted,
            "fkjoin-state:joined": {**SIZES, **timed, "fan-out-max": 7, "hot-key": None, **state},
            "somebody's own": {"rows": 1},
        },
    }
    return SimpleNamespace(timestamp=about["timestamp"], json=json.dumps(about))
