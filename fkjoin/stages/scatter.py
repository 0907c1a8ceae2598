"""The first two stages of a multi-way join: a left table with several right tables.

See docs/semantics.md, "Multi-way joins".

scatter, by left key: foreign keys that a change of a left row moves become subscriptions, and the
row goes to the left key's results (gather) by itself, so that a change of nothing but values asks
no right table for anything.

*The law that makes the join converge*: every change of a left row leads to one message that says
which answers it goes with, by the version *since* which each foreign key is what it is; every such
version is answered, once and again whenever the right row changes.

subscription: as in a join of two tables, with all right tables in one store; keys are told apart by
a first byte.

Store of scatter: ``{'d'}{left key}`` → version, a 64-bit hash of the row in the place of a
timestamp, and for each right table foreign key and since when; for a retention time also of rows
that are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    constant,
    equal,
    first_bytes,
    masked,
    prefixed,
    stack,
    take,
    untagged,
    valid,
)
from fkjoin.codec.messages import LEFT, NO_TIMESTAMP, PART, SUBSCRIPTION, column, table
from fkjoin.codec.rows import bytes_codec
from fkjoin.codec.versions import fingerprints
from fkjoin.stages import counters
from fkjoin.stages.emit_on_change import Ending, entries
from fkjoin.stages.ordering import looked_up, newest_changes
from fkjoin.stages.rekey import contents_of
from fkjoin.stages.retention import GONE, sweep
from fkjoin.stages.subscription import subscription
from fkjoin.state import Bytes, Store


class Scattered(NamedTuple):
    """Messages to the foreign keys of all right tables, and left rows for the left keys."""

    subscriptions: pa.Table
    rows: pa.Table


def scatter(
    changes: pa.Table,
    store: Store,
    count: counters.Counters,
    rights: int,
    *,
    now_ms: int,
    retention_ms: int,
    in_order: bool = False,
) -> Scattered:
    """Turn left ``changes`` (``CHANGE``) into messages (``SUBSCRIPTION``, ``PART``).

    Changes come in any order, duplicates allowed, each with a ``foreign_key`` for each of the
    ``rights``: see ``foreign_keys``.  A change whose version is not newer than the one remembered
    is dropped and counted; of a row's newer ones the last counts. ``in_order``: see
    ``newest_only``.
    """
    sweep(store, now_ms)
    count[counters.LEFT_IN] += len(changes)
    if not len(changes):
        return Scattered(SUBSCRIPTION.empty_table(), PART.empty_table())
    code, keys, names, held = looked_up(changes, store)
    remembered = bytes_codec(2 * rights).decode(held.body)
    digest, alive = fingerprints(column(changes, "value")), valid(column(changes, "value"))

    def contents() -> tuple[Bytes, Bytes]:
        known = bytes_codec(rights).encode(remembered[::2], len(keys))
        came = contents_of(digest, column(changes, "foreign_key"), alive)
        return came, contents_of(held.ts, known, held.exists & (held.flags & GONE == 0))

    newest = newest_changes(changes, code, held, count, contents, in_order=in_order)
    order, code, version = newest.last()

    key, value, ts = (take(column(changes, name), order) for name in ("key", "value", "ts"))
    digest, alive, seen = digest[order], alive[order], held.exists[code]
    wanted = bytes_codec(rights).decode(take(column(changes, "foreign_key"), order))
    subscriptions, keys_and_since = [], []
    for right in range(rights):
        # Where the foreign key stays, it is so since the same version as before: what was answered
        # then is still right, and nothing is asked.  Where it moves, it is so since this change.
        before, began = (take(known, code) for known in remembered[2 * right : 2 * right + 2])
        foreign_key = masked(wanted[right], alive)
        names_row, stays = valid(foreign_key), equal(before, foreign_key)
        since = masked(pc.if_else(pa.array(stays), began, version), names_row)
        keys_and_since += [foreign_key, since]
        out, into = pa.array(valid(before) & ~stays), pa.array(names_row & ~stays)
        leaving, joining = before.filter(out), foreign_key.filter(into)
        message = table(
            SUBSCRIPTION,
            tagged(right, stack(leaving, joining)),
            tagged(right, stack(key.filter(out), key.filter(into))),
            np.repeat([False, True], [len(leaving), len(joining)]),
            stack(version.filter(out), version.filter(into)),
            stack(constant(None, len(leaving)), constant(b"", len(joining))),
            np.full(len(leaving) + len(joining), NO_TIMESTAMP),
        )
        subscriptions.append(message)
    since = bytes_codec(rights).encode(keys_and_since[1::2], len(key))
    rows = table(PART, key, np.full(len(key), LEFT, np.int8), version, value, since, ts)
    rows = rows.filter(pa.array(seen | alive))

    body = bytes_codec(2 * rights).encode(keys_and_since, len(key))
    ending = Ending(~alive, now_ms + retention_ms, in_order)
    store.write(*entries(take(names, code), digest, version, body, ending))
    return Scattered(pa.concat_tables(subscriptions).combine_chunks(), rows)


def answered(
    subscriptions: pa.Table,
    changes: pa.Table,
    store: Store,
    count: counters.Counters,
    right_parts: Sequence[int],
    *,
    now_ms: int,
    retention_ms: int,
    in_order: bool = True,
    rights_in_order: bool | Sequence[bool] = False,
) -> Iterator[pa.Table]:
    """Answer ``subscriptions`` and right ``changes`` (``CHANGE``), both ``tagged``, by ``PART``.

    ``right_parts``: of how many parts each right table's versions are made.  ``in_order``,
    ``rights_in_order``: see ``subscription``.  The store is written when the iterator is exhausted.
    """
    pages = subscription(
        subscriptions,
        changes,
        store,
        count,
        now_ms=now_ms,
        retention_ms=retention_ms,
        in_order=in_order,
        rights_in_order=rights_in_order,
        right_parts=right_parts,
    )
    for page in pages:
        names = "key", "version", "right", "ts"
        keys, version, value, ts = (column(page, name) for name in names)
        number = first_bytes(keys).astype(np.int8)
        yield table(PART, untagged(keys), number, version, value, constant(None, len(keys)), ts)


def tagged(right: int, keys: Bytes) -> Bytes:
    """Keys of a right table, or left keys that name its rows, told apart from other tables'."""
    return prefixed(bytes((right,)), keys)


def foreign_keys(by_right: Sequence[Bytes]) -> Bytes:
    """The foreign keys of each row to all right tables, as scatter takes them; null for none."""
    return bytes_codec(len(by_right)).encode(list(by_right), len(by_right[0]))


def scattered(bodies: Bytes, rights: int) -> list[Bytes]:
    """The foreign keys, tagged, in bodies of scatter's records; null where there is none."""
    by_right = bytes_codec(2 * rights).decode(bodies)[::2]
    return [masked(tagged(right, keys), valid(keys)) for right, keys in enumerate(by_right)]
