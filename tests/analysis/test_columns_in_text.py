"""Texts name what they read: never less is found than they read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fkjoin.analysis.bound import paths_named, without_strings

ROW = pa.struct([("amount", pa.int64()), ("Odd name", pa.string()), ("where", pa.struct([("city", pa.string())]))])
COLUMNS = pa.schema([("left", ROW), ("right", ROW), ("op", pa.string()), ("current_date", pa.date32()), ("a`b", pa.int64())])
ALL = [(name,) for name in COLUMNS.names]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("op = 'd'", [("op",)]),
        ("OP = 'd'", [("op",)]),
        ("OP = 'd' or `op` is null", [("op",)]),
        ("RIGHT.AMOUNT > 1", [("right", "amount")]),
        ("left(right.`odd name`, 2)", [("right", "Odd name")]),
        ("LEFT (op, 2) || current_date()", [("op",)]),
        ("left in (1) or op in (2)", [("left",), ("op",)]),
        ("left -- (\n is null", [("left",)]),
        ("identifier('op')", ALL),
        ("IDENTIFIER ('o' || 'p')", ALL),
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


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("concat(right.amount, ' left')", [("right", "amount")]),
        (r"'it\'s op' || 'op'", []),
        ("'it''s op' || left", [("left",)]),
        (r"r'op\' || left || R'\op'", [("left",)]),
        (r"'\\' || left || 'op'", [("left",)]),
        ("`it's` || left || 'op'", [("left",)]),
        ("`a``b` || left || 'op'", [("left",), ("a`b",)]),
        ("'*' || left", [("left",)]),
        ("'op\nop' || left", [("left",)]),
        # Something else may hold a quote
        ("\"it's\" || op || 'x'", [("op",)]),
        ("1 -- it's\n || op || 'x'", [("op",)]),
        ("$$it's$$ || op || 'x'", [("op",)]),
        ("op || 'open", [("op",)]),
    ],
)
def test_the_strings_of_a_text_name_nothing(text: str, read: list[tuple[str, ...]]) -> None:
    assert paths_named(without_strings(text), COLUMNS) == read


def test_a_text_with_a_comment_is_left_as_it_is() -> None:
    assert without_strings("/* it's */ op || 'x'") == "/* it's */ op || 'x'"


def test_a_name_of_other_letters_is_always_read() -> None:
    assert paths_named("1", pa.schema([("straße", pa.int64()), ("a", pa.int64())])) == [("straße",)]
