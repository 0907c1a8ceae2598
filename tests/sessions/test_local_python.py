"""Workers of a local session: this interpreter, without archives of PySpark in its path, with what the daemon has imported."""

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
from pyspark.sql import SparkSession

from fkjoin.sessions import local
from fkjoin.sessions.local import STARTER, use_this_python
from fkjoin.sessions.local_daemon import while_open


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
