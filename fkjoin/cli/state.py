"""The command line's ``fkjoin state``: looking at a checkpoint's state and looking after it."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table as Grid

from fkjoin.cli.quiet import SparkLogOption, log_file, quiet_spark, spark_log
from fkjoin.errors import FkJoinError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fkjoin.checkpoint.saved_files import SavedFiles

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Look at the state in a checkpoint after any committed batch; verify, rebuild or rescale "
        "it; prune indexes; check and purge internal topics."
    ),
)

Checkpoint = Annotated[
    str,
    typer.Argument(
        help="A query's checkpoint; in a job CHECKPOINT/sink-NAME, or sinks-TABLE if sinks share a "
        "query."
    ),
]
JobFile = Annotated[
    Path,
    typer.Argument(help="A job file (TOML): tables, joins, sinks.", exists=True, dir_okay=False),
]
_Batch = Annotated[
    int | None,
    typer.Option(help="Read the state after this batch; by default the last committed one."),
]


class ExportFormat(str, enum.Enum):
    """Format of exported files."""

    json = "json"
    parquet = "parquet"


@app.command("ls")
def list_stores(checkpoint: Checkpoint, batch: _Batch = None) -> None:
    """List the stores with their buckets, partitions and sizes.

    Each line is the store of a stage; those next to the sources come first:

    - `operator`: the operator's name, as `fkjoin state get --operator` takes it

    - `folder`: the folder of the store's files in the checkpoint

    - `buckets`: how many of all buckets contain data

    - `partitions`: the number of tasks that share the buckets

    - `segments`: pieces of the change log, one for each bucket and batch

    - `live`, `log`: sizes of the records and of the change log, before compression

    - `materialized`: the name by which `read_state` reads the store's rows, or no
    """
    from fkjoin.checkpoint.saved import in_session, metas, saved_stores

    with _session(checkpoint, batch) as spark:
        stores = saved_stores(spark, checkpoint, batch)
        batches = in_session(spark, checkpoint).folder.numbers("commits")
        shown = batches[-1] if batch is None else batch
        readable = f"batches {batches[0]} to {batches[-1]} can be read"
        grid = Grid(title=f"State after batch {shown} ({readable})", box=None)
        for column in ("store", "operator", "folder", "buckets", "partitions"):
            grid.add_column(column, no_wrap=True)
        for column in ("segments", "live", "log"):
            grid.add_column(column, no_wrap=True, justify="right")
        grid.add_column("materialized", no_wrap=True)
        for store in stores:
            logs = metas(spark, store)
            live = decimal(max(0, sum(log.live_bytes for log in logs)))
            whole = decimal(max(0, sum(log.log_bytes for log in logs)))
            segments = sum(log.next - log.first for log in logs)
            names = store.name, store.operator_name, f"state/{store.operator}"
            counts = f"{len(logs)} of {store.buckets}", str(len(store.partitions)), str(segments)
            materialized = store.identity[0].get("materialized") or "no"
            grid.add_row(*names, *counts, live, whole, materialized)
    Console(width=max(Console().width, 140)).print(grid)


@app.command(
    help="Print the state of one left row: its foreign key, subscription, right row and result.\n\n"
    "For an aggregate: the contribution of the row with this key, and the row of the group with "
    "this key.\n\n"
    "A materialized join shows the whole result. Otherwise the state contains a hash of it, and "
    "`row` and `timestamp` are null.\n\n"
    "If an aggregate reads the join, the result may be missing: ask the aggregate."
)
def get(
    key: Annotated[
        str,
        typer.Argument(help="A key: its text, or JSON; a JSON list for a key of several columns."),
    ],
    checkpoint: Checkpoint,
    batch: _Batch = None,
    operator: Annotated[
        str, typer.Option(help="The name of the join, aggregate, …, if the checkpoint has several.")
    ] = "",
) -> None:
    from fkjoin.checkpoint.entries import look_up, remarks
    from fkjoin.checkpoint.saved_files import files_here
    from fkjoin.checkpoint.stores import SavedStore, with_stores

    def known(stores: list[SavedStore]) -> tuple[list[dict[str, Any]], list[str]]:
        entries = look_up(stores, operator, key)
        return entries, remarks(stores, operator, entries)

    files: SavedFiles | None = files_here(checkpoint)
    with contextlib.ExitStack() as session:
        if files is None:
            from fkjoin.checkpoint.saved import in_session

            files = in_session(session.enter_context(_session()), checkpoint)
        entries, notes = with_stores(files, batch, known)
    for entry in entries:
        print(json.dumps(entry, ensure_ascii=False))
    if not entries:
        print(f"no state for key {key}")
    for note in notes:
        print(note, file=sys.stderr)


@app.command()
def export(
    checkpoint: Checkpoint,
    out: Annotated[str, typer.Argument(help="A folder that does not exist yet.")],
    batch: _Batch = None,
    store: Annotated[
        list[str] | None, typer.Option(help="A store, by its name in `ls`; all if left out.")
    ] = None,
    format: Annotated[ExportFormat, typer.Option(help="Format of the files.")] = ExportFormat.json,
) -> None:
    """Write every record in readable form to files, with a folder for each store."""
    from fkjoin.checkpoint.saved import entries, saved_stores
    from fkjoin.checkpoint.stores import named

    with _session(checkpoint, batch) as spark:
        stores = saved_stores(spark, checkpoint, batch)
        for chosen in [named(name, stores) for name in store] if store else stores:
            folder = f"{out.rstrip('/')}/{chosen.name}"
            try:
                entries(spark, chosen).write.format(format.value).save(folder)
            except Exception as error:
                if "PATH_ALREADY_EXISTS" not in str(error):
                    raise
                raise FkJoinError(
                    f"out: {folder} already exists; give a folder that does not"
                ) from error
            print(folder)


@app.command(
    help="Print the columns that tables without a schema have found in their files, as texts for "
    "`schema`."
)
def columns(
    checkpoint: Annotated[str, typer.Argument(help="A query's checkpoint, or a job's.")],
) -> None:
    from fkjoin.checkpoint.begun import Begun
    from fkjoin.spark.spark_api import java_frame

    with _session() as spark:
        texts = {}
        begun = Begun.read(spark, checkpoint) or Begun()
        for name, learned in begun.columns.items():
            if learned.schema:
                frame = java_frame(spark.createDataFrame([], learned.schema))
                texts[name] = frame.schema().toDDL()
    for name, text in texts.items():
        print(f"{name}: {text}")
    if not texts:
        print(f"{checkpoint} keeps no columns of files")


@app.command()
def verify(checkpoint: Checkpoint, batch: _Batch = None) -> None:
    """Read all state, and print each inconsistency.  The exit status is 1 if there is one."""
    from fkjoin.checkpoint.upkeep import verified

    with _session(checkpoint, batch) as spark:
        problems, stores = verified(spark, checkpoint, batch=batch)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else f"the state is consistent: {stores} stores")
    if problems:
        raise typer.Exit(1)


@app.command()
def rebuild(
    checkpoint: Checkpoint,
    index_dir: Annotated[
        str, typer.Option(help="The job's spark.fkjoin.index.dir, if it sets one.")
    ] = "",
) -> None:
    """Rebuild this machine's local indexes from the checkpoint.  Its query must be stopped."""
    from fkjoin.checkpoint.upkeep import rebuild as remake

    with _session(checkpoint) as spark:
        for folder in remake(spark, checkpoint, index_dir):
            print(folder)


