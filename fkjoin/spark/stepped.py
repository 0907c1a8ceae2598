"""What ``filter``, ``map_values`` and ``group_by`` make of rows, done by the workers that parse them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.spark.json_lines import JsonLines
from fkjoin.spark.packing import Batches, Pack
from fkjoin.spark.topic_records import TopicRecords
from fkjoin.vectors import Columns, Steps, taken, visible


@dataclass(frozen=True)
class Stepped:
    """What is in lines or records, with what steps make of the rows."""

    reading: JsonLines | TopicRecords
    steps: Steps = ()

    def then(self, steps: Steps) -> Stepped:
        """More of them."""
        return replace(self, steps=(*self.steps, *steps))

    def packing(
        self, pack: Pack, foreign_key: Columns | None = None, contributing: tuple[Columns, Columns] | None = None
    ) -> Pack:
        """What makes envelopes of them.

        ``foreign_key``: its columns; ``contributing``: the groups of rows, a column more for ``pack``, and the values that come
        in the place of rows.
        """
        return self.reading.packing(_PackStepped(self.steps, foreign_key, contributing, pack))


@dataclass(frozen=True)
class _PackStepped:
    """Rows as ``PackChanges`` and ``PackRows`` take them, after the steps."""

    steps: Steps
    foreign_key: Columns | None
    contributing: tuple[Columns, Columns] | None
    pack: Pack

    def __call__(self, batches: Batches) -> Batches:
        return self.pack(self._stepped(batch) for batch in batches)

    def _stepped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        key = batch.column("key")
        row, gone = taken(self.steps, key, batch.column("row"), pc.fill_null(batch.column("deleted"), False))
        found = dict(zip(batch.schema.names, batch.columns, strict=True)) | {"row": row, "deleted": gone}
        seen = visible(key, row, gone)
        if self.contributing is not None:
            found["group"], found["row"] = (columns(seen, len(row)) for columns in self.contributing)
        if self.foreign_key is not None:
            found["foreign_key"] = self.foreign_key(seen, len(row))
        return pa.record_batch(found)
