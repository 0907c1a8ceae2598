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
from fkjoin.codec.json_read import parsable, read_objects
from tests.support.json_values import KINDS
from tests.support.laws import law

KIND = pa.struct(
    [
        ("text", pa.string()),
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("double", pa.float64()),
        ("float", pa.float32()),
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
anything = st.dictionaries(st.sampled_from([*KIND.names, *KINDS]), json_values, max_size=4).map(json.dumps)
broken = st.sampled_from(
    ["", " ", "null", "[]", "{", "}", '{"text":"a"}{"text":"b"}', '{"text":"a"} x', "{}}", '{},"":{}', '{"text":"a']
)
NUMBERS = "Inf -Inf NaN -NaN Infinity -Infinity 1e400 -1e309 1e39 1e-400 01 1. +1 - null"
TEXTS = r""""\ud800"|"\udc00x"|\ud800|"\ud83d\ude00"|\u0000|,"other":1|},"other":{"a":1|,"long" : 7|"other": Inf ,"""
SIGNS = ("{", "}", "[", "]", "{}", "}{", ",", ":", '"', '""', "\\", " ", "\n", "\r", "\0", "[[[[[", "]]]]]")
PIECES = [*NUMBERS.split(" "), *SIGNS, *TEXTS.split("|")]
NO_TEXT = [b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"]
pieces = st.sampled_from([*map(str.encode, PIECES), *NO_TEXT])


@st.composite
def nearly(draw: st.DrawFn) -> bytes:
    """A text of JSON, a member or a place of which is something else."""
    text = draw(fitting | anything).encode()
    if draw(st.booleans()):
        name, value = draw(st.sampled_from(["double", "float", "text", "other"])), draw(pieces)
        return text[:-1] + f',"{name}":'.encode() + value + b"}"
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(pieces) + text[start:]


valid = fitting.map(str.encode)
arbitrary = st.binary(max_size=9) | st.lists(pieces, max_size=6).map(b"".join) | broken.map(str.encode)
lines = valid | nearly() | arbitrary
ALL_KINDS = {field.name: field.type for field in KIND} | KINDS
WHOLE = pa.struct(list(ALL_KINDS.items()))


def as_texts(some: list[bytes]) -> pa.StringArray:
    return pa.array(some, pa.binary()).view(pa.string())


def alone(text: bytes) -> str:
    """Read a text without Arrow's reader: its row, whether it fits, the advice."""
    row, fits, advice = json_text._single(text, WHOLE)
    return repr((pa.array([row], WHOLE).to_pylist(), fits, advice))


def rows_of(texts: list[Any]) -> list[Any]:
    return read_objects(pa.array(texts, pa.string()), KIND).rows.to_pylist()


@law(480, st.lists(lines, max_size=12))
def test_a_text_is_read_as_it_is_alone_whatever_stands_beside_it(some: list[bytes]) -> None:
    rows, fits, advice = read_objects(as_texts(some), WHOLE)
    for place, text in enumerate(some):
        together = rows[place : place + 1].to_pylist(), bool(fits[place]), advice.get(place, "")
        assert repr(together) == alone(text)


@law(900, lines)
def test_arrows_reader_takes_only_what_the_other_takes_too(text: bytes) -> None:
    found = json_text.read_together(as_texts([text]), WHOLE)
    if found is not None:
        assert repr((found.to_pylist(), True, "")) == alone(text)


@given(st.lists(fitting.filter(lambda text: text != "{}"), min_size=1, max_size=400))
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
        ('{"text": "a", "double": Inf}', {}),
        ('{"text": "a", "other": [-Inf ]}', {}),
        ('{"text": "a", "other": -NaN}', {}),
        ('{"text": "Inf, -NaN"}', {"text": "Inf, -NaN"}),
        ('{"text": "a"}, "other": {"b": 1}', {}),
        ('{"long": 3, "long": 4, "double": "-Infinity", "inner": {"text": 5, "long": "no"}}',
         {"long": 4, "double": -math.inf, "inner": {"text": "5", "long": None}}),
        ('{"list": [1, "x"], "inner": [1], "text": []}', {"text": "[]"}),
        ('{"text": "\\ud83d\\ude00\\\\ud800"}', {"text": "\U0001f600\\ud800"}),
        ('{"long": 1, "text": "\\ud800x"}', {}),
        ('{"long": 1, "other": {"\\udc00": 1}}', {}),
        ('\ufeff{"text": "after a byte order mark"}', {}),
        ('{"text": "a"} {"text": "b"}', {}),
        ('[{"text": "a"}]', {}),
        ('{"double": 1.7976931348623159e308, "float": 3.5e38}', {}),
        ('{"double": 1.7976931348623158e308, "float": 0.5}', {"double": 1.7976931348623157e308, "float": 0.5}),
        ('{"double": -1e308, "float": -3.4028235677973366e38}', {"double": -1e308}),
        ('{"double": -Infinity, "float": NaN}', {"double": -math.inf, "float": math.nan}),
        ("[" * 200_000, {}),
        ('{"text": "deep", "other": ' + "[" * 199 + "]" * 199 + "}", {"text": "deep"}),
        ('{"text": "deep", "other": ' + "[" * 200 + "]" * 200 + "}", {}),
        ('{"text": ' + '{"\\"":' * 199 + '"]"' + "}" * 200, {"text": '{"\\"":' * 199 + '"]"' + "}" * 199}),
        ('{"text": ' + '{"a":' * 200 + "1" + "}" * 201, {}),
        ('{"text": "' + "[{" * 500 + '"}', {"text": "[{" * 500}),
        ('{"text": "wide", "other": [' + "[], " * 500 + "[]]}", {"text": "wide"}),
    ],
)  # fmt: skip
def test_what_is_not_of_the_schemas_types(text: str, row: dict[str, Any]) -> None:
    before, found, after = rows_of(['{"long": 1}', text, '{"long": 2}'])
    assert repr(found) == repr(NOTHING | row), "in which not-a-numbers are equal"
    assert (before["long"], after["long"]) == (1, 2)


def test_a_few_bad_lines_among_many_are_found_where_they_are() -> None:
    lines = [json.dumps({"long": number}) for number in range(20_000)]
    bad = {0, 777, 778, 9_999, 19_999}
    for place in bad:
        lines[place] = '{"long": "x", "text": 7}'
    found = read_objects(pa.array(lines), KIND).rows
    assert found.field("long").to_pylist() == [None if number in bad else number for number in range(20_000)]
    assert [place for place, text in enumerate(found.field("text").to_pylist()) if text == "7"] == sorted(bad)


def test_bytes_that_are_no_text_are_no_json() -> None:
    raw = pa.array([b'{"text":"a\xff"}', b'{"text":"b"}'], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    rows, fits, _ = read_objects(text, pa.struct([("text", pa.string())]))
    assert (rows.to_pylist(), fits.tolist()) == ([{"text": None}, {"text": "b"}], [False, True])


def test_no_text_is_no_row() -> None:
    assert rows_of([None, '{"long": 1}']) == [None, NOTHING | {"long": 1}]
    assert rows_of([]) == []


def test_types_that_are_left_to_spark() -> None:
    assert parsable(WHOLE)
    assert parsable(pa.struct([("m", pa.map_(pa.string(), pa.float32()))]))
    for kind in (pa.null(), pa.uint8(), pa.float16(), pa.map_(pa.int64(), pa.string())):
        assert not parsable(pa.struct([("a", pa.struct([("b", pa.list_(kind))]))]))
    assert not parsable(pa.struct([("a", pa.int64()), ("a", pa.int64())]))
