"""Lengths of values that a batch overwrites: those that it has read are not looked up again, wherever they stand."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from fkjoin.state.bucket import lengths, lengths_before
from fkjoin.state.protocol import Bytes
from tests.support.stores import array

KEYS = [bytes([letter]) for letter in b"abcdefgh"]
STORED = dict(zip(KEYS, (b"", None, b"1", b"22", None, b"55555", b"6", None), strict=True))


def stored(keys: Bytes) -> Bytes:
    return array([STORED[key] for key in keys.to_pylist()])


@example(written=KEYS, read=[KEYS[2:5], KEYS[:2]])
@example(written=KEYS[::-1], read=[KEYS[2:5], KEYS[2:3]])
@example(written=KEYS[2:5], read=[KEYS, []])
@given(
    written=st.lists(st.sampled_from(KEYS), unique=True),
    read=st.lists(st.lists(st.sampled_from(KEYS), max_size=6), max_size=3),
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
