"""Slots: what each of several tables has under a key, in one record, for ``merge`` and ``pair``.

*Law*: a slot has the newest row of its table, by the versions, whatever the order in which its
changes come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import Bytes, Ints, replaced, take, valid
from fkjoin.codec.messages import column
from fkjoin.codec.records import Records
from fkjoin.stages.counters import Counters
from fkjoin.stages.ordering import newest_rows


class Slot(NamedTuple):
    """The version and the row that a table has under each key.

    Null where it never had one; the row also where it has none any more.
    """

    version: Bytes
    row: Bytes


def take_in(
    rows: pa.Table,
    code: Ints,
    slots: list[Slot],
    *,
    held: Records,
    count: Counters,
    in_order: Sequence[bool],
) -> list[tuple[Ints, Ints]]:
    """Put a batch's rows (``NUMBERED``) into the ``slots``.

    Returns, for each, the numbers of the keys that changed, and the timestamps of the changes.
    Rows come in any order, duplicates allowed.  ``code``: the numbers of the rows' keys among the
    slots' keys; ``in_order``: of each table, see ``newest_only``.
    """
    numbers = column(rows, "number").to_numpy()
    changed = []
    for number, slot in enumerate(slots):
        own = np.flatnonzero(numbers == number)
        if not len(own):
            changed.append((own, own))
            continue
        own_rows = rows.take(pa.array(own))
        # A slot is newer or older by its own table's versions: versions of several tables mean
        # nothing to one another.
        exists, version = valid(slot.version), pc.fill_null(slot.version, b"")
        known = held._replace(exists=exists, version=version, body=slot.row)
        slot_in_order = bool(in_order) and in_order[number]
        newest = newest_rows(own_rows, code[own], known, count, slot.row, in_order=slot_in_order)
        position, where, version = newest.last()
        value, ts = (take(column(own_rows, name), position) for name in ("value", "ts"))
        row = replaced(slot.row, where, value)
        slots[number] = Slot(replaced(slot.version, where, version), row)
        changed.append((where, ts.to_numpy()))
    return changed
