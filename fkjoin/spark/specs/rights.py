"""Keys and rows of the right tables of a multi-way join as people see them: a byte before each key tells the tables apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fkjoin.codec import combined_key, tags
from fkjoin.codec.arrays import Bytes, Ints, take, untagged
from fkjoin.codec.key_texts import parse_key
from fkjoin.spark.keys_as_json import _text, keys_as_json
from fkjoin.spark.specs.shown import Asked, rows_as_json
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.stages.scatter import tagged


def names_as_json(multi_join: MultiJoin, keys: Bytes) -> pa.Array:
    """Keys as JSON objects: the name of the right table, and its key."""
    return pa.array(map(_text, named(multi_join, keys)), pa.string())


def named(multi_join: MultiJoin, keys: Bytes) -> list[dict[str, Any]]:
    """Split each key into its right table's name and the key; nothing for null."""
    names: list[dict[str, Any]] = [{} for _ in range(len(keys))]
    for number, rows in _by_right(keys):
        right = multi_join.rights[number]
        texts = keys_as_json(right.key, untagged(take(keys, rows))).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            names[row] = {right.name: json.loads(text)}
    return names


def right_rows(multi_join: MultiJoin, keys: Bytes, bodies: Bytes) -> pa.Array:
    """Encoded rows of the right tables that have these keys, as JSON objects; null for null."""
    lines: list[str | None] = [None] * len(keys)
    for number, rows in _by_right(keys):
        texts = rows_as_json(multi_join.rights[number].row, take(bodies, rows)).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            lines[row] = text
    return pa.array(lines, pa.string())


def asked_of(multi_join: MultiJoin, key: str, foreign: Mapping[str, Any]) -> Iterator[Asked]:
    """The records of a left row and of the right rows that it names."""
    wanted = parse_key(multi_join.key, key)
    for number, right in enumerate(multi_join.rights):
        if right.name in foreign:
            by = tagged(number, parse_key(right.key, json.dumps(foreign[right.name])))
            combined = combined_key.encode(by, tagged(number, wanted))[0].as_py()
            yield Asked(by, (tags.SUBSCRIBER + combined, tags.RIGHT + by[0].as_py()))


def _by_right(keys: Bytes) -> list[tuple[int, Ints]]:
    """Find the right tables whose keys these are, by number, and their rows; nulls are of none."""
    heads = np.array([-1 if key is None else key[0] for key in keys.to_pylist()], np.int64)
    return [(int(number), np.flatnonzero(heads == number)) for number in np.unique(heads[heads >= 0])]
