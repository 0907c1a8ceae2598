"""``fkjoin run --ui``: a page that shows a job as it runs, and its metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from fkjoin.metrics import Metrics
from fkjoin.metrics.server import Access, Page, PageServer, policy
from fkjoin.plan.describe.picture import STYLE, svg
from fkjoin.plan.describe.steps import Step
from fkjoin.stages import counters

_ROLES = {"left": counters.LEFT_IN, "right": counters.RIGHT_IN}
_PARTS = ("-regroup", "-spread", "-answers", "-rekey", "-subscription", "")
"""Endings of operators that count what comes to a step: its first stage, or the step as a whole."""


def rates_on_arrows(steps: Sequence[Step], snapshot: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Compute what flows, in rows a second of the last batches, as far as operators count it: see ``picture.svg``."""
    operators: dict[str, dict[str, float]] = {}
    for query in snapshot.values():
        operators |= query["rates"]
    found = {}
    for step in steps:
        for role, name in step.reads:
            together = role == "right" and any(stage.name == "scatter" for stage in step.stages)
            if together or (len(step.reads) > 1 and role not in _ROLES):  # it counts the rows of all its tables together
                continue
            told = [(name, counters.OUT)]
            if step.kind != "sink":
                item = _ROLES.get(role, counters.ROWS_IN)
                read = [
                    operator
                    for operator in operators
                    if operator.startswith((f"{step.name}-answers-for-", f"{step.name}-for-"))
                ]
                told = [(operator, item) for operator in (*(f"{step.name}{part}" for part in _PARTS), *read)] + told
            rates = [operators[operator][item] for operator, item in told if item in operators.get(operator, {})]
            if rates:
                found[f"{step.kind} {step.name}", role] = f"{rates[0]:,.0f}/s"
    return found


@contextlib.contextmanager
def served(job: str, steps: Sequence[Step], metrics: Metrics, port: int, access: Access) -> Iterator[str]:
    """The page's address, for as long as it is served.  Raises ``FkJoinError`` when nobody may listen there."""
    page = resources.files("fkjoin").joinpath("data/page.html").read_text(encoding="utf-8")
    scripts, styles = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))

    def status() -> bytes:
        snapshot = metrics.snapshot()
        found = {"job": job, "picture": svg(steps, rates_on_arrows(steps, snapshot)), "queries": snapshot}
        return json.dumps(found).encode()

    pages = {
        "/": Page(page.encode, "text/html; charset=utf-8", policy(scripts, [*styles, STYLE]), secret=False),
        "/status.json": Page(status, "application/json"),
        "/metrics": Page(metrics.prometheus, CONTENT_TYPE_LATEST),
    }
    server = PageServer(pages, port, access, "--ui")
    try:
        yield server.address
    finally:
        server.close()
