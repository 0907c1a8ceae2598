"""The law of the tail: what is read through it is what would be read if all of it were in what it is laid over.

And of lengths of values that a batch overwrites: those that it has read are not looked up again, wherever they stand.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fkjoin.state import BucketStore, MemoryStore, database, pending, prefix_range, tail
from fkjoin.state import index as index_module
from fkjoin.state.bucket import lengths, lengths_before
from fkjoin.state.index import RocksIndex
from fkjoin.state.protocol import Bytes, KeyRange
from fkjoin.state.seal import Seal
from fkjoin.state.segments import Position
from fkjoin.state.tail import Tail
from tests.support.places import ROOT
from tests.support.stores import KEY, Log, array, batch, contents, flat, index_of, key_of, write

KEYS = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 4 for byte in key))
ENTRIES = st.dictionaries(KEYS, st.none() | st.binary(max_size=2), max_size=12)
RANGES = st.lists(st.tuples(KEYS, KEYS).map(lambda keys: (min(keys), max(keys))), max_size=6)


def columns(entries: dict[bytes, bytes | None]) -> tail.KeysAndValues:
    return array(list(entries)), array(list(entries.values()))


@example(below={b"a": b"1", b"b": b"2"}, batches=[{b"a": None}], split=1, ranges=[(b"a", b"c")], limit=None, each=1, page=1000)
@example(
    below={b"a": b"", b"aa": b""},
    batches=[{b"b": None}],
    split=0,
    ranges=[(b"a", b"b"), (b"a", b"b"), (b"a", b"c")],
    limit=3,
    each=1,
    page=1,
)
@example(below={}, batches=[{b"a": b"1"}], split=0, ranges=[(b"a", b"b"), (b"a", b"b")], limit=None, each=None, page=1000)
@given(
    below=ENTRIES,
    batches=st.lists(ENTRIES, max_size=3),
    split=st.integers(0, 3),
    ranges=RANGES,
    limit=st.none() | st.integers(1, 9),
    each=st.none() | st.integers(1, 4),
    page=st.sampled_from([1, 2, 3, 1000]),
)
def test_a_scan_through_the_tail(
    below: dict[bytes, bytes | None],
    batches: list[dict[bytes, bytes | None]],
    split: int,
    ranges: Sequence[KeyRange],
    limit: int | None,
    each: int | None,
    page: int,
) -> None:
    under, whole = MemoryStore(page), MemoryStore()
    for entries in (below, *batches):
        write(whole, entries)
    write(under, below)
    made = Tail([columns(entries) for entries in batches[:split]])
    before = flat(made.scan(under.scan, ranges)), len(made)
    longer = made.followed_by([columns(entries) for entries in batches[split:]])
    assert (flat(made.scan(under.scan, ranges)), len(made)) == before, "who has the shorter one reads on in it"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tail, "PAGE_ENTRIES", page)
        pages = list(longer.scan(under.scan, ranges, limit, each))
    assert flat(pages) == flat(whole.scan(ranges, limit, each))
    assert all(len(one.keys) <= page for one in pages)


@given(below=ENTRIES, batches=st.lists(ENTRIES, max_size=3), keys=st.lists(KEYS, unique=True, max_size=9))
def test_keys_that_are_read_through_the_tail(
    below: dict[bytes, bytes | None], batches: list[dict[bytes, bytes | None]], keys: list[bytes]
) -> None:
    under, whole = MemoryStore(), MemoryStore()
    for entries in (below, *batches):
        write(whole, entries)
    write(under, below)
    wanted = array(list(keys))
    found = Tail([columns(entries) for entries in batches]).over(wanted, under.get_many(wanted))
    assert found.to_pylist() == whole.get_many(wanted).to_pylist()
    assert len(Tail([columns(entries) for entries in batches])) == len({key for entries in batches for key in entries})


def test_the_garbage_collector_does_not_look_into_a_tail() -> None:
    """Spark calls it after each task, and there are tens of thousands of keys in a worker's tails."""
    keys = [b"%04d" % number for number in range(2_000)]
    made = Tail([(array(list(keys)), array(list(keys)))])
    assert len(flat(made.scan(MemoryStore().scan, [(b"0", b"2")]))) == len(made)
    gc.collect()
    key = next(made.scan(MemoryStore().scan, [(b"0", b"2")])).keys[7].as_py()
    large = [held for held in gc.get_objects() if isinstance(held, list | dict | tuple) and len(held) >= 2_000]
    assert [held for held in large if key in held] == [keys]


