"""The columns of a table's internal frame, which sources make and the join reads."""

from __future__ import annotations

KEY = "__fkjoin_key"
ROW = "__fkjoin_row"
DELETED = "__fkjoin_deleted"
VERSION = "__fkjoin_version"
SOURCE = "__fkjoin_source"
TS = "__fkjoin_ts"
PROBLEM = "__fkjoin_problem"
RAW = "__fkjoin_raw"
CHAINS = "__fkjoin_chains"
PACKED_KEY = "__fkjoin_packed_key"
LEFT_GONE = "__fkjoin_left_gone"
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
