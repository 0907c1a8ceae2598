"""The live page: its files, and what they show, as JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from fkjoin.kafka.end_offsets import Silence
from fkjoin.metrics import Metrics
from fkjoin.metrics.flows import rates_on_arrows, table_of
from fkjoin.metrics.health import of_job, of_query
from fkjoin.metrics.history import History
from fkjoin.metrics.query_metrics import QueryMetrics
from fkjoin.metrics.server import WebPage, policy
from fkjoin.plan.describe.picture import STYLE, svg
from fkjoin.plan.describe.steps import Step, StepStage
from fkjoin.sinks.counts import LEFT_OUT, Occurrence, counted, last_events
from fkjoin.stages.counters import DEAD_LETTERS

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_MOST_REASONS = 10


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
        "/": WebPage(html.encode, "text/html; charset=utf-8", policy([STYLE]), secret=False),
        **{f"/{name}": WebPage(_text(name).encode, kind, secret=False) for name, kind in _files()},
        "/status.json": WebPage(_as_json(partial(status, shown, metrics)), "application/json", live=True),
        "/history.json": WebPage(_as_json(partial(history, metrics)), "application/json"),
        "/metrics": WebPage(metrics.prometheus, CONTENT_TYPE_LATEST),
    }


def status(shown: ShownJob, metrics: Metrics) -> dict[str, Any]:
    """Return what the page shows of this moment."""
    now_ms, snapshot = _now_ms(), metrics.snapshot()
    operators = dict.fromkeys(name for query in snapshot.values() for kind in ("totals", "state") for name in query[kind])
    health = metrics._look(partial(_health, now_ms, metrics._silences(), waiting=metrics._waits_first()))
    rates = rates_on_arrows(shown.steps, _flowing(snapshot, health["queries"]))
    return {
        "job": shown.job,
        "now_ms": now_ms,
        "began_ms": metrics._began_ms,
        "doing": metrics._doing(),
        "ended": metrics._ended_job(),
        "picture": svg(_drawn(shown.steps), rates, by_hand=True) if shown.steps else "",
        "steps": [_step(step, operators, snapshot) for step in shown.steps],
        "queries": snapshot,
        "health": health,
        "dead_letters": metrics._look(partial(_dead_letters, shown, now_ms)),
    }


def history(metrics: Metrics) -> dict[str, Any]:
    """Return the last hour of each query, as columns: see ``History``."""
    now_ms = _now_ms()

    def look(queries: Mapping[str, QueryMetrics], *_: Any) -> dict[str, Any]:
        return {name: query.history.columns(now_ms) for name, query in queries.items()}

    return {"now_ms": now_ms, "queries": metrics._look(look)}


def _drawn(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without the rules of the optimizer, which stand beside the map when a step is chosen."""
    return [replace(step, facts=tuple(fact for fact in step.facts if fact[0] != "rule")) for step in steps]


def _flowing(snapshot: Mapping[str, Any], health: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the snapshot with rates of 0 where a query reads nothing, as its figure says."""
    still = {name for name, one in health.items() if not one.get("read")}
    return {
        name: {**query, "rates": {operator: dict.fromkeys(row, 0.0) for operator, row in query["rates"].items()}}
        if name in still
        else query
        for name, query in snapshot.items()
    }


def _step(step: Step, operators: Mapping[str, None], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows beside the map when this step is chosen."""
    words = set(re.split(r"[\s,]+", dict(step.facts).get("from", ""))) if step.kind == "source" else set()
    topics = dict.fromkeys(topic for query in snapshot.values() for topic in query["lag"] if topic in words)
    return {
        "id": f"{step.kind} {step.name}",
        "about": step.about,
        "facts": [*step.facts, *((f"stage {stage.name}", _runs(stage)) for stage in step.stages)],
        "operators": [operator for operator in step.operators if operator in operators],
        "topics": list(topics),
    }


def _runs(stage: StepStage) -> str:
    by = f"repartition by {stage.repartition_by}"
    return f"{by}, runs {stage.times}" if stage.times else by


def _health(
    now_ms: int,
    silences: Mapping[str, Sequence[Silence]],
    queries: Mapping[str, QueryMetrics],
    started: Mapping[str, int],
    ended: Mapping[str, str],
    *,
    waiting: Mapping[str, History],
) -> dict[str, Any]:
    found = {}
    for name in dict.fromkeys([*started, *queries]):
        past = queries[name].history if name in queries else waiting.get(name, History())
        health = of_query(past, started.get(name, now_ms), ended.get(name), now_ms, silences.get(name, ()))
        waits = queries[name].waits_for() if name in queries and name not in ended else ""
        found[name] = replace(health, words=health.words + waits)
    last = max((query.ended_ms for query in queries.values()), default=0)
    whole = of_job(found, last_events(), last, now_ms)
    figures = {name: _figures(query.history, now_ms, name in ended) for name, query in queries.items()}
    return {**asdict(whole), "queries": {name: {**asdict(one), **figures.get(name, {})} for name, one in found.items()}}


def _figures(past: History, now_ms: int, ended: bool) -> dict[str, float]:
    """Return rows read a second, which fall when no batch ends, and the delay of the last batches."""
    last = past.points[-1]
    passed = max(last.passed, (now_ms - last.ended_ms) / 1000)
    nothing = ended or past.waits or passed <= 0
    return {"read": 0.0 if nothing else round(last.read / passed, 2), "delay": round(last.delay, 2)}


def _dead_letters(shown: ShownJob, now_ms: int, queries: Mapping[str, QueryMetrics], *_: Any) -> dict[str, Any]:
    """Return how many there are, where they are, and the last ten reasons that this process knows, oldest first.

    An operator that several queries run, or that runs for several readers, counts the same rows each time: the most hold.  A
    reason that comes again is there once, at its last time.
    """
    tables = {step.name for step in shown.steps}
    found: dict[str, list[int]] = {}
    reasons: dict[tuple[str, str], int] = {}
    for query in queries.values():
        lately = query.history.dead(now_ms)
        for operator, known in query.operators.items():
            if (total := known.totals[DEAD_LETTERS]) > 0:
                before = found.get(name := table_of(operator, tables), [0, 0])
                found[name] = [max(before[0], lately[operator]), max(before[1], total)]
                for at_ms, words in known.reasons:
                    reasons[name, words] = max(at_ms, reasons.get((name, words), 0))
    events = [Occurrence(at_ms, name, LEFT_OUT, words) for (name, words), at_ms in reasons.items()]
    events += [event for event in last_events() if event.what == LEFT_OUT]
    return {
        "place": shown.letters,
        "operators": found,
        "sinks": {where: number for (what, where), number in counted().items() if what == LEFT_OUT},
        "last": [asdict(event) for event in sorted(events, key=lambda event: event.at_ms)[-_MOST_REASONS:]],
    }


def _files() -> Iterator[tuple[str, str]]:
    """Yield the names and types of the files that the page loads."""
    for file in resources.files("fkjoin").joinpath("data").iterdir():
        if (kind := _KINDS.get(file.name.rpartition(".")[2])) is not None:
            yield file.name, kind


def _text(name: str) -> str:
    return resources.files("fkjoin").joinpath(f"data/{name}").read_text(encoding="utf-8")


def _as_json(make: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    return lambda: json.dumps(make(), allow_nan=False).encode()


def _now_ms() -> int:
    return round(1000 * time.time())
