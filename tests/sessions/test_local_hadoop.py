"""Hadoop in local sessions: its settings, which travel without a note of where they come from, and its file system.

``tests/jobs/test_secrets.py`` sees that no process sets permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME, Py4JJavaError
from pyspark.sql import SparkSession

import fkjoin
from fkjoin.sessions import local
from fkjoin.sessions.local import forget_sources, use_local_files
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


def system(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), jvm.org.apache.hadoop.conf.Configuration())


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


def test_permissions_are_those_that_hadoop_sets(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    files, path, permission = system(spark), jvm.org.apache.hadoop.fs.Path, jvm.org.apache.hadoop.fs.permission.FsPermission
    assert files.getClass().getName() == "fkjoin.LocalFiles"
    files.create(path(str(tmp_path / "made"))).close()
    assert mode(tmp_path / "made") == "0o644"
    files.mkdirs(path(str(tmp_path / "folder")))
    assert mode(tmp_path / "folder") == "0o755"
    for name, wanted in (("made", "640"), ("made", "007"), ("folder", "1777"), ("folder", "700")):
        files.setPermission(path(str(tmp_path / name)), permission(wanted))
        assert mode(tmp_path / name) == f"0o{wanted.lstrip('0')}"
    with pytest.raises(Py4JJavaError, match="NoSuchFileException.*gone"):
        files.setPermission(path(str(tmp_path / "gone")), permission("600"))


def test_damage_is_noticed_by_hadoops_checksums(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(9).coalesce(1).write.json(str(tmp_path / "rows"))
    (part,) = (tmp_path / "rows").glob("part-*.json")
    assert part.with_name(f".{part.name}.crc").exists()
    part.write_bytes(part.read_bytes().replace(b"7", b"8"))
    with pytest.raises(Exception, match=r"(?s)Checksum"):
        spark.read.schema("id bigint").json(str(tmp_path / "rows")).collect()


def test_who_has_chosen_a_file_system_keeps_it_and_where_ours_cannot_be_compiled_hadoops_own_remains(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "LocalFiles.java"
    source.write_text("package fkjoin; public class LocalFiles extends Nothing {}")
    monkeypatch.setattr(local, "_SOURCE", source)
    monkeypatch.setattr(local, "_CLASS", "fkjoin.Another")  # else it is there already
    kept, chosen = system(spark), spark._jvm.org.apache.hadoop.conf.Configuration()  # type: ignore[union-attr]
    chosen.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    java = SimpleNamespace(hadoopConfiguration=lambda: chosen)
    use_local_files(SimpleNamespace(_jvm=spark._jvm, _jsc=java))
    assert system(spark).equals(kept)
    with caplog.at_level("INFO", local.__name__):
        local.complete(spark.sparkContext)
    assert "no use_local_files: " in caplog.text
    assert system(spark).equals(kept)
