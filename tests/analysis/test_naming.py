"""Texts name what they read: never less is found than they read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fkjoin.analysis.naming import paths_named

ROW = pa.struct([("amount", pa.int64()), ("Odd name", pa.string()), ("where", pa.struct([("city", pa.string())]))])
COLUMNS = pa.schema([("left", ROW), ("right", ROW), ("op", pa.string()), ("current_date", pa.date32()), ("a`b", pa.int64())])
ALL = [(name,) for name in COLUMNS.names]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("op = 'd'", [("op",)]),
        ("OP = 'd' or `op` is null", [("op",)]),
        ("left.amount * right.`odd NAME`", [("left", "amount"), ("right", "Odd name")]),
        ("`left` . `amount` + 1", [("left", "amount")]),
        ("left.amount + to_json(left)", [("left",)]),
        ("left.where.city", [("left", "where")]),
        ("left['amount']", [("left",)]),
        ("left.nothing", [("left",)]),
        ("current_date", [("current_date",)]),
        ("option + opp", []),
        ("`a``b` + 1", [("a`b",)]),
        ("struct(*)", ALL),
        ("*", ALL),
        ("left.*", [("left",)]),
        ("array(op, *)", ALL),
        ("2 * 3", []),
        (None, ALL),
    ],
)
def test_a_text_reads_nothing_but_what_it_names(text: str | None, read: list[tuple[str, ...]]) -> None:
    assert paths_named(text, COLUMNS) == read


def test_a_name_of_other_letters_is_always_read() -> None:
    assert paths_named("1", pa.schema([("straße", pa.int64()), ("a", pa.int64())])) == [("straße",)]
