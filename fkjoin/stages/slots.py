"""Slots: what each of several tables has under a key, in one record, for ``merge`` and ``pair``.

*Law*: a slot has the newest row of its table, by the versions, whatever the order in which its
changes come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bytes, Ints, replaced, take, valid
from fkjoin.codec.messages import column
from fkjoin.codec.records import Records
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_only


class Slot(NamedTuple):
    """The version and the row that a table has under each key.

    Null where it never had one; the row also where it has none any more.
    """

    version: Bytes
    row: Bytes


class ChangedSlots(NamedTuple):
    """The keys of which a batch changed a slot, and the timestamps of the changes."""

    keys: Ints
    """The numbers of the keys."""
    ts: Ints


def take_in(
    rows: pa.Table,
    code: Ints,
    slots: list[Slot],
    *,
    held: Records,
    count: Counters,
    in_order: Sequence[bool],
) -> list[ChangedSlots]:
    """Put a batch's rows (``NUMBERED``) into the ``slots``; returns what changed in each.

    Rows come in any order, duplicates allowed.  ``code``: the numbers of the rows' keys among the
    slots' keys; ``in_order``: of each table, see ``newest_only``.
    """
    numbers = column(rows, "number").to_numpy()
    changed = []
    for number, slot in enumerate(slots):
        own = np.flatnonzero(numbers == number)
        if not len(own):
            changed.append(ChangedSlots(np.zeros(0, np.int64), np.zeros(0, np.int64)))
            continue
        how: Any = {"held": held, "count": count, "in_order": bool(in_order) and in_order[number]}
        slots[number], change = _with_rows(rows.take(pa.array(own)), code[own], slot, **how)
        changed.append(change)
    return changed


def _with_rows(
    rows: pa.Table, code: Ints, slot: Slot, *, held: Records, count: Counters, in_order: bool
) -> tuple[Slot, ChangedSlots]:
    """The slot with rows of its table, and what they change in it."""
    # A slot is newer or older by its own table's versions: versions of several tables mean nothing
    # to one another.
    known = held._replace(
        exists=valid(slot.version), version=pc.fill_null(slot.version, b""), body=slot.row
    )
    value = column(rows, "value")
    newest = newest_only(
        code,
        column(rows, "version"),
        known,
        count,
        as_read=True,
        in_order=in_order,
        contents=lambda: (value, slot.row),
    )
    position, where, version = newest.last()
    row = replaced(slot.row, where, take(value, position))
    after = Slot(replaced(slot.version, where, version), row)
    return after, ChangedSlots(where, column(rows, "ts").to_numpy()[position])
