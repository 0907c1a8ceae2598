"""Point look-ups from a checkpoint's files, without Spark; also beside a query that goes on; and a table as of a time.

``fkjoin state get`` reads files, too: it starts no Spark, neither to answer nor to refuse.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin import FkJoinError, FormatError, StateReader, read_state
from fkjoin.checkpoint import reader as reader_module
from fkjoin.checkpoint import replica, saved_files, user_keys
from fkjoin.checkpoint.entries import StoredRows
from fkjoin.checkpoint.saved import newest, saved_stores
from fkjoin.checkpoint.saved_files import _CONFIGURED as CONFIGURED
from fkjoin.checkpoint.saved_files import SavedFiles
from fkjoin.checkpoint.spark_formats import LogPlace, changes_of, key_of, place_of
from fkjoin.checkpoint.stores import with_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.checkpoint.user_keys import rows_of
from fkjoin.cli import state as state_cli
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS, TIME_ZONE
from fkjoin.spark.buckets import bucket_ids
from fkjoin.state import CorruptLogError
from fkjoin.state.segments import Meta
from tests.support import golden, golden_operators
from tests.support.golden import CHECKPOINTS
from tests.support.queries import write_lines
from tests.support.sampling import EVERY
from tests.support.saved_query import NAME, SavedQuery, compressed
from tests.support.sessions import SPARK_4_0

KEYS = list(itertools.product(("eu", "us", ""), (1, -2)))


@pytest.fixture
def query(tmp_path: Path) -> SavedQuery:
    return SavedQuery(tmp_path)


def row(seq: int, **more: Any) -> dict[str, Any]:
    return {"name": f"n{seq}", "amount": seq / 4, "tags": {"a": seq}, "seq": seq, **more}


def all_of(query: SavedQuery) -> list[dict[str, Any] | None]:
    return [query.values(key) for key in KEYS]


def state_of(query: SavedQuery, reader: StateReader, folder: Path) -> dict[Any, Any]:
    """The table as ``read_state`` makes it: of each bucket's log, replayed into a store."""
    found = {}
    for bucket in bucket_ids(query.buckets):
        with query.store(bucket, folder) as store:
            for batch in StoredRows(reader._there().described)(store, bucket):
                found.update({(one["region"], one["n"]): one for one in rows_of(batch)})
    return found


BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1),
        st.booleans(),  # a snapshot is made
        st.sampled_from([None, None, 1, 2]),  # so many batches are kept by a clean-up
        st.booleans(),  # the logs are cleaned
        st.booleans(),  # the reader looks
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=200 if EVERY else 10)
@given(batches=BATCHES, codec=st.sampled_from(["lz4", "zstd"]))
def test_a_reader_has_what_read_state_has_after_any_history(batches: list[Any], codec: str) -> None:
    """Histories have snapshots, clean-ups, and batches at which the reader does not look."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        query = SavedQuery(Path(folder), codec=codec)
        reader: StateReader | None = None
        for seq, (keys, snapshot, keep, tidy, looks) in enumerate(batches):
            changes = {key: row(seq, tags=None if seq % 3 else {"": seq}) if upsert else None for key, upsert in keys.items()}
            query.batch(changes, snapshot=snapshot, tidy=tidy)
            if keep is not None:
                query.clean(keep)
            if looks or seq == len(batches) - 1:
                if reader is None:
                    reader = stack.enter_context(StateReader(query.checkpoint, NAME, max_age=None))
                assert reader.refresh() == query.last
                assert reader.get_many(KEYS) == all_of(query)
        assert reader is not None
        assert state_of(query, reader, Path(folder) / "replayed") == {key: query.values(key) for key in query.rows}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of checkpoints that Spark wrote."""
    place = tmp_path_factory.mktemp("saved")
    golden_operators.unpacked(CHECKPOINTS / "operators-1.tar.xz", place)
    return place


@pytest.fixture
def checkpoints(folder: Path) -> Path:
    """The folder of checkpoints."""
    return folder / "checkpoint"


