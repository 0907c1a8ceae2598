"""Tables that fkjoin wrote, read again.

Such a table is a folder of ``Table.to_parquet``, with what its files say of each change.

In a batch a result's row changes once at most, so the number of the batch orders the changes of a
key.  A source's changes come as they were read, and their own versions order them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from fkjoin.analysis.planned import Planned
from fkjoin.analysis.sources import read_stream
from fkjoin.checkpoint.files import files_at
from fkjoin.codec import versions
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.files.source import open_files
from fkjoin.plan.base import Node
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import by_spark
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import PROBLEM
from fkjoin.spark.names import OPERATION, TIMESTAMP, is_added
from fkjoin.spark.on_spark import on_spark
from fkjoin.spark.parquet import SET_ASIDE

ABOUT = "_fkjoin.json"
"""Lies beside the folders of batches: whose changes they are."""

_NUMBERS = "_version"
_EVENTS = "events"
_FOLDER = "^([0-9]+)-(.*)$"
_PART = re.compile(r"part-[0-9a-f]+\.parquet")


def about(node: Node, timestamps: str | None, restores: int = 0) -> bytes:
    """Write what ``ABOUT`` says of a table.

    ``restores``: how often the folder was restored, and batches set aside.
    """
    facts = {
        "format": 1,
        "table": node.name,
        "key": node.key,
        "timestamps": timestamps,
        "source": isinstance(node, Source),
    }
    if isinstance(node, Source):
        facts |= {"numbers": node.numbers, "placed": node.topic is not None and node.parts == 1}
    if node.appends:
        facts |= {_EVENTS: True}
    if restores:
        facts |= {"restores": restores}
    return json.dumps(facts).encode()


def restores(facts: Mapping[str, Any]) -> int:
    """The number of times that the folder was restored, of what ``ABOUT`` says."""
    return int(facts.get("restores", 0))


def require_what_was_read(spark: SparkSession, checkpoint: str, folder: str) -> None:
    """``FkJoinError`` if the checkpoint's query has read batches that were set aside since."""
    written = files_at(spark, folder)
    aside: set[str] = set()
    for batch in written.names(SET_ASIDE):
        aside.update(written.names(f"{SET_ASIDE}/{batch}"))
    logs = files_at(spark, checkpoint)
    for source in logs.names("sources") if aside else ():
        for log in logs.listed(f"sources/{source}"):
            if log.is_folder:
                continue
            text = logs.read(f"sources/{source}/{log.name}").decode()
            if aside.isdisjoint(_PART.findall(text)):
                continue
            raise FkJoinError(
                f"path: {folder} was restored, and checkpoint {checkpoint} had read batches that "
                f"are now in {SET_ASIDE}: start this query, too, with a new checkpoint and an "
                "empty target"
            )


def read_written(
    *,
    spark: SparkSession,
    path: str,
    name: str | None,
    on_error: OnError,
    schema: StructType | None,
    options: Mapping[str, Any] | None,
) -> Planned:
    """A table of what fkjoin wrote; see ``Table.from_fkjoin``."""
    learned = schema_of(spark, path) if schema is None else None
    folder = path.rstrip("/")
    label, writers, _ = _folders(spark, folder)
    facts = noted(spark, folder)
    if _EVENTS in facts:
        raise TopologyError(
            f"path: {folder} has events, and no changes of a table; read them with "
            "spark.readStream or spark.read"
        )
    keys = tuple(facts["key"])
    files = open_files(
        spark, folder, keys, schema=learned or schema, format="parquet", options=options
    )
    rows = by_spark(lambda frame: _one_writer(frame, folder, label, writers), files.rows)
    columns = on_spark(spark, rows).columns
    beside = [column for column in columns if column == label or is_added(column)]
    if missing := [column for column in (OPERATION, TIMESTAMP) if column not in beside]:
        raise TopologyError(
            f"path: the files of {folder} have no column {missing[0]}: to_parquet has not written "
            "them"
        )
    numbers = int(facts["numbers"]) if facts["source"] else 0
    ordering = [F.col(_NUMBERS)[number] for number in range(numbers)] or [_number(label)]
    places = versions.PLACE if numbers and facts.get("placed") else ()
    table = read_stream(
        spark,
        rows,
        keys,
        ordering,
        deleted=F.col(OPERATION) == "delete",
        timestamp=None if facts["timestamps"] is None else TIMESTAMP,
        name=name or files.name,
        on_error=on_error,
        beside=beside,
        places_of=places,
    )
    order = tuple(f"{_NUMBERS}[{number}]" for number in range(numbers)) or (label,)
    assert isinstance(table.node, Source)
    shown = replace(
        table.node,
        version=order,
        deleted=f"{OPERATION} = 'delete'",
        origin=f"what fkjoin wrote to {folder}",
    )
    bound = replace(table.bound, files=(folder,), learned=learned, written=folder)
    return replace(table, node=shown, bound=bound)


