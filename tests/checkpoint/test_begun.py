"""The document of a checkpoint: what it says, what of it is refused, what a kill leaves of it; and that it runs nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import LongType, StructField, StructType

from fkjoin import FkJoinError
from fkjoin.checkpoint.begun import DOCUMENT, VERSION, Begun, JobFacts, KnownTopic, LearnedColumns
from fkjoin.errors import FormatError
from fkjoin.spark.schemas import kept_type
from fkjoin.storage.arrow_files import without_spark
from tests.support.places import ROOT
from tests.support.rooms import MODULES, nodes

FIELDS = StructType().add("id", "string")
FULL = Begun(
    zone="Europe/Berlin",
    operators=[("joined", {"stage": "resolve"})],
    sources=["text /orders", "kafka customers"],
    tables={"orders": {"key": ["id"]}},
    columns={"orders": LearnedColumns(FIELDS, ["region"], ["at.city"], "json"), "given": LearnedColumns()},
    topics={"orders": KnownTopic("id-1"), "customers": KnownTopic("id-2", 1, [(0, 7), (1, 0)])},
    sinks=["parquet /out"],
    job=JobFacts(["join-reads-answers"]),
)


def test_a_document_says_its_version_first_and_what_there_is_and_is_read_as_it_was_written() -> None:
    sections = json.loads(FULL.data())
    names = ["version", "zone", "operators", "sources", "tables", "columns", "topics", "sinks", "job"]
    assert list(sections) == names
    assert Begun.parsed(FULL.data(), "/ck") == FULL
    assert sections["topics"] == {
        "orders": {"id": "id-1"},
        "customers": {"id": "id-2", "generation": 1, "ends": [[0, 7], [1, 0]]},
    }
    assert json.loads(Begun().data()) == {"version": VERSION}
    assert json.loads(replace(Begun(), operators=[]).data()) == {"version": VERSION, "operators": []}
    assert Begun.parsed(b'{"version": 1}', "/ck") == Begun()
    assert Begun.parsed(b'{"version": 1, "operators": []}', "/ck").operators == []


BROKEN: dict[bytes, str] = {
    b"": "is not JSON (Expecting value",
    b"\xff\xfe": "is not JSON (",
    b"[" * 100_000: "is not JSON (",
    b"{}": "has version None, and this release reads 1",
    b'{"version": 2, "zone": 5}': "has version 2, and this release reads 1",
    b'{"version": true}': "has version True, and this release reads 1",
    b'{"version": 1, "later": {}}': "has a section later, which this release lacks",
}


def test_a_broken_document_is_refused_by_name() -> None:
    way = "restore this file from the last backup of the checkpoint, or start with a new checkpoint"
    for data, says in BROKEN.items():
        with pytest.raises(FkJoinError, match=rf"^/ck/fkjoin\.json {re.escape(says)}.*: {way}"):
            Begun.parsed(data, "/ck/")


SHAPES: list[tuple[list[Any], Any]] = [
    (["zone"], None),
    (["operators"], "joined"),
    (["operators", 0, 1], "{}"),
    (["columns", "orders", "schema", "fields"], 1),
    (["columns", "orders", "schema", "fields", 0, "type"], "structure"),
    (["columns", "orders", "schema", "fields", 0, "pyClass"], "planted.Kind"),
    (["columns", "orders", "unknown"], 1),
    (["topics", "orders"], {}),
    (["topics", "customers", "generation"], True),
    (["topics", "customers", "ends", 0], [1, 2, 3]),
]


@pytest.mark.parametrize(("path", "value"), SHAPES, ids=str)
def test_a_section_of_another_shape_is_refused_by_name(path: list[Any], value: Any) -> None:
    document = part = json.loads(FULL.data())
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(FkJoinError, match=rf"^/ck/fkjoin.json has a section {path[0]} of another shape \(.*: restore this"):
        Begun.parsed(json.dumps(document).encode(), "/ck")


WRITER = """
import sys

from fkjoin.checkpoint.begun import DOCUMENT, Begun
from fkjoin.storage.arrow_files import without_spark

files = without_spark(sys.argv[1])
documents = [Begun(sinks=["parquet /" + size * "x"]).data() for size in (0, 2_000_000)]
while True:
    for data in documents:
        files.write(DOCUMENT, data)
    print("written", flush=True)
"""


def test_a_document_that_says_the_same_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end within a replacement in two steps would leave none."""
    files = without_spark(str(tmp_path))
    monkeypatch.setattr("fkjoin.checkpoint.begun.files_at", lambda *_: files)
    session: Any = None
    FULL.write(session, str(tmp_path))
    inode = (tmp_path / DOCUMENT).stat().st_ino
    FULL.write(session, str(tmp_path))
    assert (tmp_path / DOCUMENT).stat().st_ino == inode
    replace(FULL, zone="UTC").write(session, str(tmp_path))
    assert Begun.parsed((tmp_path / DOCUMENT).read_bytes(), "/ck").zone == "UTC"


def test_a_kill_while_a_document_is_written_leaves_a_whole_one(tmp_path: Path) -> None:
    """The process, which has no JVM, writes documents in a loop, and is killed when one is begun."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command, draft = [sys.executable, "-c", WRITER, str(tmp_path)], tmp_path / f".{DOCUMENT}.draft"
    draft_left, tries = False, 0
    while not draft_left:
        tries += 1
        assert tries <= 6, "a kill came before a document was whole"
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"written\n"
            until = time.monotonic() + 2
            while not draft.exists() and time.monotonic() < until:
                pass
            writer.kill()
            assert writer.wait() == -signal.SIGKILL
        (place,) = Begun.parsed((tmp_path / DOCUMENT).read_bytes(), "/ck").sinks or []
        assert place.strip("x") == "parquet /"
        draft_left = draft.exists()
        draft.unlink(missing_ok=True)


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


LAST_NAMES = {"loads", "load", "Unpickler", "eval", "exec", "open", "fromJson"}
"""Last names of calls that could run what a file has; of others the whole name is not needed."""


def test_nothing_that_is_read_is_unpickled_or_evaluated() -> None:
    """Pickles come from the driver, in what a worker is told to do; types of checkpoints go through ``kept_type``."""
    calls: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LAST_NAMES:
                calls.setdefault(ast.unparse(node.func), set()).add(module)
    unpickled = {name: where for name, where in calls.items() if name.endswith(("pickle.loads", "pickle.load", "Unpickler"))}
    assert unpickled == {"pickle.loads": {"spark.operator"}}
    assert not {"eval", "exec", "marshal.loads", "yaml.load", "shelve.open"} & calls.keys()
    assert calls["StructType.fromJson"] <= {
        "spark.schemas",
        "spark.bucket_run",  # what the driver says of the operator
        "analysis.vectorize",  # what Spark's analyzer says of a type
    }
