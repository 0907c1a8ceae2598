"""Records of internal topics that queries have yet to read, by the offsets that they have committed."""

from __future__ import annotations

from typing import Any

import pytest

from fkjoin.kafka.purging import unread

RANGES = {"t": {0: range(3, 10), 1: range(0)}, "gone": {}}


@pytest.mark.parametrize(
    ("read", "left"),
    [
        ({"a": {"t": [{0: 10, 1: 0}]}, "other": {}}, []),
        ({"a": {"t": [{0: 8, 1: 0}]}, "b": {"t": [{0: 10}]}}, [("t", "a", 2)]),
        ({"a": {"t": [{0: 10}, {0: 9}]}}, [("t", "a", 1)]),  # a query that reads the topic in two places
        ({"a": {"t": [{0: 1}]}}, [("t", "a", 7)]),  # the first records are gone
        ({"a": {"t": [{1: 0}]}}, [("t", "a", 7)]),  # a partition that is new to the query
        ({"a": {"t": [{0: 10}]}, "new": None}, [("t", "new", 7)]),
        ({"a": {}, "b": {}}, [("t", "a", 7), ("t", "b", 7)]),
    ],
)
def test_records_behind_what_a_query_has_committed_are_in_flight(read: Any, left: list[Any]) -> None:
    assert unread(RANGES, read) == left


def test_nothing_is_in_flight_where_there_are_no_records() -> None:
    assert unread({"gone": {}, "empty": {0: range(4, 4)}}, {"a": None, "b": {}}) == []
