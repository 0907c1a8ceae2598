"""The bucket store against the memory store, through failed attempts, retries, and lost, stale or broken indexes."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fkjoin.state import (
    BucketStore,
    CorruptLogError,
    MemoryStore,
    StoreMismatchError,
    UnknownFormatError,
    folders,
    items,
    pending,
    prefix_range,
    protocol,
    segments,
)
from fkjoin.state.folders import locked
from fkjoin.state.index import RocksIndex
from fkjoin.state.segments import Position
from tests.support.places import ROOT
from tests.support.sampling import examples
from tests.support.stores import Log, array, batch, contents, flat, index_folder, index_of, key_of, write

KEYS = st.sampled_from([bytes((first, second)) for first in b"ab\xff" for second in b"\0x\xff"])
ENTRIES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), min_size=1)


class Stores(RuleBasedStateMachine):
    """Every rule is one batch or one mishap between batches."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="fkjoin-test-"))
        self.log, self.model = Log(), MemoryStore()
        self.patched = pytest.MonkeyPatch()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)
        self.patched.undo()

    @initialize(
        batches=st.sampled_from([0, 1, 3, 8]), size=st.sampled_from([0, 120, 1 << 20]), page=st.sampled_from([1, 3, 1 << 16])
    )
    def limits(self, batches: int, size: int, page: int) -> None:
        """Limits of the tail and of pages: at each step all batches go into the index, or some, or hardly any."""
        self.patched.setattr(pending, "TAIL_BATCHES", batches)
        self.patched.setattr(pending, "TAIL_BYTES", size)
        self.patched.setattr(RocksIndex, "page_entries", page)

    def attempt(self, batches: list[dict[bytes, bytes | None]]) -> MemoryStore:
        """One attempt at a batch, its reads compared with the model's."""
        model = MemoryStore()
        write(model, dict(self.model.items()))
        with BucketStore(self.log, self.folder, identity=b"me") as store:
            for entries in batches:
                write(store, entries)
                write(model, entries)
                keys = array([b"a\0", b"bx", b"\xff\xff", b"none"])
                assert store.get_many(keys).to_pylist() == model.get_many(keys).to_pylist()
                ranges = [prefix_range(b"b"), prefix_range(b"a"), (b"\xff", b"\xff\xff\xff")]
                for limit, each in ((None, None), (2, None), (None, 1), (3, 2)):
                    assert flat(store.scan(ranges, limit, each)) == flat(model.scan(ranges, limit, each))
            store.commit()
        return model

    @rule(batches=st.lists(ENTRIES, max_size=3))
    def batch(self, batches: list[dict[bytes, bytes | None]]) -> None:
        self.model = self.attempt(batches)
        self.log.commit()

    @rule(batches=st.lists(ENTRIES, min_size=1, max_size=2))
    def failed_attempt(self, batches: list[dict[bytes, bytes | None]]) -> None:
        self.attempt(batches)
        self.log.roll_back()

    @rule(entries=ENTRIES)
    def attempt_that_stops_before_its_commit(self, entries: dict[bytes, bytes | None]) -> None:
        with BucketStore(self.log, self.folder, identity=b"me") as store:
            write(store, entries)
        self.log.roll_back()

    @rule(first=ENTRIES, second=ENTRIES)
    def two_attempts_of_which_the_first_is_committed(self, first: Any, second: Any) -> None:
        model = self.attempt([first])
        winner = dict(self.log.working)
        self.log.roll_back()
        self.attempt([second])
        self.log.working = winner
        self.log.commit()
        self.model = model

    @rule()
    def lost_index(self) -> None:
        for folder in self.folder.glob("index-*"):
            shutil.rmtree(folder)

    @rule()
    def lost_seal(self) -> None:
        (self.folder / "SEAL").unlink(missing_ok=True)

    @rule()
    def lost_pending_files(self) -> None:
        for path in self.folder.glob("pending-*"):
            path.unlink()

    @rule()
    def broken_index(self) -> None:
        for path in self.folder.glob("index-*/CURRENT"):
            path.write_bytes(b"nonsense\n")

    @rule()
    def index_of_somebody_elses_history(self) -> None:
        for path in self.folder.glob("index-*"):
            shutil.rmtree(path)
        other = Log()
        with BucketStore(other, self.folder / "other", identity=b"me") as store:
            write(store, {b"ax": b"wrong"})
            store.commit()
        with BucketStore(other, self.folder / "other", identity=b"me"):
            pass
        for path in (index_folder(self.folder / "other"), self.folder / "other" / "SEAL"):
            shutil.move(path, self.folder / path.name)
        shutil.rmtree(self.folder / "other")

    @precondition(lambda self: self.log.committed)
    @invariant()
    def the_live_bytes_are_those_of_the_entries(self) -> None:
        meta = segments.Meta.decode(self.log.committed["meta"])
        items = self.model.items()
        assert meta.live_bytes == sum(len(key) + len(value) + segments.ENTRY_OVERHEAD for key, value in items)
        assert sorted(number for number in self.log.committed if number != "meta") == list(range(meta.first, meta.next))


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=examples(60), stateful_step_count=12)


