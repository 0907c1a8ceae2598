"""The file system of local sessions: Hadoop's, but for how it sets permissions.

``tests/jobs/test_secrets.py`` sees that no process does.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fkjoin.sessions import local
from fkjoin.sessions.local import use_local_files


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
