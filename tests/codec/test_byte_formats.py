"""Laws and golden bytes of every format."""

from __future__ import annotations

import itertools
import math
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin import FormatError
from fkjoin.codec import combined_key, messages, records, tags, versions
from fkjoin.codec.arrays import equal, masked
from fkjoin.codec.rows import KeyCodec, RowCodec, unsupported
from fkjoin.spark import buckets as buckets_module
from fkjoin.spark.buckets import bucket_ids, buckets_of, framed, packed_by_bucket, spark_hash
from fkjoin.stages.join_rows import How, join_rows, split_rows
from tests.support.sink_rows import Rows, differences
from tests.support.versions import OTHER, SOURCE, array, version

# CombinedKey


@given(st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), min_size=1))
def test_combined_keys_round_trip_and_only_a_keys_own_prefix_matches(pairs: list[tuple[bytes, bytes]]) -> None:
    foreign, left = array(*(pair[0] for pair in pairs)), array(*(pair[1] for pair in pairs))
    combined = combined_key.encode(foreign, left)
    assert [part.to_pylist() for part in combined_key.decode(combined)] == [foreign.to_pylist(), left.to_pylist()]
    assert len(set(combined.to_pylist())) == len(set(pairs))
    for prefix, key in zip(combined_key.prefixes(foreign).to_pylist(), foreign.to_pylist(), strict=True):
        matching = [pair[0] for pair, whole in zip(pairs, combined.to_pylist(), strict=True) if whole.startswith(prefix)]
        assert set(matching) == {key}


def test_combined_key_bytes() -> None:
    assert combined_key.encode(array(b"a", b""), array(b"bc", b""))[0].as_py() == b"\0\0\0\1abc"
    assert combined_key.encode(array(b""), array(b""))[0].as_py() == b"\0\0\0\0"


@pytest.mark.parametrize("broken", [b"", b"\0\0\0", b"\0\0\0\2a", b"\xff\xff\xff\xffa"])
def test_a_broken_combined_key_is_refused(broken: bytes) -> None:
    with pytest.raises(FormatError, match="combined key"):
        combined_key.decode(array(broken))


# versions

INT64 = st.integers(-(2**63), 2**63 - 1)


def newer(arriving: bytes, held: bytes) -> bool:
    return bool(versions.is_newer(array(arriving), array(held))[0])


@given(st.lists(INT64, min_size=2, max_size=2), st.lists(INT64, min_size=2, max_size=2))
def test_versions_of_a_source_compare_as_their_tuples(one: list[int], other: list[int]) -> None:
    assert versions.decode(version(*one)) == [(SOURCE, tuple(one))]
    assert newer(version(*one), version(*other)) == (one > other)
    assert (version(*one) > version(*other)) == (one > other)


def test_starting_over_is_told_from_being_newer_and_from_a_right_row_that_comes_or_goes() -> None:
    held, alone = version(5) + version(5, source=OTHER), version(5) + versions.absent(1)
    arriving = (
        version(6) + version(1),
        version(5) + version(1),
        version(1, source=OTHER) + version(5, source=OTHER),
        alone,
        held,
    )
    newer, restarts = versions.compare(array(*arriving, held), array(*[held] * 5, alone))
    assert newer.tolist() == [True, True, True, False, False, True]
    assert restarts.tolist() == [False, True, True, False, False, False]


NUMBERS = st.integers(-9, 9) | INT64


@given(st.lists(st.tuples(NUMBERS, st.none() | NUMBERS), max_size=8, unique=True))
def test_pairs_compare_and_sort_from_the_left_and_an_absent_right_row_is_oldest(pairs: list[Any]) -> None:
    made = [version(a) + (versions.absent(1) if b is None else version(b, source=OTHER)) for a, b in pairs]
    order = np.lexsort((np.zeros(len(made)), *versions.sort_columns(array(*made))))
    assert [pairs[place] for place in order] == sorted(pairs, key=lambda pair: (pair[0], pair[1] is not None, pair[1]))
    for one, other in itertools.combinations([made[place] for place in order], 2):
        assert (newer(other, one), newer(one, other)) == (True, False)


def test_numbers_of_parts() -> None:
    both = array(version(1, 2) + version(7, source=OTHER), version(3, 4) + versions.absent(1))
    first, last, all_of_them = (versions.numbers(both, *parts).to_pylist() for parts in [(0, 1), (1, 2), (0, 2)])
    assert (first, last, all_of_them) == ([[1, 2], [3, 4]], [[7], None], [[1, 2, 7], [3, 4]])