@pytest.mark.parametrize("kept", ["both", "all", "star", "tags", "pairs"])
def test_each_kind_of_store_that_spark_wrote_is_read(checkpoints: Path, kept: str) -> None:
    name = {"both": "groups", "all": "groups"}.get(kept, kept)
    wanted = golden_operators.QUERIES[name][1](golden_operators.final(2))
    if kept == "both":  # customers without orders come later, by the merge
        wanted = {key: one for key, one in wanted.items() if one["n"]}
    with StateReader(checkpoints / name, kept) as reader:
        assert repr(reader) == f"StateReader[{kept} of {checkpoints / name}]"
        found = reader.get_many([*wanted, "nobody" if isinstance(next(iter(wanted)), str) else 10_000])
        assert found.pop() is None
        for key, one in zip(wanted, found, strict=True):
            assert one is not None
            shown = {column: one[column] for column in wanted[key] if column in one}
            assert shown == {column: value for column, value in wanted[key].items() if column in one}, key
            assert len(shown) > 0


def test_children_that_spark_wrote_are_read(checkpoints: Path) -> None:
    tables = golden_operators.final(2)
    large = [(key, row["customer"], row["amount"]) for key, row in tables["orders"].items() if row["amount"] > 1]
    with StateReader(checkpoints / "groups", "book") as reader:
        rows = reader.get_many([*tables["customers"], "nobody"])
    assert rows.pop() is None
    orders: list[Any] = []
    for customer, row in zip(tables["customers"], rows, strict=True):
        orders += [(key, customer, order["amount"]) for key, order in dict(row["orders"] if row else ()).items()]
    assert sorted(orders) == sorted(order for order in large if order[1] in tables["customers"])


def test_a_table_that_is_not_kept_or_not_there_is_refused(checkpoints: Path, query: SavedQuery) -> None:
    with pytest.raises(FkJoinError, match=r"chain keeps only hashes of its rows in .*: start it with .materialize\(…\)"):
        StateReader(checkpoints / "chain", "chain")
    query.batch({KEYS[0]: row(1)})
    with pytest.raises(FkJoinError, match="no table is materialized as 'kep' in .*; did you mean 'kept'"):
        StateReader(query.checkpoint, "kep")
    with pytest.raises(FkJoinError, match="max_age: -1 is not a number of seconds; give one of at least 0, or None"):
        StateReader(query.checkpoint, NAME, max_age=-1)


NO_KEYS: list[tuple[Any, str]] = [
    ("eu", r"'eu' is one value, and .* region \(string\), n \(int32\): write a tuple of them"),
    (("eu",), "has 1 values, and the table's key is region"),
    ({"region": "eu"}, "does not have the columns of the table's key, which is region"),
    (("eu", "1"), "'1' cannot be a value of column n, which is int32"),
    ((1, 1), "1 cannot be a value of column region, which is string: it is a int$"),
    ((b"eu", 1), "it is bytes"),
    (("eu", True), "True cannot be a value of column n, which is int32: it is a bool"),
    (("eu", 1 << 40), "cannot be a value of column n"),
    (("eu", None), "a key has no nulls"),
]


def test_a_key_is_a_tuple_or_a_dict_and_what_is_none_is_refused_by_name(query: SavedQuery) -> None:
    query.batch({("eu", 1): row(1)})
    with StateReader(query.checkpoint, NAME) as reader:
        for key, says in NO_KEYS:
            with pytest.raises(FkJoinError, match=says):
                reader.get_many([("us", 1), key])
        wanted = query.values(("eu", 1))
        for key in (("eu", 1), ["eu", 1], {"n": 1, "region": "eu"}):
            assert reader.get(key) == wanted
            assert reader.get_many([key, ("us", 1), key]) == [wanted, None, wanted]
        assert reader.get_many([]) == []
        single: Any
        for single in ("eu", b"eu", 7, {"region": "eu", "n": 1}):
            says = rf"^keys: {re.escape(repr(single))} is one key: give it to get, or give a list of"
            with pytest.raises(FkJoinError, match=says):
                reader.get_many(single)


