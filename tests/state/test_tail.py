"""The law of the tail: what is read through it is what would be read if all of it were in what it is laid over.

And of lengths of values that a batch overwrites: those that it has read are not looked up again, wherever they stand.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fkjoin.state import MemoryStore, tail
from fkjoin.state.bucket import lengths, lengths_before
from fkjoin.state.protocol import Bytes, KeyRange
from fkjoin.state.tail import Tail
from tests.support.stores import array, flat, write

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
def test_lengths_are_those_that_the_index_has_and_what_was_read_is_not_read_again(
    written: list[bytes], read: list[list[bytes]]
) -> None:
    asked: list[bytes] = []

    def look_up(keys: Bytes) -> Bytes:
        asked.extend(keys.to_pylist())
        return stored(keys)

    found = lengths_before(array(written), [(array(keys), lengths(stored(array(keys)))) for keys in read], look_up)
    expected = [None if STORED[key] is None else len(STORED[key] or b"") for key in written]
    assert (found.type, found.to_pylist()) == (pa.int64(), expected)
    assert sorted(asked) == sorted(set(written) - {key for keys in read for key in keys})
