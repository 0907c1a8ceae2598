"""The live page: its files, and what they show, as JSON."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from fkjoin.metrics.collector import Metrics
from fkjoin.metrics.report import BUSY_PHASES, JobReport, Mode, Numbers, QueryReport, table_of
from fkjoin.metrics.server import ClientAccess, PageServer, WebPage, policy
from fkjoin.plan.describe.picture import STYLE, svg
from fkjoin.plan.describe.steps import Step, StepStage
from fkjoin.sinks.counts import LEFT_OUT, Occurrence
from fkjoin.spark.specs import STAGES
from fkjoin.stages import counters

_KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_JSON = "application/json"
_MOST_REASONS = 10
_ROLES = {
    "left": counters.LEFT_IN,
    "right": counters.RIGHT_IN,
    "events": counters.EVENTS_IN,
    "table": counters.ROWS_IN,
}


@dataclass(frozen=True)
class ShownJob:
    """A job as its page names it."""

    job: str
    steps: Sequence[Step] = ()
    """Its topology; none where it is not known."""
    letters: str | None = None
    """The place to which records go that cannot be used, if there is one."""


def pages(shown: ShownJob, metrics: Metrics) -> dict[str, WebPage]:
    """Return the pages of a job, by their paths."""
    html = _text("page.html")
    return {
        "/": WebPage(html.encode, "text/html; charset=utf-8", policy(STYLE), secret=False),
        **{f"/{name}": WebPage(_text(name).encode, kind, secret=False) for name, kind in _files()},
        "/status.json": WebPage(lambda: _json(status(shown, metrics)), _JSON, live=True),
        "/history.json": WebPage(lambda: _json(history(metrics)), _JSON),
        "/metrics": WebPage(metrics.prometheus, CONTENT_TYPE_LATEST),
    }


@contextlib.contextmanager
def served(
    shown: ShownJob, metrics: Metrics, port: int, access: ClientAccess, argument: str
) -> Iterator[str]:
    """The page's address, for as long as it is served: until open pages know how the job has ended.

    Raises ``FkJoinError`` with the ``argument`` when the port cannot be used.
    """
    with contextlib.closing(PageServer(pages(shown, metrics), port, access, argument)) as server:
        try:
            yield server.address
        except Exception:
            server.stay()
            raise
        server.stay()


def status(shown: ShownJob, metrics: Metrics) -> dict[str, Any]:
    """Return what the page shows of this moment."""
    report = metrics._report({step.name for step in shown.steps})
    queries = {name: query for name, query in report.queries.items() if query.batches}
    operators: set[str] = set()
    topics: set[str] = set()
    for query in queries.values():
        operators.update(query.totals, query.state)
        topics.update(query.lag.records)
    rates = _rates_on_arrows(shown.steps, _flows(queries.values()))
    healths = {name: _health(query) for name, query in report.begun.items()}
    busy = [query for query in report.queries.values() if query.phase in BUSY_PHASES]
    return {
        "job": shown.job,
        "now_ms": report.now_ms,
        "began_ms": report.began_ms,
        "doing": {query.name: query.doing for query in busy},
        "ended": _ended(report),
        "picture": svg(_drawn(shown.steps), rates, by_hand=True) if shown.steps else "",
        "steps": [_step(step, operators, topics) for step in shown.steps],
        "queries": {name: query.snapshot() for name, query in queries.items()},
        "health": {**asdict(report.health), "queries": healths},
        "dead_letters": {"place": shown.letters, **_dead_letters(report)},
    }


def history(metrics: Metrics) -> dict[str, Any]:
    """Return the last hour of each query, as columns: see ``History``."""
    report = metrics._report()
    queries = [query for query in report.queries.values() if query.batches]
    columns = {query.name: query.history.columns(report.now_ms) for query in queries}
    return {"now_ms": report.now_ms, "queries": columns}


def _health(query: QueryReport) -> dict[str, Any]:
    return {**asdict(query.health), "read": round(query.read, 2), "delay": round(query.delay, 2)}


def _ended(report: JobReport) -> dict[str, Any] | None:
    """Return how the job has ended; None while it runs."""
    if not report.mode.is_end:
        return None
    state = "failed" if report.mode is Mode.FAILED else "ended"
    why = f": {report.why}" if report.why else "."
    return {"state": state, "words": f"{report.ending}{why}", "at_ms": report.now_ms}


def _drawn(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without the rules of the optimizer, which stand beside the map."""
    drawn = []
    for step in steps:
        facts = tuple(fact for fact in step.facts if fact[0] != "rule")
        drawn.append(replace(step, facts=facts))
    return drawn