def test_keys_of_one_column_are_its_values() -> None:
    text, number = pa.schema([("id", pa.string())]), pa.schema([("n", pa.int64())])
    moment = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    pair = pa.schema([("both", pa.struct([("a", pa.int32())]))])
    assert user_keys.encoded(text, ["x", ("x",), {"id": "x"}]) == [b"x"] * 3
    assert len(set(user_keys.encoded(number, [7, (7,), {"n": 7}]))) == 1
    assert len(set(user_keys.encoded(pair, [{"a": 1}, ({"a": 1},), {"both": {"a": 1}}]))) == 1
    assert user_keys.encoded(moment, [datetime(2026, 1, 1, tzinfo=timezone.utc)])
    for schema, key, says in (
        (moment, datetime(2026, 1, 1), "it has no time zone"),
        (pa.schema([("at", pa.timestamp("us"))]), datetime(2026, 1, 1, tzinfo=timezone.utc), "it has a time zone"),
        (pa.schema([("day", pa.date32())]), datetime(2026, 1, 1), "it is a timestamp"),
        (pa.schema([("raw", pa.binary())]), "x", "it is text"),
        (text, date(2026, 1, 1), "cannot be a value of column id, which is string: it is a date$"),
        (pair, {"a": "x"}, "cannot be a value of column both, which is .*: Could not convert 'x'"),
    ):
        with pytest.raises(FkJoinError, match=says):
            user_keys.encoded(schema, [key])


def test_a_map_is_a_dict_and_a_struct_in_its_keys_a_tuple() -> None:
    inner = pa.struct([("m", pa.map_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))]), pa.list_(pa.int32())))])
    value = {"m": [({"a": 1, "b": [2]}, [3]), ({"a": 1, "b": None}, None)]}
    batch = pa.record_batch({"one": pa.array([value, None], inner), "two": pa.array([[value], []], pa.list_(inner))})
    made = {"m": {(1, (2,)): [3], (1, None): None}}
    assert rows_of(batch) == [{"one": made, "two": [made]}, {"one": None, "two": []}]


def test_an_answer_is_no_older_than_max_age(query: SavedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(reader_module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: clock[0])}))
    query.batch({("eu", 1): row(1)})
    never, often, lazy = (StateReader(query.checkpoint, NAME, max_age=age) for age in (None, 0, 5))
    with never, often, lazy:
        for seq, seconds, of_lazy in ((2, 3.0, "n1"), (3, 2.5, "n3")):
            query.batch({("eu", 1): row(seq)})
            clock[0] += seconds
            rows: Any = [reader.get(("eu", 1)) for reader in (never, often, lazy)]
            assert [one["name"] for one in rows] == ["n1", f"n{seq}", of_lazy]
        assert (never.batch, never.refresh(), never.batch) == (0, 2, 2)


