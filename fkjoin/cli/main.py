"""The command line: ``fkjoin run``, ``restore``, ``describe``, ``doctor``, ``state`` and others."""

from __future__ import annotations

import enum
import json
import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fkjoin import __version__
from fkjoin.cli.quiet import (
    SparkLogOption,
    cause_line,
    log_file,
    of_spark,
    quiet_spark,
    spark_log,
    the_rest,
)
from fkjoin.cli.state import JobFile
from fkjoin.cli.state import app as state_app
from fkjoin.errors import FkJoinError
from fkjoin.jobs.ending import end_when_told

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Foreign-key table joins on Spark, kept up to date through updates and deletes on both "
    "sides.",
    epilog="Start with: fkjoin init && fkjoin run job.toml",
)
_START = "Start (fkjoin run job.toml --ui 8080)"
_LOOK = "Look (fkjoin state get o1 checkpoint/sink-joined)"
_MORE = "More (fkjoin restore job.toml)"
"""Groups of commands in the help, each with an example."""
app.add_typer(state_app, name="state", rich_help_panel=_LOOK)

_FILES_JOB = {
    "orders/1.csv": "init-orders.csv",
    "customers/1.csv": "init-customers.csv",
    "job.toml": "init-files.toml",
}
"""The first files of a job from files: paths in the user's folder, and names in ``fkjoin.data``."""
_KAFKA_JOB = {"job.toml": "init-kafka.toml"}


class Drawing(str, enum.Enum):
    """A form in which a topology is shown."""

    text = "text"
    json = "json"
    mermaid = "mermaid"
    svg = "svg"


@app.command(
    rich_help_panel=_START,
    help="Join bundled change logs of orders and customers, and check the result with a batch "
    "join.",
)
def demo(
    folder: Annotated[
        Path,
        typer.Option(
            "--dir",
            help="Folder for input, output and checkpoint. It is kept, so a second run continues.",
        ),
    ] = Path("fkjoin-demo"),
) -> None:
    from fkjoin.cli.demo import run_demo

    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_spark(folder / "spark.log"):
        outcome = run_demo(folder, console)
    if outcome.wrong:
        raise typer.Exit(1)


@app.command(
    rich_help_panel=_START,
    help="Write a job file, job.toml, that joins orders with customers.\n\n"
    "A job from files comes with two small CSV files, so that it runs at once.",
)
def init(
    kafka: Annotated[
        bool,
        typer.Option("--kafka/--files", help="Read Kafka topics, or files."),
    ] = False,
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder for the files. It is created if needed.")
    ] = Path(),
) -> None:
    templates = _KAFKA_JOB if kafka else _FILES_JOB
    # Nothing is written if a file, or its folder, exists: a job reads all files of a folder.
    for path in templates:
        first = folder / Path(path).parts[0]
        if first.exists():
            raise FkJoinError(
                f"{first} already exists, so nothing was written; give another folder with --dir"
            )
    for path, template in templates.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files("fkjoin.data").joinpath(template).read_text())
        print(f"wrote {target}")
    change_folder = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    if kafka:
        print("Set the broker and the topics in job.toml, and create the topic joined.")
        print(f"Check it: {change_folder}fkjoin run job.toml --check")
        return
    print(f"Run it: {change_folder}fkjoin run job.toml")
    print("Look at a row: fkjoin state get o1 checkpoint/sink-joined")


@app.command(
    rich_help_panel=_START,
    help="Run a job.  Ctrl-C or SIGTERM finishes the running batches, then stops.",
)
def run(
    job: JobFile,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Validate the job, its topics, sinks and checkpoint, then exit. The last line "
            "says whether the job would start.",
        ),
    ] = False,
    log: SparkLogOption = None,
    ui: Annotated[
        str,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve a page of the job there, and /metrics; without HOST, only to this machine.",
        ),
    ] = "",
    start_over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Read a topic that was deleted and created again from its beginning. "
            "An error names this option when a topic needs it.",
        ),
    ] = None,
) -> None:
    from fkjoin.jobs.screen import screen_on

    file, address = log_file(log), _address(ui) if ui else None
    with spark_log(file), screen_on(Console()) as screen:
        screen.wait(f"reading {job}")
        from fkjoin.checkpoint.failure import QueryError
        from fkjoin.jobs.runner import run_job  # which takes a second or two

        topics = start_over or ()
        try:
            run_job(job, screen, check=check, ui=address, start_over=topics, spark_log=file)
        except QueryError as error:
            raise QueryError(f"{error}\n{the_rest(file)}", error.details) from None