def test_version_bytes() -> None:
    assert version(1, -1).hex() == "02" + SOURCE.hex() + "8000000000000001" + "7fffffffffffffff"
    assert SOURCE.hex() == "a88ccdc9fa4974fb"


def test_a_cut_off_version_is_refused() -> None:
    with pytest.raises(FormatError, match="cut off"):
        versions.decode(version(1)[:-1])


# records and messages


RECORDS = st.tuples(st.integers(0, 255), INT64, st.binary(max_size=20), st.binary(max_size=5))


@given(st.lists(st.none() | RECORDS, min_size=1))
def test_records_round_trip(rows: list[tuple[int, int, bytes, bytes] | None]) -> None:
    exists = np.array([row is not None for row in rows])
    flags, ts, version, body = zip(*(row or (9, 9, b"under", b"a null") for row in rows), strict=True)
    encoded = records.encode(np.array(flags, np.uint8), np.array(ts), array(*version), array(*body))
    decoded = records.decode(masked(encoded, exists))
    assert decoded.exists.tolist() == exists.tolist()
    columns = decoded.flags.tolist(), decoded.version.to_pylist(), decoded.body.to_pylist()
    wanted = [(row[0], row[2], row[3]) if row else (0, b"", None) for row in rows]
    assert list(zip(*columns, strict=True)) == wanted
    assert decoded.ts[exists].tolist() == np.array(ts)[exists].tolist()


def test_record_bytes_and_unknown_format() -> None:
    one = records.encode(np.array([3], np.uint8), np.array([-2]), array(b"ver"), array(b"body"))
    assert one[0].as_py().hex() == "01" + "03" + "0300" + "feffffffffffffff" + b"verbody".hex()
    with pytest.raises(FormatError, match="format 9"):
        records.decode(array(b"\x09" + one[0].as_py()[1:]))


def test_packed_messages_round_trip_and_unknown_ones_are_refused() -> None:
    for schema in (
        *(messages.EVENT, messages.ENRICHED, messages.CHANGE, messages.SUBSCRIPTION, messages.ANSWER, messages.JOINED),
        messages.RESULT,
    ):
        packed = messages.pack(schema.empty_table())
        assert messages.unpack(packed).schema.equals(schema)
    assert packed[:2] == b"\x01\x05"
    for broken in (b"", b"\x02\x01", b"\x01\x0c"):
        with pytest.raises(FormatError, match="packed messages"):
            messages.unpack(broken)


def over_bytes(items: list[bytes | None]) -> pa.LargeBinaryArray:
    """An array with bytes under its nulls, as ``masked`` makes them."""
    there = np.array([item is not None for item in items])
    return masked(array(*(b"dead" if item is None else item for item in items)), there)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4)), min_size=1))
