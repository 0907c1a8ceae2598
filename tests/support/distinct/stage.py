"""distinct, by the columns: what rows contribute becomes a row for as long as a row has these values.

Store: ``{'d'}{columns}`` → a counter as version, the greatest timestamp, and ``{uint32 little-endian: length of the
row}{row}{int64 little-endian: number of the rows that have it}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, Bytes, Ints, as_bytes, codes, masked, paired, prefixed, take, unpaired, valid
from fkjoin.codec.messages import GROUPED, RESULT, column
from fkjoin.spark.specs.shown import result
from fkjoin.spark.specs.spec import Messages, StageSpec
from fkjoin.stages.counters import Counters
from fkjoin.stages.emit_on_change import EmitDecision, Ending, entries
from fkjoin.stages.retention import GONE, sweep
from fkjoin.state import Store


def encoded_row(bodies: Bytes) -> Bytes:
    """The rows in the bodies of records."""
    return unpaired(bodies)[0]


@dataclass(frozen=True, kw_only=True)
class DistinctSpec(StageSpec):
    """distinct: contributions become a row of each value; regroup is always in the same query."""

    stage = "distinct"
    takes = (GROUPED,)
    highwater_tags = b""
    counts: ClassVar = {"seen-again": "Rows whose columns another row has."}
    forms: ClassVar = {tags.ROW: ("distinct", result)}
    keeps = True
    encoded = staticmethod(encoded_row)

    def _run(self, messages: Messages, store: Store, count: Counters) -> Iterator[pa.Table]:
        sweep(store, messages.now_ms)
        grouped = messages.take(GROUPED)
        if not len(grouped):
            yield RESULT.empty_table()
            return
        code, keys = codes(as_bytes(column(grouped, "key")))
        names = prefixed(tags.ROW, keys)
        held = records.decode(store.get_many(names))
        row, number = unpaired(masked(held.body, held.flags & GONE == 0))
        before, after = _numbers(number), _numbers(number)
        old, new = column(grouped, "old"), column(grouped, "new")
        np.add.at(after, code, valid(new).astype(int) - valid(old).astype(int))
        had, has = before > 0, after > 0
        count["seen-again"] += int(np.maximum(after - np.maximum(before, 1), 0).sum())
        # Rows of one value are the same bytes: any of the new ones will do.
        newest = np.full(len(keys), -1)
        newest[code[valid(new)]] = np.flatnonzero(valid(new))
        rows = as_bytes(pa.compute.if_else(pa.array(had), row, take(new, newest, newest >= 0)))
        emission = EmitDecision.of(had, has, had & has, count)
        latest = np.where(held.exists, held.ts, np.iinfo(np.int64).min)
        np.maximum.at(latest, code, column(grouped, "ts").to_numpy())
        source = versions.identity(f"distinct {self.state.operator}")
        version = emission.own_versions(held, source, messages.now_ms)
        shown = masked(rows, has)
        yield emission.results(keys, shown, version, latest)
        body = paired(shown, pa.array([value.tobytes() for value in after.astype("<i8")], BYTES))
        due = messages.now_ms + self.state.retention_ms
        store.write(*entries(names, latest, version, body, Ending(~has, due), has=has))


def _numbers(encoded: Bytes) -> Ints:
    """Numbers of rows; 0 for null."""
    return np.array([int.from_bytes(value or b"", "little") for value in encoded.to_pylist()], np.int64)
