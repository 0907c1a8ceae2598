"""Checkpoints whose content runs nothing, and sessions that lack something, of which errors say what to do."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from fkjoin import Table, TopologyError
from fkjoin.errors import FormatError
from fkjoin.spark.schemas import kept_type
from tests.support.places import ROOT


def test_a_type_in_a_checkpoint_cannot_have_a_module_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    planted = {"type": "udt", "class": None, "pyClass": "planted.Kind", "sqlType": "long"}
    for kind in (planted, {"type": "array", "elementType": planted, "containsNull": True}, _struct(planted)):
        with pytest.raises(FormatError, match="names the Python class 'planted.Kind'.*restore the checkpoint"):
            kept_type(_struct(kind))
    assert "planted" not in sys.modules
    restored = _struct({"type": "array", "elementType": "long", "containsNull": True})
    assert kept_type(restored).simpleString() == "struct<a:array<bigint>>"


def test_types_that_spark_has_are_read_from_a_checkpoint() -> None:
    for kind in (LongType(), StructType([StructField("b", LongType())]), VectorUDT()):
        made = StructType([StructField("a", kind)])
        assert kept_type(json.loads(made.json())) == made


def _struct(kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}]}


def test_nothing_that_is_read_is_unpickled_or_evaluated() -> None:
    """Pickles come from the driver, in what a worker is told to do; types of checkpoints go through ``kept_type``."""
    calls: dict[str, set[str]] = {}
    for path in [*(ROOT / "fkjoin").rglob("*.py"), *(ROOT / "state").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                calls.setdefault(ast.unparse(node.func), set()).add(path.relative_to(ROOT).as_posix())
    unpickled = {name: where for name, where in calls.items() if name.endswith(("pickle.loads", "pickle.load", "Unpickler"))}
    assert unpickled == {"pickle.loads": {"fkjoin/spark/operator.py"}}
    assert not {"eval", "exec", "marshal.loads", "yaml.load", "shelve.open"} & calls.keys()
    assert calls["StructType.fromJson"] <= {
        "fkjoin/spark/schemas.py",
        "fkjoin/spark/bucket_run.py",  # what the driver says of the operator
        "fkjoin/analysis/vectorize.py",  # what Spark's analyzer says of a type
    }


def test_a_session_without_the_connector_says_how_to_have_it(spark: SparkSession) -> None:
    with pytest.raises(TopologyError, match="Spark's Kafka connector is missing: .*session\\(kafka=True\\).*kafka = true"):
        Table.from_kafka(spark, "orders", "localhost:1", key="string", value="string")
