"""The tables of a job file, for tests and notebooks; no query runs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.table import Table


def job_tables(spark: SparkSession, path: str | Path) -> dict[str, Table]:
    """Make the tables of a job file.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session, whose settings count. The settings in the file are for ``fkjoin run``.
    path : str or pathlib.Path
        The job file.

    Returns
    -------
    dict of str to Table
        The tables by their names in the file. As at the start of the job, fkjoin asks the brokers
        for the topics.

    Raises
    ------
    FkJoinError
        If a setting is wrong; the message says which one.

    Examples
    --------
    >>> driver = Driver(job_tables(spark, "JOB.toml")["joined"])
    """
    return dict(Job(read_job(Path(path)), spark).tables)