def test_a_log_that_is_mostly_dead_cleans_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkjoin.state.bucket.SEGMENT_BYTES", 2000)
    monkeypatch.setattr("fkjoin.state.segments.SEGMENT_BYTES", 2000)
    log, model, firsts = Log(), MemoryStore(), [0]
    for number in range(120):
        entries: dict[bytes, bytes | None] = {b"k%02d" % (n % 60): b"%d" % number * 9 for n in range(number, number + 20)}
        entries[b"k%02d" % (number % 60)] = None
        entries[b"once%03d" % number] = b"stays"
        with BucketStore(log, tmp_path) as store:
            write(store, entries)
            store.commit()
            meta = store.meta
        log.commit()
        write(model, entries)
        assert meta.log_bytes <= 2 * meta.live_bytes + 2 * 2000
        firsts.append(meta.first)
    assert meta.first > 20
    cleaned = [after - before for before, after in itertools.pairwise(firsts) if after > before]
    assert max(cleaned) > 1, "what there is to clean is cleaned together"
    assert len(cleaned) < 80, "and not by every batch"
    shutil.rmtree(index_folder(tmp_path))
    with BucketStore(log, tmp_path) as store:
        assert store.rebuilt
        assert contents(store) == dict(model.items())


@given(entries=ENTRIES, wanted=st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=9))
@settings(max_examples=examples(60))
def test_keys_are_found_wherever_their_slice_ends(entries: dict[bytes, bytes | None], wanted: list[bytes]) -> None:
    keys = array([*wanted, *(key for key in entries if key not in wanted)])
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr(protocol, "SLICE_ROWS", 2)
        assert list(items(keys)) == keys.to_pylist()
        index = index_of(Path(folder))
        index.apply(array(list(entries)), array(list(entries.values())), None)
        assert index.get_many(keys).to_pylist() == [entries.get(key) for key in keys.to_pylist()]
        index.close()


def test_an_index_behind_by_several_batches_catches_up_from_the_log(tmp_path: Path) -> None:
    log = Log()
    for number in range(4):
        batch(log, tmp_path if number < 2 else tmp_path / "elsewhere", {b"k%d" % number: b"v"})
    with BucketStore(log, tmp_path) as store:
        assert not store.rebuilt
        assert len(contents(store)) == 4


def test_log_and_index_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "TAIL_BATCHES", 0)
    log = Log()
    for number in range(2):
        batch(log, tmp_path, {b"k": b"%d" % number, b"l%d" % number: b"v"})
        with BucketStore(log, tmp_path) as store:
            assert store.disagreement() is None
    for key, value, says in ((b"l0", None, "lacks 1 entries of the log, first b'l0'"), (b"k", b"other", "has b'k' otherwise")):
        with contextlib.closing(index_of(tmp_path, key_of(log))) as index:
            index.apply(array([key]), array([value]), index.position)
        with BucketStore(log, tmp_path) as store:
            assert says in (store.disagreement() or "")


