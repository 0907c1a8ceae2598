"""Checkpoints whose content runs nothing."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import LongType, StructField, StructType

from fkjoin.errors import FormatError
from fkjoin.spark.schemas import kept_type
from tests.support.rooms import MODULES, nodes


def test_a_type_in_a_checkpoint_cannot_have_a_module_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    planted = {"type": "udt", "class": None, "pyClass": "planted.Kind", "sqlType": "long"}
    for kind in (planted, {"type": "array", "elementType": planted, "containsNull": True}, _struct(planted)):
        with pytest.raises(FormatError, match="names the Python class 'planted.Kind'.*changed the checkpoint: restore it"):
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
    for module, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.Call):
                calls.setdefault(ast.unparse(node.func), set()).add(module)
    unpickled = {name: where for name, where in calls.items() if name.endswith(("pickle.loads", "pickle.load", "Unpickler"))}
    assert unpickled == {"pickle.loads": {"spark.operator"}}
    assert not {"eval", "exec", "marshal.loads", "yaml.load", "shelve.open"} & calls.keys()
    assert calls["StructType.fromJson"] <= {
        "spark.schemas",
        "spark.bucket_run",  # what the driver says of the operator
        "analysis.vectorize",  # what Spark's analyzer says of a type
    }
