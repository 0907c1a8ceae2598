"""Workers of a local session: this interpreter, without archives of PySpark in its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin.sessions import fork_server, local_python
from fkjoin.sessions.local_python import STARTER, use_this_python
from fkjoin.sessions.local_start import FORKS


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


def test_where_pyspark_comes_from_elsewhere_workers_are_started_as_spark_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(given: str = "python0") -> tuple[str, dict[str, str]]:
        context = SimpleNamespace(pythonExec=given, environment={})
        use_this_python(context)
        return context.pythonExec, context.environment

    monkeypatch.delenv("SPARK_HOME", raising=False)
    forks = {FORKS: address} if (address := fork_server.address({})) else {}
    started = (str(STARTER), {"FKJOIN_PYTHON": sys.executable} | forks)
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
