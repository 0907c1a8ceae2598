"""Rows that a table's rows make → packed messages: functions for ``mapInArrow``.

They stand in front of the stage spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec import pairs
from fkjoin.codec.arrays import Bools, Bytes, Ints, bools, codes, valid
from fkjoin.codec.key_texts import key_text
from fkjoin.codec.messages import JOINED, NO_TIMESTAMP, table
from fkjoin.codec.pairs import Pairs
from fkjoin.codec.rows import KeyCodec, RowCodec
from fkjoin.errors import FkJoinError, set_aside
from fkjoin.spark.packing import Batches, PacksTable, counter, packed_changes, versions_of
from fkjoin.stages import counters
from fkjoin.stages.start_over import StartOver

_NUMBERED = "; number them, as in transform(items, (item, n) -> …)"


@dataclass(frozen=True)
class Gather:
    """Outputs ``place, output, row, problem``, one a row, put together by the rows that make them.

    ``place`` is null or 0 where the outputs of another row begin; ``output``: the key, a struct.
    Two outputs of a row that have one key, or an output that has a problem, are the row's problem.
    Such a row does not count.
    """

    key: pa.Schema
    """Schema of the outputs' keys."""
    row: pa.Schema
    operator: str

    def __call__(self, batch: pa.RecordBatch) -> Gathered:
        """Put together a batch that is from a row's first output to a row's last."""
        begins = _begins(batch)
        makers, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
        problems = _problems(batch, makers)
        present = valid(batch.column("place")) & valid(batch.column("row"))
        present &= ~np.isin(makers, list(problems))
        keys = KeyCodec(self.key).encode(batch.column("output").flatten(), batch.num_rows)
        keyed = np.flatnonzero(present & valid(keys))
        rows = RowCodec(self.row).encode(batch.column("row").flatten(), batch.num_rows)
        outputs = Pairs(makers[keyed], keys.take(pa.array(keyed)), rows.take(pa.array(keyed)))
        for number, key in self._twice(outputs):
            problems.setdefault(
                number, f"{self.operator}: two of its rows have the key {key}{_NUMBERED}"
            )
        reasons = [problems.get(number) for number in range(len(first))]
        dropped = int((present & ~valid(keys)).sum())
        return Gathered(first, pairs.encode(outputs, len(first)), reasons, dropped)

    def _twice(self, outputs: Pairs) -> Iterator[tuple[int, str]]:
        """Find keys that two outputs of one row have: the row's number, and the key's text."""
        code, names = codes(outputs.names)
        if len(names) == len(outputs):
            return
        again = np.setdiff1d(np.arange(len(outputs)), np.unique(code, return_index=True)[1])
        columns = KeyCodec(self.key).decode(outputs.first.take(pa.array(again)))
        keys = zip(*(column.to_pylist() for column in columns), strict=True)
        yield from zip(outputs.row[again].tolist(), map(key_text, keys), strict=True)


@dataclass(frozen=True)
class Gathered:
    """The rows that made a batch's outputs."""

    first: Ints
    """The beginnings of the outputs of each."""
    lists: Bytes
    """The outputs of each, as ``codec.pairs`` writes them."""
    problems: list[str | None]
    dropped: int
    """The number of outputs whose key has a null."""


@dataclass(frozen=True)
class PackOutputs(PacksTable):
    """Outputs, each with the row that makes it → envelopes of ``JOINED`` by key.

    Their columns are ``key, deleted, version, source, ts, problem, place, output, row``.
    """

    key: pa.Schema
    gather: Gather
    buckets: int
    validate: bool = False
    start_over: StartOver | None = None
    failing: str | None = None
    """Name of a table that is to fail where two outputs of a row have one key.

    Others leave the row out.
    """
    number: int | None = None

    def __call__(self, batches: Batches) -> Batches:
        """Pack batches like ``PackRows``; outputs without a key are dropped and counted."""
        dropped = 0

        def rows() -> Batches:
            nonlocal dropped
            for batch in whole(batches):
                gathered = self.gather(batch)
                dropped += gathered.dropped
                columns = ["key", "deleted", "version", "source", "ts"]
                makers = batch.select(columns).take(pa.array(gathered.first))
                problems = pa.array(gathered.problems, pa.string())
                self._require_none(batch, gathered)
                makers = makers.append_column("problem", problems)
                yield makers.append_column("row", gathered.lists)

        yield from packed_changes(rows(), self, _messages)
        if dropped:
            yield counter(counters.NULL_KEY, dropped)

    def _require_none(self, batch: pa.RecordBatch, gathered: Gathered) -> None:
        """Raise ``FkJoinError`` if a row has a problem of its outputs, and the table is to fail."""
        failed = (number for number, text in enumerate(gathered.problems) if text is not None)
        number = next(failed, None)
        if self.failing is None or number is None:
            return
        first = int(gathered.first[number])
        if batch.column("problem")[first].is_valid:
            return
        key = batch.column("key")[first].as_py()
        text = str(gathered.problems[number]).removeprefix(f"{self.gather.operator}: ")
        raise FkJoinError(f"{self.failing}, key {key_text(key)}: {text}{set_aside('rows')}")


@dataclass(frozen=True)
class OutputLetters:
    """Rows ``raw, place, output, row, problem`` → rows ``raw, problem``.

    They are those that make outputs with a problem.
    """

    raw: pa.Schema
    gather: Gather

    def __call__(self, batches: Batches) -> Batches:
        for batch in whole(batches):
            gathered = self.gather(batch)
            failed = [number for number, text in enumerate(gathered.problems) if text is not None]
            raw = batch.column("raw").take(pa.array(gathered.first[failed], pa.int64()))
            problems = pa.array([gathered.problems[number] for number in failed], pa.string())
            yield pa.record_batch([raw.cast(self.raw.field("raw").type), problems], schema=self.raw)


def whole(batches: Batches) -> Batches:
    """The rows in batches that begin with a row's first output, and end with a row's last.

    Spark cuts them anywhere.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        begins = np.flatnonzero(_begins(batch))
        if not len(begins):
            waiting.append(batch)
            continue
        cut = int(begins[-1])
        yield from _together([*waiting, batch.slice(0, cut)])
        waiting = [batch.slice(cut)]
    yield from _together(waiting)


def _problems(batch: pa.RecordBatch, makers: Ints) -> dict[int, str]:
    """The first problem of each row that has one, by the row's number."""
    some = np.flatnonzero(valid(batch.column("problem")))
    texts = batch.column("problem").take(pa.array(some)).to_pylist()
    # Backwards: of several problems of a row the first one stays.
    return dict(reversed(list(zip(makers[some].tolist(), texts, strict=True))))


def _together(parts: list[pa.RecordBatch]) -> Batches:
    some = [part for part in parts if part.num_rows]
    if len(some) == 1:
        yield some[0]
    elif some:
        yield from pa.Table.from_batches(some).combine_chunks().to_batches()


def _begins(batch: pa.RecordBatch) -> Bools:
    return bools(pc.fill_null(pc.equal(batch.column("place"), 0), True))


def _messages(batch: pa.RecordBatch, key: Bytes) -> pa.Table:
    gone = bools(pc.fill_null(batch.column("deleted"), False))
    ts = pc.fill_null(batch.column("ts"), NO_TIMESTAMP)
    return table(JOINED, key, versions_of(batch), batch.column("row"), gone, ts)