LETTERS = [bytes([letter]) for letter in b"abcdefgh"]
STORED = dict(zip(LETTERS, (b"", None, b"1", b"22", None, b"55555", b"6", None), strict=True))


def stored(keys: Bytes) -> Bytes:
    return array([STORED[key] for key in keys.to_pylist()])


@example(written=LETTERS, read=[LETTERS[2:5], LETTERS[:2]])
@example(written=LETTERS[::-1], read=[LETTERS[2:5], LETTERS[2:3]])
@example(written=LETTERS[2:5], read=[LETTERS, []])
@given(
    written=st.lists(st.sampled_from(LETTERS), unique=True),
    read=st.lists(st.lists(st.sampled_from(LETTERS), max_size=6), max_size=3),
)
def test_lengths_are_those_of_the_index_and_each_is_read_once(written: list[bytes], read: list[list[bytes]]) -> None:
    asked: list[bytes] = []

    def look_up(keys: Bytes) -> Bytes:
        asked.extend(keys.to_pylist())
        return stored(keys)

    found = lengths_before(array(written), [(array(keys), lengths(stored(array(keys)))) for keys in read], look_up)
    expected = [None if STORED[key] is None else len(STORED[key] or b"") for key in written]
    assert (found.type, found.to_pylist()) == (pa.int64(), expected)
    assert sorted(asked) == sorted(set(written) - {key for keys in read for key in keys})


