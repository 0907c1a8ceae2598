"""The orders in which keys and messages are worked on are those of Python's ``sorted``."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fkjoin.codec import records
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only
from fkjoin.state.order import byte_order
from tests.support.stores import array
from tests.support.versions import version

PARTS = st.sampled_from([b"", b"\0", b"a", b"\0a", b"\xff", b"customer-", b"\0" * 9, b"a" * 20])
KEYS = st.lists(st.lists(PARTS, max_size=4).map(b"".join), max_size=12)


@example(keys=[], skipped=0)
@example(keys=[b"a", b"a\0", b"a", b"a\0", b""], skipped=0)
@example(keys=[b"customer-1-order-2", b"customer-2-order-1", b"customer-1-order-1", b"customer-1-order-10"] * 2, skipped=1)
@example(keys=[b"a" * 8 + b"cccc22220000", b"a" * 8 + b"cccc11119999", b"b" * 8 + b"dddd", b"b" * 8 + b"dddd1"], skipped=0)
@given(keys=KEYS, skipped=st.integers(0, 2))
def test_keys_are_sorted_byte_by_byte_and_equal_ones_stay_as_they_stand(keys: list[bytes], skipped: int) -> None:
    found = byte_order(array([b"left out"] * skipped + keys).slice(skipped))
    assert found.tolist() == sorted(range(len(keys)), key=lambda place: (keys[place], place))


@example(messages=[(0, 2), (1, 1), (0, 1), (1, 2), (0, 2)], held=[None, 1, None])
@given(
    messages=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12),
    held=st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3),
)
def test_of_messages_count_those_newer_than_what_is_held_in_their_order(
    messages: list[tuple[int, int]], held: list[int | None]
) -> None:
    ones = np.ones(3, np.int64)
    kept = array([b"" if number is None else version(number) for number in held])
    whole = records.encode(ones.astype(np.uint8), ones, kept, array([b"body"] * 3))
    stored = records.decode(array([None if held[at] is None else value for at, value in enumerate(whole.to_pylist())]))

    count = Counters()
    code = np.array([code for code, _ in messages], np.int64)
    places, codes, found = newest_only(code, array([version(number) for _, number in messages]), stored, count)

    newer = sorted({(code, number) for code, number in messages if held[code] is None or number > held[code]})
    assert list(zip(codes.tolist(), found.to_pylist(), strict=True)) == [(code, version(number)) for code, number in newer]
    assert [messages[place] for place in places] == newer
    assert count[counters.STALE] == len(messages) - len(newer)
