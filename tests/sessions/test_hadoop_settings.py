"""Hadoop's settings in local sessions: what they are, and that they travel without a note of where they come from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

from fkjoin.sessions import local
from fkjoin.sessions.local import forget_sources
from fkjoin.sessions.settings import prepare

NAME = "fkjoin.test.setting"


def context_with(settings: Any, jvm: Any) -> Any:
    java = SimpleNamespace(hadoopConfiguration=lambda: settings)
    return SimpleNamespace(_jvm=jvm, _jsc=java, environment={})


def values(settings: Any) -> dict[str, str]:
    entries = settings.iterator()
    found = {}
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found


def test_the_settings_of_a_local_session_have_no_sources(spark: SparkSession) -> None:
    prepare(spark)  # since it was made, other tests may have had Hadoop read its files again
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    assert settings.get("io.file.buffer.size") is not None
    assert settings.getPropertySources("io.file.buffer.size") is None


def test_settings_stay_what_they_are_and_are_smaller_on_their_way(spark: SparkSession) -> None:
    """Spark hands tasks their bytes."""
    jvm: Any = spark._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration()
    settings.set(NAME, "chosen")
    before, after = (jvm.org.apache.hadoop.io.DataOutputBuffer() for _ in range(2))
    was = values(settings)
    settings.write(before)
    assert list(settings.getPropertySources("io.file.buffer.size")) == ["core-default.xml"]
    forget_sources(context_with(settings, jvm))
    assert settings.getPropertySources("io.file.buffer.size") is None
    assert values(settings) == was
    settings.write(after)
    assert after.getLength() < before.getLength() - 20 * len(was), "an empty GZIP stream has 20 bytes"
    settings.reloadConfiguration()
    assert settings.get(NAME) == "chosen", "also when the files are read again"


def test_a_thousand_settings_take_no_thousand_calls(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """``prepare`` is called for each table."""
    jvm: Any = spark._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration()
    assert settings.size() > 500
    calls, send = 0, jvm._gateway_client.send_command

    def counted(command: str, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += not command.startswith(MEMORY_COMMAND_NAME)  # Python lets go of Java objects whenever it likes
        return send(command, *arguments, **named)

    monkeypatch.setattr(jvm._gateway_client, "send_command", counted)
    forget_sources(context_with(settings, jvm))
    assert 0 < calls < 50


def test_where_hadoop_keeps_sources_otherwise_they_stay(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local, "_NOTES", "elsewhere")
    jvm: Any = spark._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration()
    with caplog.at_level("INFO", local.__name__):
        local.complete(context_with(settings, jvm))
    assert "no forget_sources: " in caplog.text
    assert list(settings.getPropertySources("io.file.buffer.size")) == ["core-default.xml"]
