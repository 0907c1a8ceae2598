"""Local sessions: workers on this interpreter, with what their daemon has imported; Hadoop's settings and file system.

``tests/jobs/test_secrets.py`` sees that no process sets permissions.
"""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME, Py4JJavaError
from pyspark.sql import SparkSession

import fkjoin
from fkjoin.sessions import local
from fkjoin.sessions.local import STARTER, forget_sources, use_local_files, use_this_python
from fkjoin.sessions.local_daemon import while_open
from fkjoin.sessions.settings import prepare


def test_the_starter_leaves_archives_out_and_the_rest_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    kept = [str(tmp_path / name) for name in ("a folder", "*", "mine.zip", "lib.jar")]
    left_out = [
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/spark-core_2.13-4.1.1.jar",
    ]
    path = os.pathsep.join([*left_out[:2], *kept[:2], left_out[2], *kept[2:]])
    program = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable); print(sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": path, "FKJOIN_PYTHON": sys.executable}
    shown = subprocess.run([STARTER, "-c", program, "a b", ""], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [os.pathsep.join(kept), sys.executable, "['a b', '']"]


def test_where_pyspark_comes_from_elsewhere_workers_are_started_as_spark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(given: str = "python0") -> tuple[str, dict[str, str]]:
        context = SimpleNamespace(pythonExec=given, environment={})
        use_this_python(context)
        return context.pythonExec, context.environment

    monkeypatch.delenv("SPARK_HOME", raising=False)
    started = (str(STARTER), {"FKJOIN_PYTHON": sys.executable})
    assert chosen() == chosen(sys.executable) == chosen(str(STARTER)) == started
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert chosen() == started
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert chosen() == chosen(sys.executable) == (sys.executable, {})
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(local.pyspark, "__file__", "/spark/python/lib/pyspark.zip/pyspark/__init__.py")
    assert chosen() == (sys.executable, {})
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "win32")
    assert chosen() == (sys.executable, {})
    monkeypatch.undo()
    monkeypatch.setattr(local, "STARTER", STARTER.with_name("local.py"))  # not a program
    assert chosen() == (sys.executable, {})


def test_the_daemon_has_imported_what_workers_need() -> None:
    program = """
        import gc, os, sys
        from fkjoin.sessions import local_daemon
        names = local_daemon.NEEDED
        local_daemon.NEEDED = ("fkjoin.no_such_module", *names)
        assert not set(names) & set(sys.modules)
        local_daemon.load()
        assert set(names) <= set(sys.modules) and gc.get_freeze_count() > 10_000
        for _ in range(2):
            if not os.fork():
                import numpy
                os.write(1, f"{numpy.random.rand()}\\n".encode())
                os._exit(0)
            os.wait()
    """
    run = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert len(set(run.stdout.split())) == len(run.stdout.split()) == 2, run.stdout


def test_a_worker_whose_connection_is_closed_has_nothing_to_say() -> None:
    """Spark closes it after an idle minute; what a worker wrote then could not be sent, and PySpark would print that."""
    ran: list[bytes] = []
    work = while_open(lambda infile, _: ran.append(infile.read()))
    with pytest.raises(SystemExit):
        work(io.BufferedReader(io.BytesIO()), None)
    work(io.BufferedReader(io.BytesIO(b"a task")), None)
    assert ran == [b"a task"]


def test_without_fkjoin_the_daemon_is_sparks(tmp_path: Path) -> None:
    """A user's functions need no fkjoin."""
    (tmp_path / "pyspark").mkdir()
    for name in ("fkjoin.py", "pyspark/__init__.py"):
        (tmp_path / name).touch()
    (tmp_path / "pyspark" / "daemon.py").write_text("import sys; print(__name__, sys.argv[1:], 'gc' in sys.modules)")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "FKJOIN_PYTHON": sys.executable}
    command = [STARTER, "-m", "pyspark.daemon", "pyspark.worker"]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("__main__ ['pyspark.worker']")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere libraries do not outlive a fork")
def test_workers_import_pyspark_from_where_it_is_installed_and_have_what_the_daemon_has_imported(spark: SparkSession) -> None:
    def looked(_: Any) -> Iterator[pa.RecordBatch]:
        import pyspark

        where = f"{sys.executable} {pyspark.__file__}"
        yield pa.record_batch({"where": [where], "frozen": [gc.get_freeze_count()]})

    ((where, frozen),) = spark.range(1, numPartitions=1).mapInArrow(looked, "where string, frozen long").collect()
    assert where == f"{sys.executable} {pyspark.__file__}"
    assert frozen > 10_000


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


def test_settings_of_a_local_session_have_no_sources_and_stay(spark: SparkSession, settings: Any, context: Any) -> None:
    """Spark hands tasks their bytes."""
    prepare(spark)  # since it was made, other tests may have had Hadoop read its files again
    of_session = spark.sparkContext._jsc.hadoopConfiguration()
    assert of_session.get("io.file.buffer.size") is not None
    assert sources(of_session) is None
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


def test_settings_take_few_calls(spark: SparkSession, settings: Any, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