def schema_of(spark: SparkSession, path: str) -> StructType:
    """The columns of the newest batch, and the folders' name."""
    folder = path.rstrip("/")
    label, _, newest = _folders(spark, folder)
    schema = spark.read.option("basePath", folder).parquet(f"{folder}/{newest}").schema
    fields = {field.name: field for field in schema}
    if label in fields:
        fields[label] = StructField(label, StringType())
    return StructType(list(fields.values()))


def _folders(spark: SparkSession, folder: str) -> tuple[str, list[str], str]:
    """Find the folders of batches of one checkpoint's query.

    Return their name, their endings, and the newest of them.
    """
    folders = folders_of(spark, folder)
    named = [name.split("=", 1) for name in folders]
    ends = sorted({batch.partition("-")[2] for _, batch in named})
    writers = {(label, batch.partition("-")[2].partition(".")[0]) for label, batch in named}
    if not writers:
        raise TopologyError(
            f"path: {folder} contains no folder {LABELS[0]}=…, which Table.to_parquet makes with "
            "the first batch that has changes; read other files with Table.from_files"
        )
    if len(writers) > 1:
        raise TopologyError(
            f"path: {folder} contains batches of {len(writers)} checkpoints "
            f"({', '.join(sorted(writer for _, writer in writers))}), and their order is "
            "unknown: give each checkpoint of to_parquet a path of its own"
        )
    newest = max(folders, key=lambda name: (int(name.partition("=")[2].partition("-")[0]), name))
    return named[0][0], ends, newest


def noted(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Read what ``ABOUT`` says; ``TopologyError`` without it.

    Nothing else tells the key, and what orders the changes.
    """
    try:
        return dict(json.loads(files_at(spark, folder).read(ABOUT)))
    except FileNotFoundError as error:
        raise TopologyError(
            f"path: {folder} has no {ABOUT}, which to_parquet writes beside its batches: put it "
            "back, from a backup or from where the folder was copied"
        ) from error


def _number(label: str) -> Column:
    """The number of a change's batch."""
    return F.regexp_extract(F.col(label), _FOLDER, 1).cast("bigint")


def _one_writer(frame: DataFrame, folder: str, label: str, writers: list[str]) -> DataFrame:
    """The frame; a batch of another checkpoint, or from after a restore, stops the query."""
    batch = F.col(label)
    other = F.concat(
        F.lit(f"{folder} has the folder {label}="),
        batch,
        F.lit(", of another checkpoint than the others: give it "),
    )
    ways = (
        "a path of its own, since the order of their changes is unknown; or, if the path was "
        "restored, start this query again"
    )
    by_another = ~F.regexp_extract(batch, _FOLDER, 2).isin(writers)
    stop = F.raise_error(F.concat(other, F.lit(ways))).cast("string")
    problem = F.coalesce(F.col(PROBLEM), F.when(by_another, stop))
    return frame.withColumn(PROBLEM, problem)


LABELS = ("batch", "fkjoin_batch")
"""Names of folders of batches: the first that is not a column of the table counts."""


def folders_of(spark: SparkSession, folder: str) -> list[str]:
    """The names of the folders of batches that are whole, whatever wrote them."""
    beginnings = tuple(f"{label}=" for label in LABELS)
    return [name for name in files_at(spark, folder).names() if name.startswith(beginnings)]
