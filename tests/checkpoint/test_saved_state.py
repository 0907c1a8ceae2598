"""State that one can look at, verify, rebuild and spread; indexes whose checkpoints are gone; checkpoints that are damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import FkJoinError, Table, read_state
from fkjoin.analysis.attempt import _key_text
from fkjoin.checkpoint import claim, indexes, saved_files, upkeep
from fkjoin.checkpoint.claim import claimed
from fkjoin.checkpoint.claim_files import CLAIM_FILE
from fkjoin.checkpoint.damage import explain
from fkjoin.checkpoint.entries import Entries
from fkjoin.checkpoint.files import query_id
from fkjoin.checkpoint.saved import check_logs, metas, saved_stores
from fkjoin.checkpoint.upkeep import Examine, rescale, verify
from fkjoin.codec import versions
from fkjoin.codec.arrays import constant, masked
from fkjoin.codec.key_texts import key_text, parse_key
from fkjoin.codec.messages import CHANGE, SUBSCRIPTION, table
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS, VALIDATE
from fkjoin.spark import index_home
from fkjoin.spark.specs import STAGES
from fkjoin.spark.specs.shown import Described
from fkjoin.stages.counters import Counters
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from fkjoin.state.folders import locked
from tests.support import golden
from tests.support.golden import CHECKPOINTS, unpack
from tests.support.queries import run, table_of, write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small
from tests.support.stores import array


def test_a_text_can_be_typed_alone_or_as_json() -> None:
    for text in ("12", '"12"', '["12"]'):
        assert parse_key(pa.schema([("name", pa.string())]), text).to_pylist() == [b"12"]


@given(st.one_of(st.tuples(st.text()), st.tuples(st.integers(-9, 9)), st.tuples(st.text(), st.integers(-9, 9), st.text())))
def test_the_key_in_a_message_can_be_typed(key: tuple[Any, ...]) -> None:
    schema = pa.schema([(f"c{place}", pa.string() if isinstance(part, str) else pa.int64()) for place, part in enumerate(key)])
    encoded = KeyCodec(schema).encode([pa.array([part], field.type) for part, field in zip(key, schema, strict=True)], 1)
    assert parse_key(schema, key_text(key)).equals(encoded)
    assert key_text(dict(zip(schema.names, key, strict=True))) == key_text(key)


def test_spark_writes_the_key_in_a_message_as_workers_do(spark: SparkSession) -> None:
    alone, both = ("o1", '"7"', "[x", "", "7", "a,b", '{"'), (("a", 1), ('x":"', 2), ('b":"', 3), ("[", 4))
    for schema, keys in (("a string", [(text,) for text in alone]), ("a string, b bigint", both), ("b bigint", [(7,)])):
        rows = spark.createDataFrame(list(keys), schema).coalesce(1)
        found = rows.select(_key_text(F.struct(*rows.columns))).toPandas().iloc[:, 0].tolist()
        assert found == [key_text(key) for key in keys]


def test_what_is_wrong_with_a_store_is_named() -> None:
    class Disagreeing(MemoryStore):
        def disagreement(self) -> str:
            return "the index lacks 1 entries"

    store = Disagreeing()
    store.write(array([b"d1", b"dbroken"]), array([b"\x01" + bytes(11), b"\x09"]))
    found = [row for batch in Examine("rekey", 2)(store, 99) for row in batch.to_pylist()]  # type: ignore[arg-type]
    assert found[0]["problem"] == "the index lacks 1 entries"
    assert "a stored record has format 9" in found[1]["problem"]
    store.write(array([b"dbroken"]), array([None]))
    found = [row for batch in Examine("rekey", 2)(store, 99) for row in batch.to_pylist()]  # type: ignore[arg-type]
    assert found[1]["problem"] == "1 records of kind left belong to another bucket, first b'1'"


def test_of_rows_that_are_gone_only_their_versions_are_shown() -> None:
    """A staged join remembers left rows that left a foreign key: what is stale is seen to be stale."""
    schema, store = pa.schema([("k", pa.string()), ("n", pa.int64())]), MemoryStore()
    key, none = KeyCodec(schema.remove(1)).encode([pa.array(["a", "b"])], 2), constant(None, 2)
    row = RowCodec(schema).encode([pa.array(["a", "b"]), pa.array([1, 2])], 2)
    for number, there in enumerate(([True, True], [True, False])):
        version, ts = versions.encode(versions.identity("s"), [np.full(2, number)]), np.zeros(2, np.int64)
        value = masked(row, np.array(there))
        subscribes = table(SUBSCRIPTION, key, key, np.array(there), version, value, ts)
        rights = table(CHANGE, key, none, value, version, ts)
        list(subscription(subscribes, rights, store, Counters(), now_ms=0, retention_ms=1000))
    schemas = {"key": schema.remove(1), "foreign_key": schema.remove(1), "left": schema, "right": schema}
    described = Described("j-subscription", STAGES["subscription"], schemas, False, (("left_version", 1), ("right_version", 1)))
    found = [entry for batch in Entries(described)(store, 0) for entry in batch.to_pylist()]  # type: ignore[arg-type]
    shown = [(one["kind"], one["foreign_key"], one["gone"], one["row"]) for one in found]
    kept = [('"a"', False, '{"k": "a", "n": 1}'), ('"b"', True, None)]
    assert shown == [(kind, *one) for kind in ("right", "subscription") for one in kept]
    assert all(json.loads(one["version"]) == [[1]] for one in found)


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, state_command: Any) -> Iterator[Path]:
    """A checkpoint of two halves; between them partitions are halved, doubled, and their indexes rebuilt."""
    folder = tmp_path_factory.mktemp("state")
    checkpoint, index = str(folder / "checkpoint"), str(folder / "index")
    for name, value in ((PARTITIONS, "2"), (BUCKETS, "4"), (INDEX_DIR, index), (VALIDATE, "true")):
        spark.conf.set(name, value)
    rows = go_on(spark, folder, 1)
    with pytest.raises(FkJoinError, match="4 buckets cannot be spread evenly over 3; choose one of 1, 2, 4 "):
        state_command("rescale", checkpoint, "3")
    for partitions in (1, 2):
        _, lines = state_command("rescale", checkpoint, str(partitions))
        assert lines == [f"{checkpoint} has {partitions} partitions now; start its query as before"]
    with pytest.raises(FkJoinError, match="has 2 already"):
        rescale(spark, checkpoint, 2)
    status, lines = state_command("rebuild", checkpoint, "--index-dir", index)
    assert status == 0
    assert all(list(Path(line).glob("*/index-*/CURRENT")) for line in lines)
    rows += go_on(spark, folder, 2)
    assert joined(rows) == golden.batch_join(2)
    yield folder
    spark.conf.unset(VALIDATE)


def go_on(spark: SparkSession, folder: Path, half: int) -> list[Row]:
    golden.write_half(folder, half)
    return run(golden.joined(spark, folder).materialize("kept").changes, folder / "checkpoint").rows


def joined(rows: list[Row]) -> dict[Any, Any]:
    return {key[0]: content(row) for key, row in table_of(rows, "id").items()}


def content(row: Row) -> tuple[Any, ...]:
    return row.left.customer, row.left.amount, row.right and row.right.name


@pytest.mark.faults
def test_a_materialized_table_is_read_as_of_any_batch(spark: SparkSession, place: Path) -> None:
    checkpoint = place / "checkpoint"
    for batch, half in sampled([(0, 1), (1, 1), (2, 1), (3, 2), (None, 2)], [(2, 1), (None, 2)]):
        frame = read_state(spark, checkpoint, "kept", batch=batch)
        assert {row.id: content(row) for row in frame.collect()} == golden.batch_join(half)
    assert frame.columns == ["id", "left", "right", "_left_version", "_right_version", "_timestamp"]
    assert frame.where("right is null").first()._left_version is not None  # type: ignore[union-attr]


def test_the_command_line_shows_what_is_known_of_a_key_and_exports_and_verifies_everything(
    spark: SparkSession, place: Path, state_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(place / "checkpoint")
    status, lines = state_command("ls", checkpoint)
    assert status == 0
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["golden-rekey", "golden-subscription", "golden-resolve"]
    assert {line.split()[1] for line in lines[2:]} == {"golden"}
    assert all((place / "checkpoint" / line.split()[2]).is_dir() for line in lines[2:])
    store, *columns = lines[1].split()
    assert (store, len(columns)) == ("store", 8)
    legend = " ".join(state_command("ls", "--help")[1])
    assert [name for name in columns if f"`{name}`" not in legend] == []
    wanted = golden.batch_join(2)
    key = next(key for key, row in wanted.items() if row[2] is not None)
    status, lines = state_command("get", str(key), checkpoint)
    assert [json.loads(line)["kind"] for line in lines] == ["left", "right", "subscription", "result"]
    assert json.loads(lines[-1])["row"]["left"]["amount"] == wanted[key][1]
    assert state_command("get", str(key), checkpoint, "--operator", "golden") == (status, lines)
    with monkeypatch.context() as elsewhere:  # where only Spark reads files
        elsewhere.setattr(saved_files, "files_here", lambda _: None)
        assert state_command("get", str(key), checkpoint) == (status, lines)
    out = str(place / "out")
    status, lines = state_command("export", checkpoint, out, "--store", "golden-resolve")
    assert lines == [f"{out}/golden-resolve"]
    exported = spark.read.json(lines[0])
    assert exported.where("row is not null").count() == len(wanted)
    assert exported.where("not gone").count() == len(wanted)
    with pytest.raises(FkJoinError, match="already exists"):
        state_command("export", checkpoint, out, "--store", "golden-resolve")
    assert state_command("export", checkpoint, f"{out}-2", "--store", "golden-resolve")[0] == 0
    with pytest.raises(FkJoinError, match="no store 'golden' in .*; did you mean|no store 'golden'"):
        state_command("export", checkpoint, out, "--store", "golden")
    assert state_command("verify", checkpoint) == (0, ["the state is consistent: 3 stores"])


@pytest.mark.nightly
def test_a_checkpoint_that_only_hadoop_reaches_is_read(spark: SparkSession, place: Path, state_command: Any) -> None:
    """A file system that pyarrow does not know, as HDFS is where nothing of Hadoop is installed."""
    hadoop: Any = spark.sparkContext._jsc
    hadoop.hadoopConfiguration().set("fs.viewfs.mounttable.shop.link./jobs", f"file://{place}")
    checkpoint = "viewfs://shop/jobs/checkpoint"
    here = {row.id: row for row in read_state(spark, place / "checkpoint", "kept").collect()}
    assert {row.id: row for row in read_state(spark, checkpoint, "kept").collect()} == here
    assert len(here) > 0
    assert verify(spark, checkpoint) == []
    key = str(next(iter(here)))
    assert state_command("get", key, checkpoint) == state_command("get", key, str(place / "checkpoint"))


SPARK: Any = None


def store(stage: str) -> Any:
    name, identity = f"joined-{stage}", ("", {"fused": True})
    return SimpleNamespace(name=name, operator_name="joined", stage=stage, identity=identity)


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Findings in each store, of which nothing is wrong alone."""
    frame = MagicMock()
    frame.cache.return_value = frame
    monkeypatch.setattr(upkeep, "_examined", lambda *_: frame)
    monkeypatch.setattr(upkeep, "_problems", lambda *_: [])
    monkeypatch.setattr(upkeep, "_compared", lambda *_: ["they differ"])
    return frame