@app.command(
    rich_help_panel=_START,
    help="Check Java, PySpark, the Kafka connector, the workers' Python and the brokers, and say "
    "how to fix what is wrong.",
)
def doctor(
    bootstrap_servers: Annotated[str, typer.Option(help="Brokers to connect to, host:port.")] = "",
    master: Annotated[
        str, typer.Option(help="The Spark master to start a session on.")
    ] = "local[2]",
    jars: Annotated[str, typer.Option(help="The connector's jars, as for spark.jars.")] = "",
    packages: Annotated[str, typer.Option(help="The connector, as for spark.jars.packages.")] = "",
) -> None:
    from fkjoin.cli.doctor import examine

    console = Console()
    named = {"spark.jars": jars, "spark.jars.packages": packages}
    settings = {name: value for name, value in named.items() if value}
    with quiet_spark():
        findings = examine(master, bootstrap_servers, settings)
    for finding in findings:
        mark = "[green]ok [/]" if finding.fine else "[red]bad[/]"
        words = escape(f"{finding.subject}: {finding.state}")
        console.print(f"{mark} {words}", highlight=False, soft_wrap=True)
        if not finding.fine:
            console.print(f"    {escape(finding.advice)}", soft_wrap=True)
    if not all(finding.fine for finding in findings):
        raise typer.Exit(1)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        problem = f"{text!r} is not a port or host:port, such as 8080 or 0.0.0.0:8080"
        raise typer.BadParameter(problem, param_hint="--ui")
    return host or "127.0.0.1", int(port)


@app.command(rich_help_panel=_LOOK)
def describe(
    job: JobFile,
    format: Annotated[
        Drawing, typer.Option(help="mermaid: a flowchart; svg: a picture.")
    ] = Drawing.text,
    optimized: Annotated[
        bool,
        typer.Option("--optimized/--as-written", help="With or without the optimizer's rules."),
    ] = True,
    log: SparkLogOption = None,
) -> None:
    """Print the topology of a job: its tables, operators, stores, repartitions and topics.

    It starts Spark, and no query."""
    from fkjoin.jobs.runner import describe_job

    with spark_log(log_file(log)):
        print(describe_job(job, format.value, optimized=optimized))


@app.command(
    rich_help_panel=_MORE,
    help="Make a stopped job's targets equal to its checkpoint, after either was restored from a "
    "backup.",
)
def restore(job: JobFile, log: SparkLogOption = None) -> None:
    from fkjoin.jobs.screen import screen_on

    console = Console()
    with spark_log(log_file(log)), screen_on(console) as screen:
        from fkjoin.jobs.runner import restore_job  # which takes a second or two

        places = restore_job(job, screen)
    lines = [f"{target} is at the checkpoint's batch again" for target in places]
    unchanged = ["all targets are at the checkpoint's batch: nothing was changed"]
    for line in lines or unchanged:
        console.print(line, markup=False, soft_wrap=True)


@app.command(rich_help_panel=_MORE)
def schema() -> None:
    """Print the JSON Schema of job files, with which editors complete and check them."""
    from fkjoin.jobs.job_file import json_schema

    print(json.dumps(json_schema(), indent=1))


@app.command(
    rich_help_panel=_MORE,
    help="Cache Spark's classes in a file (200 MiB), so that local sessions start some seconds "
    "faster.\n\n"
    "Run it again after an upgrade of Spark or Java.  The variable FKJOIN_CLASSES names "
    "another place for the file.  If it is empty, or the file is deleted, sessions start "
    "without the file.",
)
def prepare() -> None:
    from fkjoin.sessions.class_archive import make
    from fkjoin.sessions.own_folder import held_folder

    status = Console(stderr=True).status(
        "Running the demo, whose JVM writes its classes to a file: about a minute."
    )
    with held_folder() as folder, status:
        file = make([sys.executable, "-m", "fkjoin", "demo", "--dir", str(folder / "demo")])
    print(f"Local sessions start from {file} ({file.stat().st_size >> 20} MiB).")


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"fkjoin {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors of fkjoin, Spark and files are a line on standard error, with status 1.

    A query that failed has a few lines.
    """
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    end_when_told()
    try:
        app()
    except Exception as error:
        if not isinstance(error, FkJoinError | OSError) and not of_spark(error):
            raise
        words = cause_line(error) if of_spark(error) else error
        print(f"fkjoin: {words}", file=sys.stderr)
        sys.exit(1)
