"""Records of a checkpoint's stores, by a key as a user types it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from fkjoin.checkpoint.stores import SavedRecords
from fkjoin.codec import combined_key, tags
from fkjoin.codec.arrays import Bytes
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import FkJoinError
from fkjoin.stages.scatter import tagged


class State(Protocol):
    """The stores of a checkpoint."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def stores(self) -> Sequence[SavedRecords]: ...


def look_up(state: State, operator: str, key: str) -> list[dict[str, Any]]:
    """Look up what the stores of ``operator`` (empty: of the only one) know of a left row, a dict per record.

    For an aggregate: what a row with that key contributes, and the row of a group with that key.  For a flat map: what a row
    with that key makes, and the row that is shown under that key.

    ``key``: as typed, see ``parse_key``.  Raises ``FkJoinError``.
    """
    stores = _stores_of(state, operator)
    found = []
    if "regroup" in stores:
        found += _under(stores["regroup"], "row_key", key, (tags.ROW,), refuse=not {"aggregate", "close"} & set(stores))
    for stage in ("aggregate", "close"):
        if stage in stores:
            found += _under(stores[stage], "key", key, (tags.ROW,), refuse=not found)
    if "spread" in stores:
        found += _under(stores["spread"], "row_key", key, (tags.ROW,), refuse="owners" not in stores)
    if "owners" in stores:
        found += _under(stores["owners"], "key", key, (tags.ROW,), refuse=not found)
    if "rekey" in stores:
        left = _under(stores["rekey"], "key", key, (tags.ROW,))
        foreign = left[0]["foreign_key"] if left else None
        subscribed = stores.get("subscription") or stores.get("children")
        if foreign is not None and subscribed is not None:
            schemas = subscribed.schemas()
            by, wanted = parse_key(schemas["foreign_key"], json.dumps(foreign)), parse_key(schemas["key"], key)
            combined = combined_key.encode(by, wanted)
            names = tags.SUBSCRIBER + combined[0].as_py(), tags.RIGHT + by[0].as_py()
            left += subscribed.some(by, names, wanted)
        found += left
    if "scatter" in stores:
        found += _of_multi_join(stores, key)
    for stage in ("pair", "resolve", "merge", "gather", "enrich"):
        if stage in stores:
            found += _under(stores[stage], "key", key, (tags.ROW,))
    if "pace" in stores:
        found += _under(stores["pace"], "key", key, (tags.WAITING, tags.EMITTED), refuse=False)
    return found


def remarks(state: State, operator: str, found: list[dict[str, Any]]) -> list[str]:
    """Say what a reader may miss in the records ``found`` of a join, and where it is kept."""
    stores = _stores_of(state, operator)
    if found and "subscription" in stores and not {"resolve", "gather"} & set(stores):
        others = {store.operator_name for store in state.stores} - {store.operator_name for store in stores.values()}
        ask = " or ".join(f"--operator {name}" for name in sorted(others))
        return [f"The join keeps no results, since another operator of the query reads them: ask with {ask}."]
    if any(entry["kind"] == "result" and entry["row"] is None and not entry["gone"] for entry in found):
        return ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    return []


def _stores_of(state: State, operator: str) -> dict[str, SavedRecords]:
    """The stores of an operator, by stage; ``FkJoinError`` where the checkpoint has none of that name."""
    operators = list(dict.fromkeys(store.operator_name for store in state.stores))
    if operator not in operators and (operator or len(operators) > 1):
        has = f"no operator {operator!r}" if operator else "several operators"
        raise FkJoinError(f"checkpoint {state.checkpoint} has {has}; add --operator with one of {', '.join(operators)}")
    return {store.stage: store for store in state.stores if store.operator_name == (operator or operators[0])}


def parse_key(schema: pa.Schema, text: str) -> Bytes:
    """Encode a key that a user typed: one column as it is or as JSON, several as a JSON list.

    Raises ``ValueError`` that says what is wanted.
    """
    wanted = ", ".join(f"{field.name} ({field.type})" for field in schema)
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    if len(schema) == 1 and not isinstance(values, list):
        values = [text if pa.types.is_string(schema.field(0).type) and not text.startswith('"') else values]
    if not isinstance(values, list) or len(values) != len(schema):
        raise ValueError(f"key {text!r}: a JSON list is needed, of {wanted}")
    try:
        columns = [pa.array([value]).cast(field.type) for value, field in zip(values, schema, strict=True)]
    except pa.ArrowException as error:
        raise ValueError(f"key {text!r} is not {wanted}: {error}") from error
    return KeyCodec(schema).encode(columns, 1)


def _of_multi_join(stores: Mapping[str, SavedRecords], key: str) -> list[dict[str, Any]]:
    """Look up what is known of a left row, and the right rows that it names."""
    found = _under(stores["scatter"], "key", key, (tags.ROW,))
    multi_join = stores["scatter"].multi_join
    named = found[0]["foreign_key"] if found else None
    if named and multi_join is not None and "subscription" in stores:
        wanted = parse_key(multi_join.key, key)
        for number, right in enumerate(multi_join.rights):
            if right.name in named:
                by = tagged(number, parse_key(right.key, json.dumps(named[right.name])))
                combined = combined_key.encode(by, tagged(number, wanted))
                found += stores["subscription"].some(by, (tags.SUBSCRIBER + combined[0].as_py(), tags.RIGHT + by[0].as_py()))
    return found


def _under(
    store: SavedRecords, schema: str, key: str, under: tuple[bytes, ...], *, refuse: bool = True
) -> list[dict[str, Any]]:
    """Look up the records of a key as a user typed it; ``FkJoinError`` if it is none, or nothing without ``refuse``."""
    try:
        wanted = parse_key(store.schemas()[schema], key)
    except ValueError as error:
        if refuse:
            raise FkJoinError(str(error)) from error
        return []
    return store.some(wanted, tuple(tag + wanted[0].as_py() for tag in under))