def _flows(queries: Iterable[QueryReport]) -> dict[str, dict[str, float]]:
    """Return the rates of operators: 0 where the query reads nothing, as its figure says."""
    flows: dict[str, dict[str, float]] = {}
    for query in queries:
        reads = query.read > 0
        for operator, rates in query.snapshot()["rates"].items():
            flows[operator] = rates if reads else dict.fromkeys(rates, 0.0)
    return flows


def _rates_on_arrows(steps: Sequence[Step], flows: Numbers) -> dict[tuple[str, str], str]:
    """Say what flows, in rows a second of the last batches, as far as operators count it.

    See ``picture.svg``.
    """
    on_arrows = {}
    for step in steps:
        kinds = [STAGES[stage.name] for stage in step.stages if stage.name in STAGES]
        together = any(kind.rights_together for kind in kinds)
        for role, name in step.reads:
            one_of_several = len(step.reads) > 1 and role not in _ROLES
            if one_of_several or (role == "right" and together):
                continue  # the operator counts the rows of all its tables together
            item = _ROLES.get(role, counters.ROWS_IN)
            counting = [*((operator, item) for operator in step.operators), (name, counters.OUT)]
            rates = [flows.get(operator, {}).get(item) for operator, item in counting]
            rate = next((rate for rate in rates if rate is not None), None)
            if rate is not None:
                on_arrows[f"{step.kind} {step.name}", role] = f"{rate:,.0f}/s"
    return on_arrows


def _step(step: Step, operators: Collection[str], topics: Collection[str]) -> dict[str, Any]:
    """Return what the page shows beside the map when this step is chosen."""
    words = re.split(r"[\s,]+", dict(step.facts).get("from", "")) if step.kind == "source" else []
    return {
        "id": f"{step.kind} {step.name}",
        "about": step.about,
        "facts": [*step.facts, *((f"stage {stage.name}", _runs(stage)) for stage in step.stages)],
        "operators": [operator for operator in step.operators if operator in operators],
        "topics": [topic for topic in dict.fromkeys(words) if topic in topics],
    }


def _runs(stage: StepStage) -> str:
    by = stage.input
    return f"{by}, runs {stage.times}" if stage.times else by


def _dead_letters(report: JobReport) -> dict[str, Any]:
    """Return how many there are, where they are, and the last ten reasons, oldest first.

    A reason that comes again is there once, at its last time.
    """
    totals = report.totals(counters.DEAD_LETTERS)
    lately = report.by_table(lambda query: query.history.dead(report.now_ms))
    reasons: dict[tuple[str, str], int] = {}
    for query in report.queries.values():
        for (operator, words), ended_ms in query.reasons.items():
            reason = table_of(operator, report.tables), words
            reasons[reason] = max(ended_ms, reasons.get(reason, 0))
    events = [Occurrence(at_ms, name, LEFT_OUT, words) for (name, words), at_ms in reasons.items()]
    events += [event for event in report.events if event.item == LEFT_OUT]
    events.sort(key=lambda event: event.at_ms)
    return {
        "operators": {name: [lately.get(name, 0), total] for name, total in totals.items()},
        "sinks": report.of_sinks(LEFT_OUT),
        "last": [_shown(event) for event in events[-_MOST_REASONS:]],
    }


def _shown(event: Occurrence) -> dict[str, Any]:
    about = {"at_ms": event.at_ms, "place": event.target, "what": event.item}
    return {**about, "words": event.words}


def _files() -> Iterator[tuple[str, str]]:
    """Yield the names and types of the files that the page loads."""
    for file in resources.files("fkjoin").joinpath("data").iterdir():
        if (kind := _KINDS.get(file.name.rpartition(".")[2])) is not None:
            yield file.name, kind


def _text(name: str) -> str:
    return resources.files("fkjoin").joinpath(f"data/{name}").read_text(encoding="utf-8")


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode()
