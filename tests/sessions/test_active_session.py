"""A session that is there already: ``fkjoin.session`` completes it, and leaves alone what its cluster chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import fkjoin

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def manager(spark: SparkSession) -> Iterator[None]:
    """Restore the settings of the session that tests share."""
    before = spark.conf.get(MANAGER, None)
    spark.conf.unset(MANAGER)
    yield
    spark.conf.unset(MANAGER)
    if before is not None:
        spark.conf.set(MANAGER, before)


@pytest.mark.usefixtures("manager")
def test_a_local_session_gets_the_file_manager_of_local_disks(spark: SparkSession) -> None:
    assert fkjoin.session() is spark
    assert str(spark.conf.get(MANAGER)).endswith(".FileSystemBasedCheckpointFileManager")
    spark.conf.set(MANAGER, "of.a.Vendor")
    fkjoin.session()
    assert spark.conf.get(MANAGER) == "of.a.Vendor"


@pytest.mark.usefixtures("manager")
def test_a_session_of_a_cluster_is_not_taken_for_a_local_one(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints are on the cluster's storage, and its file manager knows how files get there in one step."""
    monkeypatch.setattr(spark.sparkContext, "master", "yarn")
    before = spark.conf.get("spark.master")
    monkeypatch.delenv("MASTER", raising=False)
    assert fkjoin.session() is spark
    assert spark.conf.get(MANAGER, None) is None
    assert spark.conf.get("spark.master") == before
