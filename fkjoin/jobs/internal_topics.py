"""``fkjoin state drained`` and ``fkjoin state purge``: the topics between a job's stages.

The job does not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from fkjoin.checkpoint.claim import require_unclaimed
from fkjoin.jobs.ending import stopped_after
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.runner import job_session
from fkjoin.kafka.committed_offsets import committed_offsets, internal_connections
from fkjoin.kafka.draining import InFlight, in_flight
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.purging import purge


class _Staged(NamedTuple):
    """The stages of a job, and the checkpoints of all its queries by their names."""

    spark: SparkSession
    job_checkpoint: str
    stages: list[StageQuery]
    checkpoints: dict[str, str]


def drained_job(path: Path) -> tuple[list[str], list[InFlight]]:
    """Name the internal topics of a job, and find what is in flight in them.

    Raises ``FkJoinError`` if the job or one of its queries runs: more could come.
    """
    with _staged(path) as job:
        for checkpoint in (job.job_checkpoint, *job.checkpoints.values()):
            require_unclaimed(job.spark, checkpoint)
        topics = list(internal_connections(job.stages))
        return topics, in_flight(job.spark, job.stages, job.checkpoints)


def purge_job(path: Path) -> dict[str, dict[int, int]]:
    """Delete records of a job's internal topics that all its queries have read: see ``purge``."""
    with _staged(path) as job:
        if not job.stages:
            raise JobError(
                f'{path}: no join or aggregate has deployment = "staged", so there are no internal '
                "topics"
            )
        topics = list(internal_connections(job.stages))
        readers = [
            checkpoint
            for checkpoint in job.checkpoints.values()
            if committed_offsets(job.spark, checkpoint, topics) != {}
        ]
        return purge(job.stages, readers)


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[_Staged]:
    spec = read_job(path)
    with stopped_after(job_session(spec)) as spark:
        job = Job(spec, spark)
        checkpoints = {query.name: query.checkpoint for query in job.queries()}
        yield _Staged(spark, spec.checkpoint, job.stages, checkpoints)
