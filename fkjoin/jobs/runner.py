"""``fkjoin run``: starts a job's queries, reports their batches, and stops them cleanly."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid

from fkjoin.checkpoint.claim import claimed
from fkjoin.checkpoint.damage import check_logs
from fkjoin.checkpoint.failure import failure
from fkjoin.checkpoint.files import hadoop, read_file, write_file
from fkjoin.errors import nearest
from fkjoin.jobs.ending import stopped_after
from fkjoin.jobs.job import Job, Planned
from fkjoin.jobs.job_file import JobError, JobSpec, read_job
from fkjoin.jobs.web import served
from fkjoin.metrics import Metrics, progress_since
from fkjoin.metrics.server import Access
from fkjoin.plan.manifest import manifest
from fkjoin.plan.rules import JOINS_SHARE_STAGES, MOVING, WORKERS_EVALUATE_STEPS
from fkjoin.sessions.settings import EXCLUDED, OPTIMIZE, bucket_count, session, switched_off
from fkjoin.spark.trigger import AVAILABLE_NOW
from fkjoin.stages.counters import RESTARTS

MANIFEST = "fkjoin-job.json"
"""Lies in the checkpoint folder: what the checkpoint was made with."""

_UNSAID = tuple(rule for rule in MOVING if rule not in (JOINS_SHARE_STAGES, WORKERS_EVALUATE_STEPS))
"""The rules that there were when a manifest did not say which."""

_POLL_S = 0.3


def run_job(
    path: Path,
    console: Console,
    *,
    check: bool,
    ui: tuple[str, int] | None = None,
    start_over: Sequence[str] = (),
    set_back: bool = False,
) -> None:
    """Run the job until it is stopped (SIGTERM, SIGINT) or, with the trigger ``available-now``, has read all that is there.

    ``check``: build and compare with the checkpoint only.  ``ui``: host and port where a page shows the job.
    ``start_over``: topics that were made anew, to be read from their beginnings.  ``set_back``: set sinks back to a checkpoint
    that was restored from a backup.  Raises ``JobError``; ``FkJoinError`` when a query fails.
    """
    spec = _starting_over(read_job(path), start_over)
    with stopped_after(job_session(spec)) as spark:
        before = _begun_with(spark, spec)
        if before is not None and (later := _leave_out_later_rules(spark, before)):
            console.print(f"{spec.checkpoint} was begun without {', '.join(later)}: so it goes on", soft_wrap=True)
        job = Job(spec, spark, "set-back" if set_back else "fail")
        planned = job.queries()
        made_with = _manifest(job, spark)
        if before is not None:
            _compare(spec, before, made_with)
            made_with["rules"] = before.get("rules", list(_UNSAID))
        if check:
            for query in planned:
                check_logs(spark, query.checkpoint)
            job.check()
            console.print(job.describe(), style="dim", highlight=False, soft_wrap=True)
            console.print(f"{path}: fine; {len(planned)} queries: {', '.join(query.name for query in planned)}", soft_wrap=True)
            return
        names = [query.name for query in planned]
        with claimed(spark, spec.checkpoint), _signals() as stop, _report(job, console, ui, names) as report:
            _keep(spark, spec, made_with)
            job.keep_schemas()
            for query in planned:
                check_logs(spark, query.checkpoint)
            _run(planned, stop, report, one_by_one=spec.trigger == AVAILABLE_NOW)


def describe_job(path: Path, form: str, *, optimized: bool = True) -> str:
    """The job's topology, as ``Table.describe`` gives it, with its sinks; ``optimized``: as it would run."""
    spec = read_job(path)
    with stopped_after(job_session(spec)) as spark:
        if not optimized:
            spark.conf.set(OPTIMIZE, "false")
        return Job(spec, spark).describe(form)