def test_joined_rows_split_into_what_they_were_made_of(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    count = len(rows)
    sides = [[row[0] for row in rows], [row[1] for row in rows]]

    def values(how: How, lefts: pa.LargeBinaryArray, rights: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        keys, versions = array(*[b"k"] * count), array(*[b""] * count)
        answers = messages.table(messages.ANSWER, keys, versions, lefts, rights, np.zeros(count, np.int64))
        return join_rows(answers, how).column("value").combine_chunks()

    for how in get_args(How):
        made = values(how, *(array(*side) for side in sides))
        left, right = split_rows(made)
        assert list(zip(left.to_pylist(), right.to_pylist(), strict=True)) == [
            (None, None) if one is None or (other is None and how == "inner") else (one, other) for one, other in rows
        ]
        assert values(how, *map(over_bytes, sides)).to_pylist() == made.to_pylist()


# rows


@given(Rows().tables(rows=4))
def test_rows_of_any_type_round_trip_and_equal_rows_have_equal_bytes(rows: pa.Table) -> None:
    assert unsupported(rows.schema) is None
    codec = RowCodec(rows.schema)
    columns = [column.combine_chunks() for column in rows.columns]
    encoded = codec.encode(columns, len(rows))
    decoded = codec.decode(encoded)
    for column in decoded:
        column.validate(full=True)
    assert [column.type for column in decoded] == rows.schema.types
    assert differences(pa.table(decoded, rows.column_names), rows) == []
    for place in range(len(rows)):
        alone = codec.encode([column.slice(place, 1) for column in columns], 1)
        assert equal(alone, encoded.slice(place, 1)).all()


def test_no_row_decodes_as_nulls_and_a_short_one_is_refused() -> None:
    codec = RowCodec(pa.schema([("a", pa.int64())]))
    assert codec.decode(array(None))[0].to_pylist() == [None]
    with pytest.raises(FormatError, match="shorter than the 9 bytes"):
        codec.decode(array(b"\1\0"))


def test_row_bytes() -> None:
    codec = RowCodec(pa.schema([("a", pa.int16()), ("b", pa.string()), ("c", pa.string())]))
    encoded = codec.encode([pa.array([258], pa.int16()), pa.array(["xy"]), pa.array([None], pa.string())], 1)
    assert encoded[0].as_py().hex() == "03" + "0201" + "02000000" + "00000000" + b"xy".hex()


def test_keys_of_text_are_their_bytes_and_a_null_part_makes_no_key() -> None:
    assert KeyCodec(pa.schema([("k", pa.string())])).encode([pa.array(["é", None])], 2).to_pylist() == [
        "é".encode(),
        None,
    ]
    two = KeyCodec(pa.schema([("a", pa.string()), ("b", pa.int64())]))
    keys = two.encode([pa.array(["x", None, "x"]), pa.array([1, 2, None])], 3)
    assert [key is None for key in keys.to_pylist()] == [False, True, True]
    assert [column.to_pylist() for column in two.decode(keys.slice(0, 1))] == [["x"], [1]]


def test_keys_that_compare_equal_have_equal_bytes() -> None:
    codec = KeyCodec(pa.schema([("k", pa.float64())]))
    odd_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    keys = codec.encode([pa.array([0.0, -0.0, math.nan, odd_nan[0]])], 4).to_pylist()
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 2


def test_a_type_without_byte_form_is_named() -> None:
    assert "n: type null has no byte form" in (unsupported(pa.schema([("a", pa.int8()), ("n", pa.null())])) or "")


def test_the_first_bytes_of_keys_in_stores() -> None:
    tags_of: dict[str, str] = {}
    for name, value in vars(tags).items():
        if isinstance(value, bytes):
            tags_of[name] = value.decode()
    in_any_store = {"ROW": "d", "RIGHT": "r", "SUBSCRIBER": "s", "DUE": "t", "BORROWED": "b", "EXTREME": "o"}
    in_some = {"WAITING": "p", "EMITTED": "e", "ENDS": "e", "CLOSES": "w", "TIME": "h"}
    assert tags_of == in_any_store | in_some


# buckets


def test_bucket_ids_spread_evenly_over_every_number_of_partitions_that_divides_them() -> None:
    assert [spark_hash(value) for value in (0, 1, -1, 42)] == [933211791, -559580957, -1604776387, 29417773]
    for buckets in (1, 2, 6, 12):
        ids = bucket_ids(buckets)
        assert 0 in ids
        for partitions in (n for n in range(1, buckets + 1) if buckets % n == 0):
            spread = [spark_hash(one) % partitions for one in ids]
            assert all(spread.count(one) == buckets // partitions for one in range(partitions))


def test_payloads_and_frames_have_all_messages_of_a_bucket_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "PAYLOAD_BYTES", 2_000)
    monkeypatch.setattr(buckets_module, "FRAME_BYTES", 4_000)
    keys = [b"%d" % (number % 70) for number in range(500)]
    columns = array(*keys), array(*keys), array(*keys), array(*(b"%d" % number for number in range(500)))
    changes = messages.table(messages.CHANGE, *columns, np.arange(500))
    payloads = list(packed_by_bucket(changes, "key", 3))
    frames = list(framed(payloads))
    assert [payload for frame in frames for payload in frame] == payloads
    assert 3 < len(frames) <= 1 + sum(len(data) for _, data in payloads) // 4_000 < len(payloads)
    assert all(sum(len(data) for _, data in frame[:-1]) < 4_000 for frame in frames)
    found: dict[int, list[int]] = {}
    for bucket, payload in payloads:
        found.setdefault(bucket, []).extend(messages.column(messages.unpack(payload), "ts").to_pylist())
    numbers = buckets_of(array(*keys), 3)
    assert found == {bucket: np.flatnonzero(numbers == at).tolist() for at, bucket in enumerate(bucket_ids(3))}
    assert list(packed_by_bucket(changes.slice(0, 0), "key", 3)) == list(framed([])) == []


def test_a_keys_bucket_never_changes() -> None:
    assert buckets_of(array(b"", b"a", b"customer-17"), 1000).tolist() == [138, 719, 452]
