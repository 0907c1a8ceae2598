"""Hadoop's settings in local sessions: what they are, and that they travel without a note of where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

import fkjoin
from fkjoin.sessions.local import forget_sources
from fkjoin.sessions.settings import prepare

NAME = "fkjoin.test.setting"


@pytest.fixture
def settings(spark: SparkSession) -> Any:
    """Settings of Hadoop's own, with notes of where they come from."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.conf.Configuration()


@pytest.fixture
def context(spark: SparkSession, settings: Any) -> Any:
    """A context that has these settings."""
    java = SimpleNamespace(hadoopConfiguration=lambda: settings)
    return SimpleNamespace(_jvm=spark._jvm, _jsc=java, environment={})


def sources(settings: Any) -> Any:
    return settings.getPropertySources("io.file.buffer.size")


def values(settings: Any) -> dict[str, str]:
    return dict(settings.getValByRegex(".*"))


def test_the_settings_of_a_local_session_have_no_sources(spark: SparkSession) -> None:
    prepare(spark)  # since it was made, other tests may have had Hadoop read its files again
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    assert settings.get("io.file.buffer.size") is not None
    assert sources(settings) is None


def test_settings_stay_and_are_smaller(spark: SparkSession, settings: Any, context: Any) -> None:
    """Spark hands tasks their bytes."""
    jvm: Any = spark._jvm
    settings.set(NAME, "chosen")
    before, after = (jvm.org.apache.hadoop.io.DataOutputBuffer() for _ in range(2))
    was = values(settings)
    settings.write(before)
    assert list(sources(settings)) == ["core-default.xml"]
    forget_sources(context)
    assert sources(settings) is None
    assert values(settings) == was
    settings.write(after)
    assert after.getLength() < before.getLength() - 20 * len(was), "an empty GZIP stream has 20 bytes"
    settings.reloadConfiguration()
    assert settings.get(NAME) == "chosen", "also when the files are read again"


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


def test_a_thousand_settings_take_no_thousand_calls(
    spark: SparkSession, settings: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``prepare`` is called for each table."""
    assert settings.size() > 500
    jvm: Any = spark._jvm
    calls, send = [], jvm._gateway_client.send_command

    def counted(command: str, *arguments: Any, **named: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):  # Python lets go of Java's objects at any time
            calls.append(command)
        return send(command, *arguments, **named)

    monkeypatch.setattr(jvm._gateway_client, "send_command", counted)
    forget_sources(context)
    assert 0 < len(calls) < 50