def _starting_over(spec: JobSpec, topics: Sequence[str]) -> JobSpec:
    """The job, with tables of these topics that start over."""
    known = [table.topic for table in spec.tables.values() if table.topic is not None]
    for topic in topics:
        if topic not in known:
            raise JobError(f"--start-over: no table of the job is read from topic {topic!r}; {nearest(topic, known)}")
    again = {"on_new_topic": "start-over"}
    tables = {name: one.model_copy(update=again if one.topic in topics else {}) for name, one in spec.tables.items()}
    return spec.model_copy(update={"tables": tables})


def job_session(spec: JobSpec) -> SparkSession:
    """The session that the job's section ``[spark]`` asks for."""
    settings = spec.spark.settings
    master = settings.pop("spark.master", None)
    if "spark.remote" in settings:
        raise JobError("spark: spark.remote: jobs need a classic session: write a program that calls fkjoin.session(remote=…)")
    return session(spec.name, None if master is None else str(master), settings, kafka=spec.spark.kafka)


class Report:
    """Take down each batch once: a JSON line in the log, a row on the terminal, and at the end a line for each query."""

    def __init__(self, log: TextIO | None, live: Live | None, console: Console, metrics: Metrics, names: Sequence[str]) -> None:
        self._log, self._live, self._console, self._metrics = log, live, console, metrics
        self._seen: dict[str, int] = {}
        self._rows: dict[str, tuple[str, ...]] = {name: (name, "none yet", "", "", "") for name in names}
        self._draw()

    def look(self, name: str, query: StreamingQuery) -> None:
        """Report the batches that are new."""
        for progress in progress_since(query, self._seen.get(str(query.runId), -1)):
            self._seen[str(query.runId)] = progress.batchId
            if (line := self._metrics.take(progress, name)) is None:
                continue
            if self._log is not None:
                print(json.dumps(line), file=self._log, flush=True)
            for operator, counted in line["counters"].items():
                if restarted := counted.get(RESTARTS):
                    self._console.print(
                        f"{name}: batch {progress.batchId}: {operator}: {restarted:,} rows started over: their topic "
                        "was created again, or is another one; what came last counts",
                        soft_wrap=True,
                    )
            seconds = line["seconds"]
            rate = f"{progress.numInputRows / seconds:,.0f}" if seconds else ""
            self._rows[name] = (name, str(progress.batchId), f"{progress.numInputRows:,}", f"{seconds:.1f}", rate)
        self._draw()

    def ended(self) -> None:
        """Say what was done, where no lines of JSON are read."""
        if self._log is sys.stdout:
            return
        known = self._metrics.snapshot()
        for name in self._rows:
            batches, inputs = (known[name][item] if name in known else 0 for item in ("batches", "all_inputs"))
            words = f"{name}: {batches} batch{'es' * (batches != 1)}, {inputs:,} row{'s' * (inputs != 1)} read"
            self._console.print(words, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        if self._live is not None:
            grid = Grid("query", "batch", "inputs", "seconds", "inputs/s")
            for row in self._rows.values():
                grid.add_row(*row)
            self._live.update(grid)


@contextlib.contextmanager
def _report(job: Job, console: Console, ui: tuple[str, int] | None, names: Sequence[str] = ()) -> Iterator[Report]:
    spec, metrics = job.spec, Metrics()
    with contextlib.ExitStack() as stack:
        if ui is not None:
            access = Access(ui[0], tuple(spec.ui.names), spec.ui.token)
            address = stack.enter_context(served(spec.name, job.steps(), metrics, ui[1], access))
            console.print(f"{address} shows the job, {address}metrics is for Prometheus", highlight=False, soft_wrap=True)
            if access.open:
                console.print(
                    "Everybody that reaches this machine can read it: give a token in section [ui] of the job file, or --ui "
                    "a port without a host",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
        live = stack.enter_context(Live(console=console)) if console.is_terminal else None
        log: TextIO | None = None if console.is_terminal else sys.stdout
        if spec.log is not None:
            Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(Path(spec.log).open("a", encoding="utf-8"))
        yield Report(log, live, console, metrics, names)


class Stop:
    """A flag for a job that was told to stop.  No ``Event``: what is interrupted may hold its lock."""

    asked = False

    def ask(self, number: int, _: Any) -> None:
        """Handle a signal.  The first lets the batches at work come to their ends, the second does not."""
        if self.asked:
            raise SystemExit(128 + number)
        self.asked = True


@contextlib.contextmanager
def _signals() -> Iterator[Stop]:
    """Handle SIGTERM and SIGINT."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(planned: list[Planned], stop: Stop, report: Report, *, one_by_one: bool) -> None:
    running: dict[Planned, StreamingQuery] = {}
    try:
        for step in planned:
            running[step] = step.start()
            if one_by_one:
                _watch(running, stop, report)
        _watch(running, stop, report)
    except Exception:
        _finish(running, report)
        raise
    _finish(running, report)
    report.ended()


def _watch(running: dict[Planned, StreamingQuery], stop: Stop, report: Report) -> None:
    """Until all queries are done, one fails, or a stop is asked for."""
    while not stop.asked:
        for step, query in running.items():
            report.look(step.name, query)
            if not query.isActive and (error := failure(query, step.name)) is not None:
                raise error
        if not any(query.isActive for query in running.values()):
            return
        time.sleep(_POLL_S)


def _finish(running: dict[Planned, StreamingQuery], report: Report) -> None:
    """Let the batches that are being worked on come to their ends, then stop."""
    for step, query in running.items():
        last = query.lastProgress
        while query.isActive and query.status["isTriggerActive"] and query.lastProgress == last:
            time.sleep(0.05)
        query.stop()
        report.look(step.name, query)


def _manifest(job: Job, spark: SparkSession) -> dict[str, Any]:
    """Collect what binds a checkpoint, by table and operator; and which rules of the optimizer there were."""
    found: dict[str, Any] = {}
    for sink in job.spec.sinks.values():
        found |= manifest(job.tables[sink.table]._planned.node)
    off = switched_off(spark)
    return {"format": 1, "buckets": bucket_count(spark), "rules": [rule for rule in MOVING if rule not in off], **found}


def _begun_with(spark: SparkSession, spec: JobSpec) -> dict[str, Any] | None:
    """Read what the checkpoint was made with; None if there is none yet."""
    path, files = hadoop(spark, f"{spec.checkpoint}/{MANIFEST}")
    return json.loads(read_file(path, files)) if files.exists(path) else None


def _leave_out_later_rules(spark: SparkSession, before: dict[str, Any]) -> list[str]:
    """Switch off the rules that a checkpoint was begun without, and that are bound to it; those that were not off yet."""
    off = switched_off(spark)
    later = [rule for rule in MOVING if rule not in before.get("rules", _UNSAID) and rule not in off]
    if later:
        spark.conf.set(EXCLUDED, ",".join([*off, *later]))
    return later


def _compare(spec: JobSpec, before: dict[str, Any], made_with: dict[str, Any]) -> None:
    """``JobError`` when the checkpoint was made with something else."""
    for name in (before.keys() & made_with.keys()) - {"rules"}:
        was, now = before[name], made_with[name]
        if was != now and isinstance(was, dict):
            changed = next(setting for setting in {**now, **was} if now.get(setting) != was.get(setting))
            name, was, now = f"{name}: {changed}", was.get(changed), now.get(changed)
        if was != now:
            raise JobError(
                f"checkpoint: {spec.checkpoint} was made with {name} = {json.dumps(was)}, the job now has {json.dumps(now)}: "
                "give the job a new checkpoint, or go back to what it was"
            )


def _keep(spark: SparkSession, spec: JobSpec, made_with: dict[str, Any]) -> None:
    write_file(*hadoop(spark, f"{spec.checkpoint}/{MANIFEST}"), json.dumps(made_with, indent=1).encode())