def test_a_later_batch_is_followed_and_copied_only_when_it_must_be(query: SavedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    copied = replica.Replica._copied
    monkeypatch.setattr(replica.Replica, "_copied", lambda self, commit: copies.append(commit.batch) or copied(self, commit))
    query.batch({key: row(0) for key in KEYS}, snapshot=True)
    with StateReader(query.checkpoint, NAME, max_age=0) as reader:
        for seq in range(1, 6):
            query.batch({KEYS[seq]: row(seq), KEYS[0]: None}, snapshot=seq % 2 == 0)
            assert reader.get_many(KEYS) == all_of(query)
        assert copies == [0]
        for seq in range(6, 9):
            query.batch({KEYS[0]: row(seq)}, snapshot=True)
        query.clean(1)
        assert reader.get_many(KEYS) == all_of(query)
        assert copies == [0, 8]


@pytest.mark.parametrize(("partitions", "batches"), [(2, 2), (4, 3)])
def test_another_checkpoint_in_the_place_of_the_one_that_was_read_is_copied_anew(
    query: SavedQuery, tmp_path: Path, partitions: int, batches: int
) -> None:
    """A backup, whose last batch has the same number and other files; or more partitions."""
    other = SavedQuery(tmp_path / "other", partitions=partitions)
    for seq in (1, 2):
        query.batch({("eu", 1): row(seq)})
    for seq in range(batches):
        other.batch({("eu", 1): row(seq + 6), ("us", 1): row(8)}, snapshot=True)
    with StateReader(query.checkpoint, NAME, max_age=0) as reader:
        assert reader.get(("eu", 1)) == query.values(("eu", 1))
        query.checkpoint.rename(tmp_path / "away")
        other.checkpoint.rename(query.checkpoint)
        assert reader.get_many([("eu", 1), ("us", 1)]) == [other.values(("eu", 1)), other.values(("us", 1))]


def test_files_that_are_removed_meanwhile_lead_to_the_next_batch(query: SavedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean-up comes between the look at the commits and the reading of what they name."""
    query.batch({("eu", 1): row(1)}, snapshot=True)
    left = iter(range(2, 5))

    def passed_by(files: Any, batch: int) -> Any:
        found = commit_of(files, batch)
        for seq in itertools.islice(left, 1):
            query.batch({("eu", 1): row(seq)}, snapshot=True)
            query.clean(1)
        return found

    commit_of = saved_files.commit_of
    monkeypatch.setattr(saved_files, "commit_of", passed_by)
    with StateReader(query.checkpoint, NAME, max_age=None) as reader:
        assert (reader.batch, reader.get(("eu", 1))) == (3, query.values(("eu", 1)))
    monkeypatch.setattr(saved_files, "_TRIES", 2)
    left = iter(range(5, 9))
    with pytest.raises(FkJoinError, match="Spark removed the files of 2 batches, one after the other, before .* .spark.sql"):
        StateReader(query.checkpoint, NAME)


def test_a_batch_comes_before_a_call_or_after_it(query: SavedQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may read several times; another thread goes to a later batch between two of them."""
    query.batch({key: row(0) for key in KEYS})
    followed: list[threading.Thread] = []
    get_many = replica.RocksIndex.get_many

    def interrupted(index: Any, keys: Any) -> Any:
        if not followed:
            followed.append(threading.Thread(target=reader.refresh))
            followed[0].start()
            followed[0].join(1.0)
        return get_many(index, keys)

    with StateReader(query.checkpoint, NAME, max_age=None) as reader:
        query.batch({key: row(1) for key in KEYS})
        monkeypatch.setattr(replica.RocksIndex, "get_many", interrupted)
        assert {one["name"] for one in reader.get_many(KEYS) if one is not None} == {"n0"}
        followed[0].join(60)
        assert {one["name"] for one in reader.get_many(KEYS) if one is not None} == {"n1"}


def test_a_reader_leaves_nothing_behind_and_says_so_when_it_was_closed(query: SavedQuery) -> None:
    query.batch({key: row(0) for key in KEYS}, snapshot=True)
    reader = StateReader(query.checkpoint, NAME)
    folder = reader._folder
    assert [path.name.split("-")[0] for path in folder.iterdir()] == ["index"]
    size = reader.cache_size
    assert size.entries == len(KEYS)
    assert 0 < size.disk_bytes < 100_000
    assert size.memory_bytes > 0
    reader.close()
    reader.close()
    assert not folder.exists()
    for call in (lambda: reader.get(("eu", 1)), reader.refresh, lambda: reader.batch):
        with pytest.raises(FkJoinError, match="the StateReader of kept was closed: make a new one"):
            call()
    with StateReader(query.checkpoint, NAME) as again:
        assert again.batch == 0


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_byte_that_is_not_as_it_was_written_is_noticed(
    query: SavedQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bool
) -> None:
    """No copy is left of files that cannot be read."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    query.batch({key: row(0) for key in KEYS}, snapshot=snapshot)
    patterns = ("[0-9]*/*.zip", "*/SSTs/*.sst") if snapshot else ("[0-9]*/*.changelog",)
    found = [path for pattern in patterns for path in sorted((query.checkpoint / "state/0").glob(pattern))]
    for path in found:
        whole = path.read_bytes()
        middle = len(whole) // 2 if path.suffix != ".sst" else 20
        for damaged in (whole[:middle] + bytes((whole[middle] ^ 1,)) + whole[middle + 1 :], whole[:middle], b""):
            path.write_bytes(damaged)
            with pytest.raises(FkJoinError, match=f"checkpoint {query.checkpoint}"):
                StateReader(query.checkpoint, NAME)
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(FkJoinError, match="is damaged, a file of its batch 0 is missing: restore it from a backup"):
        StateReader(query.checkpoint, NAME)
    assert not list((tmp_path / "scratch").iterdir())


def test_files_of_another_form_are_refused_by_name(query: SavedQuery, tmp_path: Path) -> None:
    query.batch({("eu", 1): row(1)})
    offsets, commit = (query.checkpoint / folder / "0" for folder in ("offsets", "commits"))
    text, committed = offsets.read_text(), commit.read_text()
    for name, value in (("encodingFormat", "avro"), ("rowChecksum.enabled", "true")):
        conf = {"conf": {f"spark.sql.streaming.stateStore.{name}": value}}
        offsets.write_text(f"v1\n{json.dumps(conf)}\n0")
        with pytest.raises(FkJoinError, match=f"begun with .*{name}={value}, and fkjoin reads"):
            StateReader(query.checkpoint, NAME)
    offsets.write_text(text)
    commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(FkJoinError, match="does not say which files of its state were committed"):
        StateReader(query.checkpoint, NAME)
    commit.write_text(committed)
    with pytest.raises(FkJoinError, match="cannot be read without Spark: .*; fkjoin.read_state"):
        StateReader("wasbs://a@b/c", NAME)
    other = SavedQuery(tmp_path / "other", codec="snappy")
    other.batch({("eu", 1): row(1)})
    with pytest.raises(FkJoinError, match="is compressed by neither lz4 nor zstd: set spark.sql"):
        StateReader(other.checkpoint, NAME)
    for path in ((file := query.checkpoint), os.path.relpath(file), f"file:{file}", f"file://{file}", str(file) + "/"):
        StateReader(path, NAME).close()


def test_a_segment_of_another_attempt_is_refused(query: SavedQuery) -> None:
    """A log that does not lead on from the one that is known makes the reader copy it anew; this one is damaged."""
    query.batch({("eu", 1): row(1)})
    folder = query.checkpoint / "state/0"
    (path,) = (path for path in folder.glob("*/1_*.changelog") if len(path.read_bytes()) > 200)
    changes = changes_of("1_x", path.read_bytes())
    (place,) = (place for place in changes.written if place.number is None)
    data = changes.written[place]
    assert data is not None
    meta = Meta.decode(data)
    assert replica._follow(changes, {}, entries := [])
    assert len(entries) == 1
    other = {**changes.written, place: replace(meta, token=b"x" * 16).encode()}
    with pytest.raises(CorruptLogError, match="segment 0 comes from another attempt than its meta"):
        replica._follow(changes._replace(written=other), {}, [])
    gone = {key: value for key, value in changes.written.items() if key.number is None}
    with pytest.raises(CorruptLogError, match="change log segment 0 is missing"):
        replica._follow(changes._replace(written=gone), {}, [])
    for known in (replace(meta, next=5), replace(meta, identity=b"{}"), replace(meta, token=b"x" * 16)):
        assert not replica._follow(changes, {place.bucket: known}, [])


def test_records_of_another_form_are_refused() -> None:
    for place in (LogPlace(7, None), LogPlace(7, 1 << 40)):
        assert place_of(key_of(3, place)) == place
    key = key_of(3, LogPlace(1, 2))
    for wrong in (key[:-1], key[:2] + b"\x20" + key[3:], b"", bytes(19)[:-1]):
        with pytest.raises(FormatError, match="that does not belong to a change log"):
            place_of(wrong)
    for data, says in (
        (b"\0\x02v2", "1_x is a change file of the form 'v2', and this release reads 'v4'"),
        (b"\0\x02v4\0\x02[]\x11", "contains a record of the unknown kind 0x11"),
        (b"\0\x02v4\0\x02[]", "ends in the middle of a record"),
        (b"\0\x02v4\0\x02[]\0\0", "is corrupt: it has data after its end"),
        (b"\0\x02v4\0\x02{]\0", "is damaged and does not parse"),
    ):
        with pytest.raises(FormatError, match=says):
            changes_of("1_x", compressed(data, "lz4"))
    assert changes_of("1_x", compressed(b"\0\x02v4\0\x02[]\0", "zstd")) == ((), {})


BATCH_COUNT = 4
EARLY = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_of_a_time_the_newest_batch_that_was_there_is_chosen() -> None:
    batches = {9: 900, 10: 1000, 11: 1100}
    assert [newest("ck", batches, at, "then") for at in (900, 999, 1000, 1099, 1100, 5000)] == [9, 9, 10, 10, 11, 11]
    with pytest.raises(FkJoinError, match="no batch that .* at or before then: the oldest .*, 9"):
        newest("ck", batches, 899, "then")
    with pytest.raises(FkJoinError, match="as_of: ck has no batch .*: it has none"):
        newest("ck", {}, 899, "then")


@pytest.fixture(scope="module")
def read_meanwhile(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Any]]]:
    """A checkpoint of a query that was read while it ran; batch N gives all orders the amount N."""
    folder = tmp_path_factory.mktemp("reader")
    own = {
        PARTITIONS: "2",
        BUCKETS: "2",
        INDEX_DIR: str(folder / "index"),
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    }
    before = {name: spark.conf.get(name, None) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    checkpoint, seen = folder / "ck", list[Any]()

    def put(number: int) -> None:
        orders = [{"id": n, "amount": float(number), "tags": [str(n)], "op": "u", "seq": number} for n in range(20)]
        if number == 2:
            orders[7]["op"] = "d"
        write_lines(folder / "drafts", f"{number}", orders)
        (folder / f"drafts/{number}.json").rename(folder / f"orders/{number}.json")

    (folder / "orders").mkdir()
    put(0)
    table = golden.table(spark, folder, "orders").materialize("kept")
    query = table.changes.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    stop = threading.Event()

    def look(reader: StateReader) -> None:
        while not stop.wait(0.02):  # the query needs the cores, too
            seen.append({one["amount"] for one in reader.get_many(range(20)) if one is not None})

    with StateReader(checkpoint, "kept", max_age=0) as reader:
        thread = threading.Thread(target=look, args=(reader,))
        thread.start()
        for number in range(1, BATCH_COUNT):
            put(number)
            query.processAllAvailable()
        stop.set()
        thread.join(60)
    query.stop()
    yield checkpoint, seen
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def test_a_reader_beside_a_query_sees_whole_batches(read_meanwhile: tuple[Path, list[Any]]) -> None:
    _, seen = read_meanwhile
    assert {len(amounts) for amounts in seen} == {1}
    assert len(set.union(*seen)) > 2


def test_a_reader_has_the_rows_of_read_state(spark: SparkSession, read_meanwhile: tuple[Path, list[Any]]) -> None:
    checkpoint, _ = read_meanwhile
    with StateReader(checkpoint, "kept") as reader:
        wanted = {row.id: row.asDict(recursive=True) for row in read_state(spark, checkpoint, "kept").collect()}
        assert sorted(wanted) == list(range(20))
        assert reader.get_many([*range(20), 20, -1]) == [*(wanted[key] for key in range(20)), None, None]
        assert reader.get(7) == reader.get({"id": 7})


def test_a_table_is_read_as_of_a_time(spark: SparkSession, read_meanwhile: tuple[Path, list[Any]]) -> None:
    """The times are those of the files of the commits."""
    checkpoint, _ = read_meanwhile
    commits = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert commits[0] > 0, "Spark has removed the first ones"
    for number in commits:
        moment = (EARLY + timedelta(minutes=number)).timestamp()
        os.utime(checkpoint / "commits" / str(number), (moment, moment))
    last = commits[-1]

    def amounts(as_of: Any) -> set[float]:
        return {row.amount for row in read_state(spark, checkpoint, "kept", as_of=as_of).collect()}

    assert amounts(EARLY + timedelta(minutes=last, days=1)) == {BATCH_COUNT - 1.0}
    here = EARLY.replace(tzinfo=None) + timedelta(hours=9, minutes=last)
    zone = spark.conf.get(TIME_ZONE)
    spark.conf.set(TIME_ZONE, "Asia/Tokyo")
    try:
        assert amounts(str(here - timedelta(seconds=1))) == {BATCH_COUNT - 2.0}
        assert amounts(here) == {BATCH_COUNT - 1.0}
    finally:
        spark.conf.set(TIME_ZONE, str(zone))
    before = EARLY + timedelta(minutes=commits[0], seconds=-1)
    for as_of, says in (
        (before, f"no batch that was committed .*, {commits[0]}, is of 2026-03-01 12:0"),
        ("yesterday evening", "as_of: 'yesterday evening' is not a time; give a datetime, or a text such as"),
        (7, "as_of: 7 is not a time; give a datetime, or a text such as"),
    ):
        with pytest.raises(FkJoinError, match=says):
            read_state(spark, checkpoint, "kept", as_of=as_of)
    with pytest.raises(FkJoinError, match="as_of: batch is given, too; give one of them"):
        read_state(spark, checkpoint, "kept", as_of=EARLY, batch=1)


ORDERS = golden_operators.final(2)["orders"]
CHAIN = "checkpoint/chain"
KNOWN = [(key, order) for key, order in ORDERS.items() if order["customer"] in golden_operators.final(2)["customers"]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run ``fkjoin state …`` where a session that starts is a failure; errors come as they are."""

    def starts(*_: object, **__: object) -> None:
        pytest.fail("Spark starts")

    monkeypatch.setattr("fkjoin.sessions.settings.session", starts)
    for name in CONFIGURED:
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(state_cli.app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def chain(checkpoints: Path) -> Path:
    """The checkpoint of two joins."""
    return checkpoints / "chain"


def test_a_key_is_looked_up_without_spark(command: Callable[..., Any], chain: Path) -> None:
    key, order = KNOWN[0]
    found = [json.loads(line) for line in command("get", key, chain, "--operator", "joined").stdout.splitlines()]
    assert [(entry["kind"], entry["foreign_key"]) for entry in found] == [
        (kind, order["customer"]) for kind in ("left", "right", "subscription")
    ]
    assert found[2]["row"]["amount"] == order["amount"]
    first = command("get", key, chain, "--operator", "joined", "--batch", "0").stdout
    of_first = golden_operators.final(1)["orders"].get(key)
    assert [json.loads(line)["foreign_key"] for line in first.splitlines()][:1] == [of_first and of_first["customer"]]
    assert command("get", 10_000, chain, "--operator", "joined").stdout == "no state for key 10000\n"


REFUSED = [
    (("get", "1", "nothing"), "^checkpoint FOLDER/nothing does not exist$"),
    (("get", "1", "checkpoint"), "^checkpoint .* has no committed batch; there are .*: chain,"),
    (("get", "1", CHAIN), "/chain has several operators; add .* joined, chain, seen$"),
    (("get", "1", CHAIN, "--operator", "joint"), "'joint'; add --operator with one of"),
    (("get", "o1", CHAIN, "--operator", "joined"), r"^key 'o1' is not id \(int32\): "),
    (("get", "[1, 2]", CHAIN, "--operator", "joined"), r"a JSON list is needed, of id"),
    (("get", "1", CHAIN, "--batch", "7"), "^batch: FOLDER/.*/chain has batches 0 to 1, not 7$"),
    (("export", "nothing", "out"), "does not exist$"),
    (("verify", "nothing"), "does not exist$"),
    (("rebuild", "nothing"), "does not exist$"),
    (("rescale", "nothing", "2"), "does not exist$"),
]


def test_what_files_tell_is_refused_before_spark_starts(command: Callable[..., Any], folder: Path, query: SavedQuery) -> None:
    for arguments, says in REFUSED:
        whole = [str(folder / part) if re.match("nothing|checkpoint|out", part) else part for part in arguments]
        with pytest.raises(FkJoinError, match=says.replace("FOLDER", re.escape(str(folder)))):
            command(*whole)
    query.batch({("eu", 1): row(1, name="n")})
    assert json.loads(command("get", '["eu", 1]', query.checkpoint).stdout)["row"]["name"] == "n"
    shutil.rmtree(query.checkpoint / "state")
    (query.checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(FkJoinError, match="^checkpoint .* has no state: its query has no stateful operator$"):
        command("get", '["eu", 1]', query.checkpoint)


def test_a_place_that_settings_lead_to_is_sparks_to_find(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint may stand in Spark's settings alone, and a path may be on the file system that Hadoop's name."""
    for place in ("s3a://lake/ck", "hdfs:///ck", "abfss://c@lake.dfs.core.windows.net/ck", "/nothing/ck"):
        if place == "/nothing/ck":
            monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
        for arguments in (("get", "1"), ("ls",)):
            with pytest.raises(pytest.fail.Exception, match="Spark starts"):
                command(*arguments, place)


def test_a_damaged_log_and_a_file_that_is_gone_are_named_and_spark_is_not_asked(
    command: Callable[..., Any], chain: Path, tmp_path: Path
) -> None:
    chain = Path(shutil.copytree(chain, tmp_path / "chain"))
    newest = max((path.name for path in (chain / "state/0/_metadata/v2").iterdir() if path.name.isdigit()), key=int)
    for name in ("commits/1", "offsets/1", f"state/0/_metadata/v2/{newest}"):
        file = chain / name
        problem = f": {name} is damaged: .*; restore it"
        if file.with_name(f".{file.name}.crc").exists():
            problem = f" is damaged: {name} is not as it was written; restore it"
        whole = file.read_bytes()
        for damage in (b"", bytes(8), b'v1\n{"stateUni', b"v1\n\xff"):
            file.write_bytes(damage)
            with pytest.raises(FkJoinError, match=f"^checkpoint {chain}{problem}"):
                command("get", "1", chain, "--operator", "joined")
        file.write_bytes(whole)
    for file in [*chain.glob("state/*/*/*.changelog"), *chain.glob("state/*/*/*.zip")]:
        file.unlink()
    with pytest.raises(FkJoinError, match=f"^checkpoint {chain} is damaged, a file of its batch 1 is missing: restore it"):
        command("get", "1", chain, "--operator", "joined")


def test_change_files_that_a_snapshot_makes_needless_may_go_at_any_moment(
    command: Callable[..., Any], query: SavedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.batch({("eu", number): row(1) for number in range(8)})
    for number in range(2, 6):
        query.batch({("eu", 0): row(number)}, snapshot=number == 4)
    read = SavedFiles.read

    def cleaned(files: SavedFiles, name: str) -> bytes:
        if name.endswith(".changelog") and "/3_" in name:
            query.clean(2)
        return read(files, name)

    monkeypatch.setattr(SavedFiles, "read", cleaned)
    assert json.loads(command("get", '["eu", 0]', query.checkpoint).stdout)["row"]["name"] == "n5"


FIRST = json.dumps(KNOWN[0][0])
KINDS = [
    *(("chain", operator, FIRST) for operator in ("joined", "chain")),
    *(("groups", operator, "c1") for operator in ("both", "all")),
    *(("groups", operator, FIRST) for operator in ("sums", "book")),
    ("star", "star", FIRST),
    ("tags", "tags", "p1"),
    ("tags", "tags", FIRST),
    ("pairs", "pairs", FIRST),
    ("seen", "seen", "c1"),
    ("closed", "minutes", FIRST),
]


def test_each_kind_of_operator_tells_what_it_knows_of_a_key(command: Callable[..., Any], folder: Path) -> None:
    kinds = set()
    for query, operator, key in KINDS:
        lines = command("get", key, folder / "checkpoint" / query, "--operator", operator).stdout.splitlines()
        entries = [json.loads(line) for line in lines]
        assert {entry["store"].rpartition("-")[0] for entry in entries} == {operator}
        kinds |= {entry["kind"] for entry in entries}
    assert "outputs" in kinds, "of a flat map"


@pytest.mark.nightly
@pytest.mark.parametrize("query", dict.fromkeys(query for query, *_ in KINDS))
def test_files_have_what_spark_reads(spark: SparkSession, folder: Path, query: str) -> None:
    """Spark's own source of state has the same records of each store's logs."""
    if SPARK_4_0:
        pytest.skip("Spark's source of state does not read such checkpoints")
    checkpoint = folder / "checkpoint" / query
    assert verify(spark, checkpoint) == []
    stores = with_stores(SavedFiles.without_spark(checkpoint), None, list)
    facts = attrgetter("name", "identity_data")
    assert list(map(facts, stores)) == list(map(facts, saved_stores(spark, checkpoint)))
    for store in stores:
        source = spark.read.format("statestore").option("operatorId", store.operator)
        meta = source.option("stateVarName", "meta").load(str(checkpoint))
        segments = source.option("stateVarName", "log").load(str(checkpoint))
        metas = {row[0]: bytes(row[1]) for row in meta.select("key.bucket", "value.data").collect()}
        columns = ("key.bucket", "user_map_key.number", "user_map_value.data")
        saved = {(row[0], row[1]): bytes(row[2]) for row in segments.select(*columns).collect()}
        for partition in store.partitions:
            with partition.opened() as log:
                for bucket, data in log.metas().items():
                    assert metas.pop(bucket) == data
                    for number in range(Meta.decode(data).first, Meta.decode(data).next):
                        assert log.segment(bucket, number) == saved.pop((bucket, number))
        assert (metas, saved) == ({}, {})
