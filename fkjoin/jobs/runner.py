"""``fkjoin run``: starts a job's queries, reports their batches, and stops them cleanly.

Besides, what other commands do with a job file: they restore targets, describe the topology, and
look after the topics between stages while the job does not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin.checkpoint.begun import Begun, JobFacts
from fkjoin.checkpoint.claim import claimed, require_unclaimed
from fkjoin.checkpoint.failure import failure
from fkjoin.checkpoint.files import files_at
from fkjoin.checkpoint.progress import QueryPhase, several
from fkjoin.checkpoint.saved import check_logs
from fkjoin.errors import nearest
from fkjoin.jobs.ending import naming_the_end_of_the_jvm, stopped_after
from fkjoin.jobs.follower import Follower, StopAskedError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.jobs.job_sinks import PlannedQuery
from fkjoin.jobs.purging import interval_s, purging
from fkjoin.jobs.screen import Screen
from fkjoin.kafka.purging import (
    InFlight,
    committed_offsets,
    in_flight,
    internal_connections,
    purge,
)
from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, served
from fkjoin.metrics.report import Mode
from fkjoin.metrics.server import ClientAccess, listening
from fkjoin.plan.rules import MOVING, STAGES_SHARE_AN_OPERATOR
from fkjoin.sessions.settings import (
    EXCLUDED,
    OPTIMIZE,
    bucket_count,
    is_client,
    session,
    switched_off,
)
from fkjoin.spark.query_start import starting
from fkjoin.spark.trigger import AVAILABLE_NOW
from fkjoin.storage.local_files import require_writable

_STDOUT = "-"
"""A job's ``log`` that is standard output."""
_POLL_S = 0.3
_PAGE = "--ui"
"""The option that says where the page is."""


def run_job(
    path: Path,
    screen: Screen,
    *,
    check: bool,
    ui: tuple[str, int] | None = None,
    start_over: Sequence[str] = (),
    spark_log: Path | None = None,
) -> None:
    """Run the job until it is stopped (SIGTERM, SIGINT).

    With the trigger ``available-now``, it ends when it has read all that is there.  ``check``:
    build and compare with the checkpoint only.  ``ui``: host and port where a page shows the job.
    ``start_over``: topics that were created again, to be read from their beginnings.
    ``spark_log``: where Spark's log is, to be shown.  Raises ``JobError``; ``FkJoinError`` when a
    query fails.
    """
    spec = _starting_over(read_job(path), start_over)
    if spec.log == _STDOUT:
        screen.aside()
    screen.begin(f"starting Spark{_master(spec)}")
    with stopped_after(job_session(spec)) as spark:
        screen.begin(f"looking at {_tables(spec)}")
        before = Begun.of_job(spark, spec.checkpoint).job
        if before is not None and (later := _leave_out_later_rules(spark, before)):
            screen.say(f"{spec.checkpoint} was begun without {', '.join(later)}: so it continues")
        job = Job(spec, spark)
        planned = job.queries()
        names = [query.name for query in planned]
        checkpoints = [query.checkpoint for query in planned]
        facts = _facts(spark) if before is None else before
        finding = "a new one" if before is None else "the job continues from it"
        screen.begin(f"looking at checkpoint {spec.checkpoint}: {finding}")
        _require_places(spark, spec)
        if check:
            screen.begin(f"checking {', '.join(names)}")
            for checkpoint in checkpoints:
                check_logs(spark, checkpoint)
            job.check()
            if ui is not None:
                listening(ui[1], _access(spec, ui[0]), _PAGE).close()
            for checkpoint in (spec.checkpoint, *checkpoints):
                require_unclaimed(spark, checkpoint)
            screen.wait("stopping Spark")
            console = screen.console
            console.print(
                job.describe(), style="dim", markup=False, highlight=False, soft_wrap=True
            )
            says = f"{path}: fine; {several(len(names), 'query', 'queries')}: {', '.join(names)}"
            console.print(says, markup=False, soft_wrap=True)
            return
        job.require_together()
        for checkpoint in checkpoints:
            # A document that is damaged stops the job before its first query writes.
            Begun.of(spark, checkpoint)
        notes = () if spark_log is None else (f"Spark's log is in {spark_log}",)
        with (
            claimed(spark, spec.checkpoint),
            _signals() as stop,
            _follower(job, screen, ui, names, notes) as follower,
        ):
            job.begun.job = facts
            job.begun.write(spark, spec.checkpoint)
            for checkpoint in checkpoints:
                check_logs(spark, checkpoint)
            screen.watch(follower.report)
            more: Any = {"say": screen.say, "take": follower.take_internal}
            try:
                with (
                    purging(job.stages, checkpoints, interval_s(spec.purge), **more),
                    naming_the_end_of_the_jvm(lambda says: follower.turn(Mode.FAILED, says)),
                ):
                    _run(planned, stop, follower, one_by_one=spec.trigger == AVAILABLE_NOW)
            finally:
                screen.wait("stopping Spark")