def test_stores_are_compared_and_let_go(frame: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pairs.  A join whose subscriptions are in another query has no store of that stage."""
    for stages, problems in (
        (["rekey", "subscription"], ["they differ"]),
        (["rekey", "rekey", "subscription", "subscription"], ["they differ", "they differ"]),
        (["rekey", "rekey", "subscription"], ["joined-subscription: the query has 1 of it, and 2 of rekey"]),
        (["rekey"], []),
    ):
        frame.reset_mock()
        assert upkeep._wrong(SPARK, [store(stage) for stage in stages]) == problems
        assert frame.cache.call_count == frame.unpersist.call_count == len(stages)
    frame.reset_mock()
    monkeypatch.setattr(upkeep, "_compared", MagicMock(side_effect=RuntimeError("no workers")))
    with pytest.raises(RuntimeError, match="no workers"):
        upkeep._wrong(SPARK, [store("rekey"), store("subscription")])
    assert frame.unpersist.call_count == 2


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with the checkpoint of a query, and its index."""
    small(spark, tmp_path, buckets=1)
    write_lines(tmp_path / "rows", "1", [{"id": "a", "n": 1}])
    table = Table.from_files(spark, tmp_path / "rows", key="id", version="n", name="rows").materialize("rows")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    table.to_parquet(out, checkpoint=checkpoint, trigger="available-now").awaitTermination()
    return tmp_path


def found(spark: SparkSession, job: Path) -> indexes.Found:
    (one,) = indexes.found(spark, job / "index")
    return one


def test_an_index_of_a_lost_checkpoint_is_removed(
    spark: SparkSession, job: Path, state_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stays as long as the checkpoint is the query's, or a process has the index open."""

    prune, checkpoint = ("prune", "--index-dir", str(job / "index")), job / "checkpoint"
    _, lines = state_command(*prune, "--remove")
    assert "kept" in lines[0]
    assert str(checkpoint) in lines[0]
    assert lines[1] == f"no index under {job}/index belongs to a checkpoint that is gone"
    (checkpoint / "metadata").write_text(json.dumps({"id": "of another"}))
    (checkpoint / ".metadata.crc").unlink()
    assert query_id(spark, str(checkpoint)) == "of another"
    assert found(spark, job)[2:] == ("gone", f"file:{checkpoint} is now of another query")
    shutil.rmtree(checkpoint)
    lock = locked(next((job / "index").rglob("index-*")))
    assert lock is not None
    why = f"file:{checkpoint} is gone, but a process has an index open"
    assert found(spark, job)[2:] == ("kept", why)
    os.close(lock)
    folder = found(spark, job).folder
    _, lines = state_command(*prune)
    assert lines[0].startswith("gone ")
    assert "--remove removes them" in lines[1]
    assert folder.is_dir(), "it was to be listed"
    with monkeypatch.context() as other:
        other.setattr(indexes.shutil, "rmtree", MagicMock(side_effect=PermissionError("no")))
        with pytest.raises(FkJoinError, match=f"{folder} cannot be removed: .*; remove it as its owner"):
            state_command(*prune, "--remove")
    state_command(*prune, "--remove")
    assert list((job / "index").iterdir()) == []


def test_an_index_of_which_too_little_is_known_stays(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "index" / "query"
    folder.mkdir(parents=True)
    for home, why in (
        (None, "nothing says where the checkpoint is"),
        ("?", "nothing says where the checkpoint is"),
        ({"checkpoint": "file:/gone", "host": "elsewhere"}, "file:/gone is on elsewhere"),
        ({"checkpoint": "nowhere://bucket/gone", "host": "h"}, "nowhere://bucket/gone cannot be asked: "),
    ):
        if home is not None:
            (folder / index_home.HOME_FILE).write_text(json.dumps(home))
        index = found(spark, tmp_path)
        assert (index.fate, index.why[: len(why)]) == ("unknown", why)
        assert indexes.remove([index]) == []
        assert folder.is_dir()


DAMAGE = (
    "terminated with exception: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error",
    "terminated with exception: [STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed",
    "File file:/ck/state/1/_stateSchema/default/0_e does not exist",
    "Checksum error: file:/ck/offsets/2 at 0",
)
NO_DAMAGE = (
    "PythonException: json.decoder: Unexpected character",
    "PythonException: fkjoin.state.errors.StoreError: CANNOT_LOAD_STATE_STORE",
    "Checksum error: file:/in/orders/2.json at 0",
    "[MALFORMED_RECORD] Unexpected character",
    "[CANNOT_LOAD_STATE_STORE] caused by: No space left on device",
    "[CANNOT_LOAD_STATE_STORE] caused by: Connection refused",
    "ArithmeticException: / by zero\n=== Streaming Query ===\nCANNOT_LOAD_STATE_STORE",
)


def test_errors_that_come_from_a_checkpoint_say_what_to_do() -> None:
    def words(error: str) -> str:
        return ": ".join(explain(f"{error}\n=== Streaming Query ===\nplan", "/ck") or ())

    assert [error for error in DAMAGE if not re.search("is damaged.*restore it from", words(error))] == []
    assert "another query is writing" in words("Multiple streaming queries are concurrently using file:/ck")
    assert [error for error in NO_DAMAGE if words(error) != ""] == []


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """Some letters are patterns to Spark, which reads the files."""
    folder = tmp_path / "my [a] {b}*?" / "100%" / "state" / "0" / "7"
    folder.mkdir(parents=True)
    checkpoint = unpack(CHECKPOINTS / "join-1.tar.gz", folder)
    assert metas(spark, saved_stores(spark, checkpoint)[0]) != []


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole checkpoint of a join."""
    return unpack(CHECKPOINTS / "join-1.tar.gz", tmp_path)


def flip(file: Path, number: int) -> None:
    """Change a bit of a byte."""
    data = bytearray(file.read_bytes())
    data[number] ^= 1
    file.write_bytes(data)


def test_a_damaged_log_is_named(spark: SparkSession, checkpoint: Path) -> None:
    """Before anything runs: Spark would not notice it."""
    for name in ("offsets/0", "commits/0"):
        check_logs(spark, str(checkpoint))
        middle = (checkpoint / name).stat().st_size // 2
        flip(checkpoint / name, middle)
        with pytest.raises(FkJoinError, match=f"damaged: {name} is not as it was written; restore it"):
            check_logs(spark, str(checkpoint))
        flip(checkpoint / name, middle)


def test_a_data_file_is_vouched_for_by_checksums(spark: SparkSession, checkpoint: Path) -> None:
    """Hadoop's, and RocksDB's."""
    file = next(checkpoint.glob("state/1/0/SSTs/*.sst"))
    flip(file, 20)
    with pytest.raises(FkJoinError, match=f"SSTs/{file.name} is not as it was written; restore it"):
        verify(spark, checkpoint)
    (file.parent / f".{file.name}.crc").unlink()
    with pytest.raises(FkJoinError, match="a snapshot in state/1/0 is damaged: .*; restore it from a backup"):
        verify(spark, checkpoint)


VOUCHED = ["1_*.zip*", ".1_*.zip*", "1_*.changelog*", ".1_*.changelog*"]


@pytest.mark.parametrize("patterns", [["1_*.zip"], VOUCHED])
def test_swapped_files_are_seen(spark: SparkSession, checkpoint: Path, patterns: Any) -> None:
    """Alone, and with all that vouches for them."""
    for pattern in patterns:
        ones, others = (sorted(checkpoint.glob(f"state/1/{number}/{pattern}")) for number in (0, 1))
        for one, other in zip(ones, others, strict=True):
            content = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(content)
    with pytest.raises(FkJoinError, match="checkpoint .* is damaged.* restore it from a backup"):
        verify(spark, checkpoint)


def test_a_claim_is_renewed_and_whole_whenever_its_owner_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEWED_EVERY_S", 0.02)
    (tmp_path / "metadata").touch()
    file = tmp_path / f"{CLAIM_FILE}.1"
    deadline = time.monotonic() + 20

    def waiting() -> bool:
        assert time.monotonic() < deadline, "the claim is not renewed"
        return True

    with claimed(spark, str(tmp_path)):
        for _ in range(20):
            before = file.stat().st_mtime_ns
            while waiting() and file.stat().st_mtime_ns == before:
                assert json.loads(file.read_text())["process"] == os.getpid()
    assert file.read_text() == ""
