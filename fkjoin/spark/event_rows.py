"""Rows of change events, by their operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import bools, valid
from fkjoin.spark.json_lines import field_at
from fkjoin.spark.topic_records import ValuesRead, where
from fkjoin.spark.unavailable import PLACEHOLDER
from fkjoin.stages.complete import UNAVAILABLE

_NO_ROW = {
    "t": "operation 't' (truncate) empties the whole table, which a change of one row cannot; "
    "delete the rows, or start again",
    "m": "operation 'm' (a logical decoding message) is not about a row",
}


@dataclass(frozen=True)
class EventRows:
    """Columns of the rows."""

    fields: pa.Schema
    placeholder: str = PLACEHOLDER
    marks: bool = False
    """Rows that lack values have a column ``UNAVAILABLE``, and are not a problem."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, with the one that says which have no value."""
        if not self.marks:
            return self.fields
        return self.fields.append(pa.field(UNAVAILABLE, pa.list_(pa.int32())))

    def applied(
        self,
        events: ValuesRead,
        op: pa.StringArray,
        after: pa.StructArray,
        missing: Mapping[int, list[str]],
    ) -> ValuesRead:
        """Read events by their operations; ``missing``: of some, the columns without a value."""
        present = ~events.deleted
        known = bools(pc.is_in(op, pa.array(["c", "u", "r"])))
        deletes = bools(pc.is_in(op, pa.array(["d"])))
        named = valid(op)
        problem = pc.coalesce(
            events.problem,
            where(present & ~named, "a change event without op"),
            *[
                where(bools(pc.is_in(op, pa.array([name]))), words)
                for name, words in _NO_ROW.items()
            ],
            where(named & ~known & ~deletes, "unknown operation '", op, "'"),
            where(known & ~valid(after), "operation '", op, "' without after"),
        )
        if self.marks:
            after = self._marked(after, missing)
        else:
            problem = pc.coalesce(problem, self._reasons(missing, len(present)))
        return ValuesRead(after, ~present | deletes, problem)

    def _marked(self, rows: pa.StructArray, missing: Mapping[int, list[str]]) -> pa.StructArray:
        """The rows with a column that says which columns have no value."""
        names = self.fields.names
        lacking: list[list[int] | None] = [None] * len(rows)
        for index, absent in missing.items():
            lacking[index] = [names.index(name) for name in absent]
        columns = [field_at(rows, (name,)) for name in names]
        columns.append(pa.array(lacking, pa.list_(pa.int32())))
        return pa.StructArray.from_arrays(columns, fields=list(self.schema), mask=rows.is_null())

    def _reasons(self, missing: Mapping[int, list[str]], count: int) -> pa.StringArray:
        """Say what is wrong with events that lack values."""
        if not missing:
            return pa.nulls(count, pa.string())
        words = (
            f"the event has no value, only {self.placeholder}; set REPLICA IDENTITY FULL, "
            'or give unavailable="keep"'
        )
        texts = {index: f"{', '.join(names)}: {words}" for index, names in missing.items()}
        return pa.array([texts.get(index) for index in range(count)], pa.string())
