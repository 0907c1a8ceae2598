"""Steps (``filter``, ``map_values``, ``group_by``) in the workers that parse the rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.vectors import Columns, Steps, taken, throwing, visible
from fkjoin.errors import FkJoinError
from fkjoin.spark.json_lines import JsonLines
from fkjoin.spark.packing import Batches, Pack
from fkjoin.spark.topic_records import TopicRecords
from fkjoin.stages.answer_rows import thrown_text, without


@dataclass(frozen=True)
class RowsAsTheyAre:
    """Reader of rows that Spark has read."""

    def packing(self, pack: Pack) -> Pack:
        """Make the function that turns them into envelopes."""
        return pack


@dataclass(frozen=True)
class Stepped:
    """Lines or records, with the steps that follow on their rows."""

    reading: JsonLines | TopicRecords | RowsAsTheyAre
    steps: Steps = ()

    def then(self, steps: Steps) -> Stepped:
        """More of them."""
        return replace(self, steps=(*self.steps, *steps))

    def packing(
        self,
        pack: Pack,
        foreign_key: Columns | None = None,
        contributing: tuple[Columns, Columns] | None = None,
        *,
        failing: str | None = None,
    ) -> Pack:
        """Make the function that turns them into envelopes.

        ``failing``: the name of a table that is to fail where an expression throws; others leave
        the row out.  ``foreign_key``: its columns; ``contributing``: the groups of rows, a column
        more for ``pack``, and the values that come in the place of rows.
        """
        stepped = _PackStepped(self.steps, foreign_key, contributing, pack, failing)
        return self.reading.packing(stepped)


@dataclass(frozen=True)
class _PackStepped:
    """Rows as ``PackChanges`` and ``PackRows`` take them, after the steps."""

    steps: Steps
    foreign_key: Columns | None
    contributing: tuple[Columns, Columns] | None
    pack: Pack
    failing: str | None

    def __call__(self, batches: Batches) -> Batches:
        return self.pack(itertools.chain.from_iterable(map(self._usable, batches)))

    def _usable(self, batch: pa.RecordBatch) -> Batches:
        """The rows after the steps.

        Those on which an expression throws have that as their problem, and nothing else.
        """
        try:
            yield self._stepped(batch)
        except ArithmeticError:
            thrown = throwing(
                lambda first, count: self._stepped(batch.slice(first, count)), batch.num_rows
            )
            if self.failing is not None:
                row, error = min(thrown.items())
                key = batch.column("key")[row].as_py()
                raise FkJoinError(thrown_text(self.failing, key, error)) from error
            stepped = self._stepped(batch.filter(without(batch.num_rows, thrown)))
            yield stepped
            problem = pa.array([str(thrown[row]) for row in sorted(thrown)])
            empty = {field.name: pa.nulls(len(problem), field.type) for field in stepped.schema}
            yield pa.record_batch(empty | {"problem": problem})

    def _stepped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        key = batch.column("key")
        absent = pc.or_(
            pc.fill_null(batch.column("deleted"), False), pc.is_valid(batch.column("problem"))
        )
        row, gone = taken(self.steps, key, batch.column("row"), absent)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {"row": row, "deleted": gone}
        seen = visible(key, row, gone)
        if self.contributing is not None:
            groups, values = self.contributing
            columns["group"], columns["row"] = groups(seen, gone), values(seen, gone)
        if self.foreign_key is not None:
            columns["foreign_key"] = self.foreign_key(seen, gone)
        return pa.record_batch(columns)
