"""The columns of a table's internal frame, which sources make and the join reads."""

from __future__ import annotations

_NAMES = (
    "key",
    "row",
    "deleted",
    "version",
    "source",
    "ts",
    "problem",
    "raw",
    "chains",
    "packed_key",
    "left_gone",
)

KEY, ROW, DELETED, VERSION, SOURCE, TS, PROBLEM, RAW, CHAINS, PACKED_KEY, LEFT_GONE = (
    f"__fkjoin_{name}" for name in _NAMES
)
"""Columns of a change.

Key and row, two structs; whether it is a tombstone; its version, a struct or bytes.  Then the
identity of the version's source; time as int64; why the change cannot be used (null: it can).  Then
the raw record, of sources that have one; the positions that it came through, of sources whose
records carry them.  Of a join's rows before resolve, the key as bytes, and whether the left row is
no more.
"""
OPERATION, NUMBERS = "__fkjoin_operation", "__fkjoin_numbers_"
"""Columns of tables that stages make.

They are the effect of a change, and the prefix of those with the numbers of its versions.
"""
