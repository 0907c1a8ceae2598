"""Places of a job besides its sinks: checkpoint, log and dead letters.

They are looked at before anything is made or changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin.checkpoint.begun import Begun
from fkjoin.checkpoint.begun_with import require_begun_with
from fkjoin.checkpoint.files import files_at
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection
from fkjoin.plan.physical import Physical
from fkjoin.sinks.ledger import require_spark_at
from fkjoin.storage.local_files import require_writable

STDOUT = "-"
"""A job's ``log`` that is standard output."""


def require_places(spark: SparkSession, spec: JobSection) -> None:
    """Raise ``FkJoinError`` if one of them cannot be written to."""
    _require_log(spec)
    letters, tables = spec.dead_letters, dict.fromkeys(sink.table for sink in spec.sinks.values())
    for folder in (spec.checkpoint, *(() if letters is None else map(letters.folder, tables))):
        if folder is not None and (path := files_at(spark, folder).local) is not None:
            require_writable(path)


def require_letters(spark: SparkSession, spec: JobSection, plans: Mapping[str, Physical]) -> None:
    """Raise ``FkJoinError`` if the queries of dead letters do not fit their checkpoints.

    ``plans``: theirs, by table.
    """
    for name, plan in plans.items():
        checkpoint = f"{spec.checkpoint.rstrip('/')}/dead-letters-{name}"
        require_begun_with(Begun.of(spark, checkpoint), spark, checkpoint, plan)
        if spec.dead_letters is not None and (folder := spec.dead_letters.folder(name)) is not None:
            require_spark_at(spark, checkpoint, folder)


def _require_log(spec: JobSection) -> None:
    """Raise ``FkJoinError`` if the job's log cannot be written."""
    if spec.log is None or spec.log == STDOUT:
        return
    log = Path(spec.log).absolute()
    require_writable(log.parent)
    if log.exists() and (log.is_dir() or not os.access(log, os.W_OK)):
        raise JobError(f"log: {log} is no file that can be written to; name another")