def _require_places(spark: SparkSession, spec: JobSection) -> None:
    """Raise ``FkJoinError`` if checkpoint, log or dead letters cannot be written."""
    _require_log(spec)
    letters, tables = spec.dead_letters, dict.fromkeys(sink.table for sink in spec.sinks.values())
    for folder in (spec.checkpoint, *(() if letters is None else map(letters.folder, tables))):
        if folder is not None and (path := files_at(spark, folder).local) is not None:
            require_writable(path)


def _require_log(spec: JobSection) -> None:
    """Raise ``FkJoinError`` if the job's log cannot be written."""
    if spec.log is None or spec.log == _STDOUT:
        return
    log = Path(spec.log).absolute()
    require_writable(log.parent)
    if log.exists() and (log.is_dir() or not os.access(log, os.W_OK)):
        raise JobError(f"log: {log} cannot be written to; name another file")


def restore_job(path: Path, screen: Screen) -> list[str]:
    """Make targets that are not at the batch of the job's checkpoint what its state is.

    Returns their places.
    """
    spec = read_job(path)
    screen.begin(f"starting Spark{_master(spec)}")
    with stopped_after(job_session(spec)) as spark:
        before = Begun.of_job(spark, spec.checkpoint).job
        if before is None:
            raise JobError(
                f"checkpoint: {spec.checkpoint} has no job, so there is nothing to restore"
            )
        _leave_out_later_rules(spark, before)
        job = Job(spec, spark)
        screen.begin(f"comparing targets with checkpoint {spec.checkpoint}")
        with claimed(spark, spec.checkpoint):
            return job.restore()


def _master(spec: JobSection) -> str:
    """Say where Spark runs, and what is fetched first."""
    master = spec.spark.settings.get("spark.master")
    where = "" if master is None else f" at {master}"
    return f"{where}, with the connector for Kafka" if spec.spark.kafka else where


def _tables(spec: JobSection) -> str:
    """Say which tables there are, and which brokers are asked, if there is a topic."""
    tables = f"tables {', '.join(spec.tables)}"
    if spec.kafka is None or not spec.topics:
        return tables
    return f"{tables}, and asking the brokers at {spec.kafka.bootstrap_servers}"


def describe_job(path: Path, form: str, *, optimized: bool = True) -> str:
    """The job's topology, as ``Table.describe`` gives it, with its sinks.

    ``optimized``: as it would run.
    """
    spec = read_job(path)
    with stopped_after(job_session(spec)) as spark:
        if not optimized:
            spark.conf.set(OPTIMIZE, "false")
        return Job(spec, spark).describe(form)


def drained_job(path: Path) -> tuple[list[str], list[InFlight]]:
    """Name the internal topics of a job, and find what is in flight in them.

    Raises ``FkJoinError`` if the job or one of its queries runs: more could come.
    """
    with _idle_job(path) as (spark, job, checkpoints):
        for checkpoint in (job.spec.checkpoint, *checkpoints.values()):
            require_unclaimed(spark, checkpoint)
        stages = job.stages
        return list(internal_connections(stages)), in_flight(spark, stages, checkpoints)


def purge_job(path: Path) -> dict[str, dict[int, int]]:
    """Delete records of a job's internal topics that all its queries have read: see ``purge``."""
    with _idle_job(path) as (spark, job, checkpoints):
        stages = job.stages
        if not stages:
            raise JobError(
                f'{path}: no join or aggregate has deployment = "staged", so there are no internal '
                "topics"
            )
        topics = list(internal_connections(stages))
        folders = checkpoints.values()
        readers = [name for name in folders if committed_offsets(spark, name, topics) != {}]
        return purge(stages, readers)


@contextlib.contextmanager
def _idle_job(path: Path) -> Iterator[tuple[SparkSession, Job, dict[str, str]]]:
    """A job that is not run, and the checkpoints of all its queries by their names."""
    spec = read_job(path)
    with stopped_after(job_session(spec)) as spark:
        job = Job(spec, spark)
        yield spark, job, {query.name: query.checkpoint for query in job.queries()}


def _starting_over(spec: JobSection, topics: Sequence[str]) -> JobSection:
    """The job, with tables of these topics that start over."""
    known = [table.topic for table in spec.tables.values() if table.topic is not None]
    for topic in topics:
        if topic not in known:
            raise JobError(
                f"--start-over: no table of the job is read from topic {topic!r}; "
                f"{nearest(topic, known)}"
            )
    tables = dict(spec.tables)
    for name, table in spec.tables.items():
        if table.topic in topics:
            tables[name] = table.model_copy(update={"on_new_topic": "start-over"})
    return spec.model_copy(update={"tables": tables})


def job_session(spec: JobSection) -> SparkSession:
    """The session that the job's section ``[spark]`` asks for."""
    settings = spec.spark.settings
    master = str(settings.pop("spark.master", "")) or None
    if "spark.remote" in settings:
        raise JobError(
            "spark: spark.remote: jobs need a classic session: write a program that calls "
            "fkjoin.session(remote=…)"
        )
    if is_client():
        raise JobError(
            "spark: this process has Spark Connect, and jobs need a classic session: unset "
            "SPARK_REMOTE, or write a program that calls fkjoin.session()"
        )
    return session(spec.name, master, settings, kafka=spec.spark.kafka)