def entries_of(log: Log, folder: Path) -> dict[bytes, bytes]:
    """The entries that the next batch reads."""
    with BucketStore(log, folder) as store:
        return contents(store)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of indexes that are opened for writing."""
    folders, opened = list[Path](), index_module.open_database

    def noted(folder: Path, *, writing: bool = True) -> Any:
        folders.extend([folder] * writing)
        return opened(folder, writing=writing)

    monkeypatch.setattr(index_module, "open_database", noted)
    return folders


def test_small_batches_leave_the_index_as_it_is_until_there_are_some(tmp_path: Path, openings: list[Path]) -> None:
    log, model, of_batches = Log(), MemoryStore(), 0
    for number in range(1 + 3 * (pending.TAIL_BATCHES + 1)):
        entries: dict[bytes, bytes | None] = {b"k%d" % (n % 7): b"%d" % number for n in range(number, number + 3)}
        entries[b"k%d" % (number % 7)] = None
        before = len(openings)
        batch(log, tmp_path, entries)
        write(model, entries)
        of_batches += len(openings) - before
        with BucketStore(log, tmp_path) as store:
            assert contents(store) == dict(model.items())
            assert store.disagreement() is None
            assert not store.rebuilt
        # once it is read here, the tail is as long as it gets, or in the index
        links = list(tmp_path.glob("pending-*"))
        assert len(links) <= pending.TAIL_BATCHES
    assert of_batches == 1, "a new index; others are opened by who only reads"
    assert len(openings) == 1 + 3, "then whenever the tail was too long"


def test_what_attempts_that_failed_have_left_is_removed(tmp_path: Path) -> None:
    log = Log()
    for number in range(4):
        batch(log, tmp_path, {b"k": b"%d" % number})
    kept = set(tmp_path.glob("pending-*"))
    for _ in range(3):
        with BucketStore(log, tmp_path) as store:
            write(store, {b"k": b"wrong"})
            store.commit()
        log.roll_back()
    assert len(set(tmp_path.glob("pending-*")) - kept) == 1
    assert entries_of(log, tmp_path) == {b"k": b"3"}
    assert set(tmp_path.glob("pending-*")) == kept


def test_a_large_batch_is_not_in_the_tail(tmp_path: Path, openings: list[Path]) -> None:
    log, large = Log(), {b"%06d" % n: bytes(100) for n in range(pending.TAIL_BYTES // 100)} | {b"l": b"newer"}
    batch(log, tmp_path, {b"k": b"v"})
    batch(log, tmp_path, {b"l": b"v"})
    with BucketStore(log, tmp_path) as store:
        assert store.sizes.entries == 2, "those of the tail are counted, too"
    batch(log, tmp_path, large)  # type: ignore[arg-type]
    assert sorted(path.suffix for path in tmp_path.glob("pending-*")) == [".head", ".sst", ".tail", ".tail"]
    openings.clear()
    assert entries_of(log, tmp_path) == {b"k": b"v", **large}
    assert len(openings) == 1
    assert not list(tmp_path.glob("pending-*"))
    assert (os.getpid(), tmp_path) not in index_module._readers, "it would hold files that are gone"


def test_small_batches_that_are_large_together_go_into_the_index(tmp_path: Path, openings: list[Path]) -> None:
    log = Log()
    some = [{b"%d-%06d" % (part, n): bytes(100) for n in range(pending.TAIL_BYTES // 300)} for part in range(3)]
    for entries in some:
        batch(log, tmp_path, entries)  # type: ignore[arg-type]
    assert len(openings) == 1, "a new index"
    assert entries_of(log, tmp_path) == some[0] | some[1] | some[2]
    assert len(openings) == 2


@pytest.mark.nightly
def test_who_reads_an_index_reads_on_while_others_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, model = Log(), MemoryStore()
    for number in range(5):
        entries: dict[bytes, bytes | None] = {b"k%04d" % n: b"%d" % number for n in range(number, 2000, 2)}
        batch(log, tmp_path, entries)
        write(model, entries)
    with BucketStore(log, tmp_path) as store:
        pages = store.scan([prefix_range(b"k")])
        first = next(pages)
        script = f"""
            import pathlib, pickle
            from fkjoin.state import BucketStore, pending
            from tests.support.stores import write
            pending.TAIL_BATCHES = 0
            log = pickle.loads({pickle.dumps(log)!r})
            for number in range(9):
                with BucketStore(log, pathlib.Path({str(tmp_path)!r})) as store:
                    write(store, {{b"k%04d" % n: b"new" for n in range(2000)}})
                    store.commit()
                log.commit()
            with BucketStore(log, pathlib.Path({str(tmp_path)!r})):
                pass
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=os.environ, check=True)
        assert flat([first, *pages]) == flat(model.scan([prefix_range(b"k")]))
        assert contents(store) == dict(model.items())
        assert not store.rebuilt
    assert entries_of(log, tmp_path) == dict(model.items()), "batches that are not committed here have written all that"