@app.command(
    help="List the local indexes on this machine: kept if their checkpoint exists, gone if it does"
    " not, or unknown."
)
def prune(
    index_dir: Annotated[
        str, typer.Option(help="The jobs' spark.fkjoin.index.dir, if they set one.")
    ] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove those whose checkpoints are gone.")
    ] = False,
) -> None:
    from fkjoin.checkpoint import indexes
    from fkjoin.spark.index_home import index_base

    base = index_base(index_dir)
    with _session() as spark:
        known = indexes.found(spark, base)
    for index in known:
        print(f"{index.fate:7} {decimal(index.size):>10} {index.folder}: {index.why}")
    gone = indexes.remove(known) if remove else [index for index in known if index.fate == "gone"]
    size = decimal(sum(index.size for index in gone))
    if not gone:
        print(f"no index under {base} belongs to a checkpoint that is gone")
    elif remove:
        print(f"{len(gone)} removed, {size}")
    else:
        print(f"{len(gone)} of checkpoints that are gone, {size}; --remove removes them")


@app.command(
    help="Distribute the state over more or fewer partitions, for more or fewer cores.  The query "
    "must be stopped.  Requires Spark 4.2."
)
def rescale(
    checkpoint: Checkpoint,
    partitions: Annotated[int, typer.Argument(min=1, help="A divisor of the number of buckets.")],
) -> None:
    from fkjoin.checkpoint.upkeep import rescale as spread

    with _session(checkpoint) as spark:
        spread(spark, checkpoint, partitions)
    print(f"{checkpoint} has {partitions} partitions now; start its query as before")


@app.command(
    help="Check that a stopped job's queries have read all records of its internal topics.  The "
    "exit status is 1 if not."
)
def drained(job: JobFile, log: SparkLogOption = None) -> None:
    from fkjoin.jobs.runner import drained_job

    with spark_log(log_file(log)):
        topics, left = drained_job(job)
    for flight in left:
        print(f"{flight.topic}: {flight.records} records are left for {flight.query}")
    if left:
        print('not drained; run the job with trigger = "available-now" until it ends')
        raise typer.Exit(1)
    where = f"no record is left in {', '.join(topics)}"
    print(f"drained: {where if topics else 'the job has no internal topics'}")


@app.command(
    help="Delete records of a job's internal topics that none of its queries needs, even to go "
    "back to a batch it still has.\n\n"
    "The job may run meanwhile.  Queries of other programs that read these topics may lose "
    "records that they have not read."
)
def purge(job: JobFile, log: SparkLogOption = None) -> None:
    from fkjoin.jobs.runner import purge_job

    with spark_log(log_file(log)):
        left = purge_job(job)
    for topic, firsts in left.items():
        parts = [f"partition {number} from {offset}" for number, offset in sorted(firsts.items())]
        print(f"{topic}: {', '.join(parts)}")


@contextlib.contextmanager
def _session(checkpoint: str | None = None, batch: int | None = None) -> Iterator[SparkSession]:
    """A small local session, as long as a command takes.

    Before it begins, files tell whether there is such a batch.
    """
    from fkjoin.checkpoint.saved_files import committed, files_here

    if checkpoint is not None and (files := files_here(checkpoint)) is not None:
        committed(files, batch)
    from fkjoin.jobs.ending import stopped_after
    from fkjoin.sessions.settings import SHORT_LIVED, session

    settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": SHORT_LIVED}
    with quiet_spark(), stopped_after(session("fkjoin state", settings=settings)) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