def test_another_identity_is_refused_and_says_both(tmp_path: Path) -> None:
    log = Log()
    with BucketStore(log, tmp_path, identity=b"4 buckets") as store:
        store.commit()
    log.commit()
    with pytest.raises(StoreMismatchError, match="started with 4 buckets and is now opened with 8 buckets; start"):
        BucketStore(log, tmp_path, identity=b"8 buckets")
    for again, place, identity in ((log, tmp_path, b"4 buckets"), (Log(), tmp_path / "new", b"8 buckets")):
        with BucketStore(again, place, identity=identity) as store:
            store.commit()


def test_a_newer_format_and_a_broken_log_are_refused(tmp_path: Path) -> None:
    log = Log()
    batch(log, tmp_path, {b"k": b"v"})
    whole = dict(log.committed)
    shutil.rmtree(tmp_path)
    for name, bytes_, error, says in (
        ("meta", b"\x07" + whole["meta"][1:], UnknownFormatError, "format 07, this release reads 03"),
        ("meta", whole["meta"][:20], CorruptLogError, "20 bytes"),
        (0, b"\x07" + whole[0][1:], UnknownFormatError, "segment 0 has format 07"),
        (0, whole[0][:40], CorruptLogError, "segment 0 is damaged, its checksum"),
        ("meta", b"\x02" + whole["meta"][1:], UnknownFormatError, "format 02, this release reads 03"),
        (0, b"\x01" + whole[0][1:], UnknownFormatError, "segment 0 has format 01, this release reads 02"),
    ):
        log.working = whole | {name: bytes_}
        with pytest.raises(error, match=says):
            BucketStore(log, tmp_path)
    log.working = {"meta": whole["meta"]}
    with pytest.raises(CorruptLogError, match="segment 0 is missing"):
        BucketStore(log, tmp_path)
    log.working = dict(whole)
    with BucketStore(log, tmp_path) as store:
        assert store.get_many(array([b"k"])).to_pylist() == [b"v"]


def test_formats_have_the_bytes_they_always_had() -> None:
    key = bytes(range(7, 23))
    meta = segments.Meta(bytes(range(16)), 1, 2, 3, 4, b"id", key)
    numbers = "".join(f"{number:016x}" for number in (1, 2, 3, 4))
    assert meta.encode().hex() == "03" + bytes(range(16)).hex() + numbers + key.hex() + b"id".hex()
    assert segments.Meta.decode(meta.encode()) == meta
    (segment,) = segments.encode_segments(bytes(16), array([b"k", b"gone"]), array([b"v", None]))
    assert segment[:17] == b"\x02" + bytes(16)
    body = segment[25:]
    assert segment[17:25] == xxhash.xxh3_64_digest(body)
    token, keys, values = segments.decode_segment(0, segment)
    assert (token, keys.to_pylist(), values.to_pylist()) == (bytes(16), [b"k", b"gone"], [b"v", None])


def log_of_one_row(folder: Path) -> Log:
    log = Log()
    batch(log, folder, {b"k": b"v"})
    return log


def test_an_index_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    log = log_of_one_row(tmp_path)
    with contextlib.closing(index_of(tmp_path, key_of(log))) as held:
        with BucketStore(log, tmp_path, lock_wait_s=0.05) as store:
            assert store.rebuilt
            assert contents(store) == {b"k": b"v"}
            write(store, {b"k2": b"v"})
            store.commit()
        assert held.folder.exists()
        log.commit()
    assert len(list(tmp_path.glob("index-*"))) == 1, "the one that was sealed last has removed the other"
    with BucketStore(log, tmp_path) as store:
        assert contents(store) == {b"k": b"v", b"k2": b"v"}


def test_an_index_that_another_process_is_about_to_close_is_waited_for(tmp_path: Path) -> None:
    log = log_of_one_row(tmp_path)
    held = index_of(tmp_path, key_of(log))
    closing = threading.Timer(0.2, held.close)
    closing.start()
    with BucketStore(log, tmp_path, lock_wait_s=60.0) as store:
        assert store.rebuilt is None
        assert contents(store) == {b"k": b"v"}
    closing.join()


