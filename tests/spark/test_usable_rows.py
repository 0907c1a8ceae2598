"""Rows on which an expression throws are found, whichever they are; no Spark.

Of topologies: tests/lowering/test_rows_that_throw.py; rows that are not there: tests/lowering/test_absent_rows.py.
"""

from __future__ import annotations

import pytest

from fkjoin.codec.vectors import throwing


@pytest.mark.parametrize("bad", [[], [0], [6], [2, 3], list(range(7))])
def test_rows_that_throw_are_found(bad: list[int]) -> None:
    def evaluate(first: int, count: int) -> None:
        if any(first <= place < first + count for place in bad):
            raise ZeroDivisionError("no")

    assert sorted(throwing(evaluate, 7)) == bad
    assert throwing(evaluate, 0) == {}


def test_what_is_no_error_of_arithmetic_is_thrown_on() -> None:
    def evaluate(first: int, count: int) -> None:
        raise KeyError(first)

    with pytest.raises(KeyError):
        throwing(evaluate, 2)