def test_what_another_process_has_brought_up_to_date_is_read_anew(tmp_path: Path) -> None:
    log, kept = Log(), tmp_path / "log"
    for number in range(4):
        batch(log, tmp_path, {b"k": b"%d" % number})
    assert (os.getpid(), tmp_path) in index_module._readers
    kept.write_bytes(pickle.dumps(log))
    script = f"""
        import pathlib, pickle
        from tests.support.stores import batch
        kept = pathlib.Path({str(kept)!r})
        log = pickle.loads(kept.read_bytes())
        for number in range(20):
            batch(log, kept.parent, {{b"n%d" % number: b"new"}})
        kept.write_bytes(pickle.dumps(log))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=os.environ, check=True)
    with BucketStore(pickle.loads(kept.read_bytes()), tmp_path) as store:
        assert contents(store) == {b"k": b"3", **{b"n%d" % number: b"new" for number in range(20)}}
        assert not store.rebuilt


def test_an_index_that_is_written_to_while_it_is_opened_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, rdict = Log(), database.Rdict
    for number in range(3):
        batch(log, tmp_path, {b"k": b"%d" % number})

    def after_others(path: str, *more: Any, **how: Any) -> Any:
        monkeypatch.setattr(database, "Rdict", rdict)
        others = index_of(tmp_path, key_of(log))
        others.apply(array([b"k", b"l"]), array([b"theirs", b"theirs"]), Position(b"t" * 16, 9))
        others.close()
        return rdict(path, *more, **how)

    monkeypatch.setattr(index_module, "_readers", OrderedDict())
    monkeypatch.setattr(database, "Rdict", after_others)
    with BucketStore(log, tmp_path) as store:
        assert contents(store) == {b"k": b"2"}
        assert store.rebuilt


def test_an_index_that_stands_nowhere_is_not_there_to_be_read(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    assert Seal.of(tmp_path, KEY) is None, "it is open"
    index.position = None
    index.close()
    assert Seal.of(tmp_path, KEY) is None, "it has no position"
    assert not list(tmp_path.glob("index-*"))
    index = index_of(tmp_path)
    index.position = Position(bytes(16), 1)
    index.close()
    seal = Seal.of(tmp_path, KEY)
    assert seal is not None
    standing = RocksIndex.standing(seal, KEY)
    assert standing is not None
    assert standing.position == (bytes(16), 1)


def test_readers_are_kept_for_the_next_batch_and_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MOST_READERS", 4)
    opened = Mock(wraps=database.Rdict)
    logs = [Log() for _ in range(index_module._MOST_READERS + 3)]
    for place, log in enumerate(logs):
        for number in range(2):
            batch(log, tmp_path / str(place), {b"k": b"%d" % number})
    monkeypatch.setattr(index_module, "_readers", OrderedDict())
    monkeypatch.setattr(database, "Rdict", opened)
    for again in range(2):
        for place, log in enumerate(logs[:3]):
            batch(log, tmp_path / str(place), {b"k": b"%d" % again})
    assert opened.call_count == 3, "once each"
    for place, log in enumerate([*logs[:-1], logs[2], logs[-1]]):
        with BucketStore(log, tmp_path / str(logs.index(log))) as store:
            assert len(contents(store)) == 1
        assert len(index_module._readers) == min(place + 1, index_module._MOST_READERS) or place < 3
    assert [key[1].name for key in index_module._readers][-3:] == [str(len(logs) - 2), "2", str(len(logs) - 1)]


def test_a_forked_process_does_not_use_its_parents_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    for number in range(3):
        batch(log, tmp_path, {b"k": b"%d" % number})
    keys = {key for key in index_module._readers if key[1] == tmp_path}
    assert keys == {(os.getpid(), tmp_path)}
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert entries_of(log, tmp_path) == {b"k": b"2"}
    assert {key[0] for key in index_module._readers if key[1] == tmp_path} == {*(key[0] for key in keys), 1}


def test_only_what_has_come_since_is_read_of_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, model, read = Log(), MemoryStore(), Mock(wraps=pending._read)
    monkeypatch.setattr(pending, "_read", read)
    monkeypatch.setattr(pending, "_MOST_PLACES", 3)
    for number in range(pending.TAIL_BATCHES):
        batch(log, tmp_path, {b"k%d" % (number % 3): b"%d" % number})
        write(model, {b"k%d" % (number % 3): b"%d" % number})
        read.reset_mock()
        for _ in range(2):  # and of an attempt that failed nothing
            with BucketStore(log, tmp_path) as store:
                assert contents(store) == dict(model.items())
                write(store, {b"k0": b"wrong"})
                store.commit()
            log.roll_back()
        assert read.call_count <= 1
    pending._waiting.clear()
    assert entries_of(log, tmp_path) == dict(model.items())
    assert read.call_count > 1, "another process reads all of it"
    for number in range(4):
        another = Log()
        for value in (b"u", b"v", b"w"):
            batch(another, tmp_path / str(number), {b"k": value})
    assert len(pending._waiting) == pending._MOST_PLACES


def test_a_log_that_went_back_is_not_read_with_what_came_after(tmp_path: Path) -> None:
    log = Log()
    batch(log, tmp_path, {b"k": b"0"})
    batch(log, tmp_path, {b"k": b"1"})
    before = dict(log.committed)
    batch(log, tmp_path, {b"k": b"2", b"later": b"2"})
    assert entries_of(log, tmp_path) == {b"k": b"2", b"later": b"2"}
    log.committed = before
    log.roll_back()
    assert entries_of(log, tmp_path) == {b"k": b"1"}