def _access(spec: JobSection, host: str) -> ClientAccess:
    return ClientAccess(host, tuple(spec.ui.names), spec.ui.token)


@contextlib.contextmanager
def _follower(
    job: Job,
    screen: Screen,
    ui: tuple[str, int] | None,
    names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Iterator[Follower]:
    spec, metrics = job.spec, Metrics()
    with contextlib.ExitStack() as stack:
        if ui is not None:
            access = _access(spec, ui[0])
            shown = ShownJob(spec.name, job.steps(), job.letters)
            address = stack.enter_context(served(shown, metrics, ui[1], access, _PAGE))
            screen.say(f"{address} shows the job, {address}metrics is for Prometheus")
            notes = [*notes, f"page: {address}"]
            if access.open:
                screen.say(
                    "Other hosts can read the page: set a token in section [ui] of the job file, "
                    "or give --ui a port alone"
                )
        log: TextIO | None = sys.stdout if spec.log == _STDOUT else None
        if spec.log is not None and log is None:
            Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(Path(spec.log).open("a", encoding="utf-8"))
        yield Follower(spec, names, notes, metrics=metrics, log=log, screen=screen)


class Stop:
    """A flag for a job that was told to stop.

    No ``Event``: what is interrupted may hold its lock.
    """

    asked = False

    def ask(self, number: int, _: Any) -> None:
        """Handle a signal.

        The first lets the batches at work come to their ends, the second does not.
        """
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


def _run(planned: list[PlannedQuery], stop: Stop, follower: Follower, *, one_by_one: bool) -> None:
    running: dict[PlannedQuery, StreamingQuery] = {}
    follower.stops_when(lambda: stop.asked)
    try:
        try:
            for step in planned:
                if stop.asked:
                    break
                follower.starts(step.name, f"prepares its checkpoint and {step.target}")
                with (
                    contextlib.suppress(StopAskedError),
                    starting(follower.look_around),
                ):
                    running[step] = step.start()
                if one_by_one:
                    _watch(running, stop, follower)
            _watch(running, stop, follower)
        except Exception as error:
            if any(_works(query) for query in running.values()):
                follower.turn(Mode.FAILS, _reason(error))
            _finish(running, stop, follower)
            follower.turn(Mode.FAILED, _reason(error))
            raise
        if stop.asked:
            follower.turn(Mode.STOPS)
        _finish(running, stop, follower)
        follower.turn(Mode.STOPPED if stop.asked else Mode.DONE)
    except SystemExit:  # told twice
        follower.turn(Mode.CUT)
        raise


def _watch(running: dict[PlannedQuery, StreamingQuery], stop: Stop, follower: Follower) -> None:
    """Until all queries are done, one fails, or a stop is asked for."""
    while not stop.asked:
        for step, query in running.items():
            follower.look(step.name, query)
            if not query.isActive:
                follower.look(step.name, query)  # its last batch, if it ended just then
                if (error := failure(query, step.name)) is not None:
                    follower.ends(step.name, QueryPhase.FAILED, _reason(error).partition(": ")[2])
                    raise error
                follower.ends(step.name, QueryPhase.DONE)
        if not any(query.isActive for query in running.values()):
            return
        time.sleep(_POLL_S)


def _reason(error: Exception) -> str:
    """The first line of an error, which says what went wrong."""
    return str(error).partition("\n")[0]


def _works(query: StreamingQuery) -> bool:
    """Tell whether a query works on a batch."""
    return query.isActive and bool(query.status["isTriggerActive"])


def _finish(running: dict[PlannedQuery, StreamingQuery], stop: Stop, follower: Follower) -> None:
    """Let each query's batch at work come to its end, then stop the query, before another one."""
    last = {step: query.lastProgress for step, query in running.items()}
    while last:
        if stop.asked:
            follower.turn(Mode.STOPS)
        for step in list(last):
            query = running[step]
            follower.look(step.name, query)
            if _works(query) and query.lastProgress == last[step]:
                continue
            if query.isActive:
                follower.ends(step.name, QueryPhase.STOPPED)
            query.stop()
            follower.look(step.name, query)
            del last[step]
        time.sleep(0.05)


def _facts(spark: SparkSession) -> JobFacts:
    """Collect the settings that a job begins with."""
    off = switched_off(spark)
    return JobFacts([rule for rule in MOVING if rule not in off])


def _leave_out_later_rules(spark: SparkSession, before: JobFacts) -> list[str]:
    """Switch off the rules that a checkpoint was begun without, and that are bound to it.

    Returns those that were not off yet.
    """
    off = switched_off(spark)
    free = (STAGES_SHARE_AN_OPERATOR,) if bucket_count(spark) > 1 else ()
    later = [rule for rule in MOVING if rule not in (*before.rules, *off, *free)]
    if later:
        spark.conf.set(EXCLUDED, ",".join([*off, *later]))
    return later
