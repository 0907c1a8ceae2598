"""JSON texts as rows: reading many together gives what reading them one by one gives, and neither guesses."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec import json_read as json_text
from fkjoin.codec.json_read import read_objects, readable

KIND = pa.struct(
    [
        ("text", pa.string()),
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("double", pa.float64()),
        ("truth", pa.bool_()),
        ("inner", pa.struct([("text", pa.string()), ("long", pa.int64())])),
        ("list", pa.list_(pa.int64())),
    ]
)
NOTHING = dict.fromkeys([field.name for field in KIND])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "long", "other"]), inner, max_size=3),
    max_leaves=6,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.text(),
        "long": st.none() | st.integers(-(2**63), 2**63 - 1),
        "int": st.integers(-(2**31), 2**31 - 1),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "truth": st.booleans(),
        "inner": st.fixed_dictionaries({}, optional={"text": st.text(), "long": st.integers(0, 9)}),
        "list": st.lists(st.integers(-9, 9) | st.none(), max_size=3),
        "other": json_values,
    },
).map(json.dumps)
anything = st.dictionaries(st.sampled_from(KIND.names), json_values, max_size=4).map(json.dumps)
broken = st.sampled_from(
    ["", " ", "null", "[]", "{", "}", '{"text":"a"}{"text":"b"}', '{"text":"a"} x', "{}}", '{},"":{}', '{"text":"a']
)
texts = st.lists(fitting | anything | broken | st.text(max_size=8), max_size=12)


def rows_of(given: list[Any], kind: pa.StructType = KIND) -> list[Any]:
    return read_objects(pa.array(given, pa.string()), kind).rows.to_pylist()


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other))


@given(texts)
def test_together_is_as_one_by_one(lines: list[str]) -> None:
    lines = [line.encode(errors="replace").decode() for line in lines]
    one_by_one = [json_text._one(line.encode(), KIND)[0] for line in lines]
    assert all(map(same, rows_of(lines), one_by_one))
    # Each alone through Arrow, too: what it takes, it reads as the slow way does.
    assert all(same(rows_of([line])[0], row) for line, row in zip(lines, one_by_one, strict=True))


@given(st.lists(fitting, min_size=1, max_size=400))
def test_what_has_the_schemas_types_is_read_together(lines: list[str]) -> None:
    found = json_text.read_together(pa.array(lines), KIND)
    assert found is not None
    expected = [NOTHING | {name: value for name, value in json.loads(line).items() if name in NOTHING} for line in lines]
    for row in expected:
        if row["inner"] is not None:
            row["inner"] = {"text": None, "long": None} | row["inner"]
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('{"text": 1.50, "long": 1.0, "double": "NaN"}', {"text": "1.50", "double": math.nan}),
        ('{"text": {"a": [1, 2.50, "é\\n"]}, "long": "5", "truth": "true"}', {"text": '{"a":[1,2.50,"é\\n"]}'}),
        ('{"text": true, "long": 9223372036854775808, "int": 2147483648}', {"text": "true"}),
        ('{"text": false, "double": 1e400}', {"text": "false", "double": math.inf}),
        ('{"long": 3, "long": 4, "double": "-Infinity", "inner": {"text": 5, "long": "no"}}',
         {"long": 4, "double": -math.inf, "inner": {"text": "5", "long": None}}),
        ('{"list": [1, "x"], "inner": [1], "text": []}', {"text": "[]"}),
        ('{"list": [1, null], "text": "\\ud800x"}', {"list": [1, None], "text": "?x"}),
        ('\ufeff{"text": "after a byte order mark"}', {"text": "after a byte order mark"}),
        ('{"text": "a"} {"text": "b"}', {}),
        ('[{"text": "a"}]', {}),
        ("{'text': 'a'}", {}),
        ("[" * 200_000, {}),
        ('{"text": "deep", "other": ' + "[" * 5_000 + "]" * 5_000 + "}", {"text": "deep"}),
    ],
)  # fmt: skip
def test_what_is_not_of_the_schemas_types(text: str, row: dict[str, Any]) -> None:
    before, found, after = rows_of(['{"long": 1}', text, '{"long": 2}'])
    assert same(found, NOTHING | row)
    assert (before["long"], after["long"]) == (1, 2)


def test_a_few_bad_lines_among_many_are_found_where_they_are() -> None:
    lines = [json.dumps({"long": number}) for number in range(20_000)]
    bad = {0, 777, 778, 9_999, 19_999}
    for place in bad:
        lines[place] = '{"long": "x", "text": 7}'
    found = read_objects(pa.array(lines), KIND).rows
    assert found.field("long").to_pylist() == [None if number in bad else number for number in range(20_000)]
    assert [place for place, text in enumerate(found.field("text").to_pylist()) if text == "7"] == sorted(bad)


def test_bytes_that_are_no_text_are_replaced() -> None:
    raw = pa.array([b'{"text":"a\xff"}', b'{"text":"b"}'], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    assert read_objects(text, pa.struct([("text", pa.string())])).rows.to_pylist() == [{"text": "a�"}, {"text": "b"}]


def test_no_text_is_no_row() -> None:
    assert rows_of([None, '{"long": 1}']) == [None, NOTHING | {"long": 1}]
    assert rows_of([]) == []


def test_types_that_are_left_to_spark() -> None:
    assert readable(KIND)
    for kind in (pa.timestamp("us"), pa.decimal128(9, 2), pa.date32(), pa.binary(), pa.map_(pa.string(), pa.string())):
        assert not readable(pa.struct([("a", pa.struct([("b", pa.list_(kind))]))]))
    assert not readable(pa.struct([("a", pa.int64()), ("a", pa.int64())]))
