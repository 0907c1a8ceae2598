"""Workers of a local session: this interpreter, without archives of PySpark in its path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fkjoin.spark import local_python
from fkjoin.spark.local_python import STARTER, use_this_python


def test_the_starter_leaves_archives_out_and_the_rest_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    kept = [str(tmp_path / name) for name in ("a folder", "*", "mine.zip", "lib.jar")]
    left_out = [
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/spark/jars/spark-core_2.13-4.1.1.jar",
    ]
    path = os.pathsep.join([*left_out[:2], *kept[:2], left_out[2], *kept[2:]])
    shown = subprocess.run(
        [
            STARTER,
            "-c",
            "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable); print(sys.argv[1:])",
            "a b",
            "",
        ],
        env=os.environ | {"PYTHONPATH": path, "FKJOIN_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == [os.pathsep.join(kept), sys.executable, "['a b', '']"]


def test_the_starter_starts_a_daemon_of_ours_in_place_of_sparks() -> None:
    def started(*arguments: str) -> str:
        run = subprocess.run(
            [STARTER, *arguments], env=os.environ | {"FKJOIN_PYTHON": "echo"}, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    ours = started("-m", "pyspark.daemon", "pyspark.worker")
    assert (ours[:3], "fkjoin.spark.local_daemon" in ours, ours.split()[-1]) == ("-c ", True, "pyspark.worker")
    assert started("-m", "pyspark.worker", "pyspark.daemon") == "-m pyspark.worker pyspark.daemon"


def test_what_workers_need_is_imported_before_they_are_forked() -> None:
    program = """
        import gc, os, sys
        from fkjoin.spark import local_daemon
        names = local_daemon.NEEDED
        local_daemon.NEEDED = ("this", "fkjoin.no_such_module", *names)  # the first prints something
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
    assert "The Zen of Python" in run.stderr


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
    monkeypatch.setattr(local_python.pyspark, "__file__", "/spark/python/lib/pyspark.zip/pyspark/__init__.py")
    assert chosen() == (sys.executable, {})
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "win32")
    assert chosen() == (sys.executable, {})
    monkeypatch.undo()
    monkeypatch.setattr(local_python, "STARTER", STARTER.with_name("local_python.py"))  # not a program
    assert chosen() == (sys.executable, {})


@pytest.mark.spark
def test_workers_import_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return f"{sys.executable} {pyspark.__file__}"

    found = spark.range(1).select(F.udf(where, "string")("id")).collect()[0][0]
    assert found == f"{sys.executable} {pyspark.__file__}"


class Parent(StatefulProcessor):
    """Says which process its worker was forked from."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        list(rows)
        yield pd.DataFrame({"parent": [os.getppid()]})


@pytest.mark.spark
def test_workers_of_all_operators_are_forked_of_one_daemon_and_from_its_folder(spark: SparkSession) -> None:
    def described(_: Any) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"parent": [os.getppid()], "folder": [sys.path[0]]})

    one = spark.range(1, numPartitions=1)
    ((parent, folder),) = one.mapInArrow(described, "parent long, folder string").collect()
    ((other,),) = one.groupBy("id").transformWithStateInPandas(Parent(), "parent long", "Append", "None").collect()
    assert parent == other
    assert "local_daemon" in Path(f"/proc/{parent}/cmdline").read_text()
    assert folder == "", "the one that it was started in"