def test_an_index_that_is_sealed_between_two_looks_at_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of_one_row(tmp_path)
    held = index_of(tmp_path, key_of(log))

    def closed_meanwhile(folder: Path) -> bool:
        held.close()
        return False

    monkeypatch.setattr("fkjoin.state.index.in_use", closed_meanwhile)
    with BucketStore(log, tmp_path) as store:
        assert store.rebuilt is None
        assert contents(store) == {b"k": b"v"}


def test_a_process_that_stands_still_with_a_sealed_index_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """It has sealed the index and not let go of it; a batch that reads it needs nothing, one that writes has its own."""
    log = log_of_one_row(tmp_path)
    held = locked(index_folder(tmp_path))
    assert held is not None
    with BucketStore(log, tmp_path, lock_wait_s=0.05) as store:
        assert store.rebuilt is None
    log.put_segment(1, log.committed[0])  # so that no pending file leads to it
    log.set_meta(replace(segments.Meta.decode(log.committed["meta"]), next=2).encode())
    with BucketStore(log, tmp_path, lock_wait_s=0.05) as store:
        assert "held by another process" in (store.rebuilt or "")
        assert contents(store) == {b"k": b"v"}
    os.close(held)


def test_an_error_that_is_no_damage_leaves_the_index_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of_one_row(tmp_path)
    for path in tmp_path.glob("pending-*"):
        path.unlink()

    monkeypatch.setattr(log, "segment", Mock(side_effect=ConnectionError("the JVM does not answer")))
    with pytest.raises(ConnectionError):
        BucketStore(log, tmp_path)
    monkeypatch.undo()
    with BucketStore(log, tmp_path, lock_wait_s=0.0) as store:
        assert store.rebuilt is None
        assert contents(store) == {b"k": b"v"}


def test_what_processes_that_died_have_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of_one_row(tmp_path)
    (tmp_path / "index-left").mkdir()
    (tmp_path / "SEAL-left").touch()
    (tmp_path / "SEAL-folder").mkdir()
    index_of(tmp_path, key_of(log)).close()
    assert not (tmp_path / "index-left").exists()
    assert (tmp_path / "SEAL-left").exists(), "it may be another's that is alive"
    monkeypatch.setattr(folders, "_LEFT_S", -1)
    index_of(tmp_path, key_of(log)).close()
    assert not (tmp_path / "SEAL-left").exists()
    with BucketStore(log, tmp_path) as store:
        assert store.rebuilt is None, "what cannot be removed is no reason to build an index anew"


def test_a_log_of_another_batch_is_not_read_with_the_index(tmp_path: Path) -> None:
    log = log_of_one_row(tmp_path)
    log.working["meta"] = replace(segments.Meta.decode(log.working["meta"]), token=bytes(16)).encode()
    (log.working[0],) = segments.encode_segments(bytes(16), array([b"k"]), array([b"another"]))
    with contextlib.closing(index_of(tmp_path, key_of(log))) as index:
        index.position = Position(b"t" * 16, 1)
    with BucketStore(log, tmp_path) as store:
        assert "the log does not continue" in (store.rebuilt or "")
        assert contents(store) == {b"k": b"another"}


def test_a_process_killed_while_it_applies_leaves_an_index_that_is_brought_up_to_date(tmp_path: Path) -> None:
    log = Log()
    for value in (b"0", b"1"):
        batch(log, tmp_path, {b"%05d" % n: value for n in range(5_000)})
    script = f"""
        import os, signal, pathlib
        import pyarrow as pa
        from tests.support.stores import index_of

        class Killing:
            def __init__(self, db):
                self.db = db

            def ingest_external_file(self, *arguments):
                self.db.ingest_external_file(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

        index = index_of(pathlib.Path({str(tmp_path)!r}), {key_of(log)!r})
        index._db = Killing(index._db)
        keys = pa.array([b"torn-%05d" % n for n in range(5_000)], pa.large_binary())
        index.apply(keys, pa.array([b"torn"] * 5_000, pa.large_binary()), index.position)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    with BucketStore(log, tmp_path) as store:
        assert store.rebuilt
        assert contents(store) == {b"%05d" % n: b"1" for n in range(5_000)}
