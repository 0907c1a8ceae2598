"""Change logs in the state of a stateful Spark operator.

A bucket has two state variables: ``meta``, a value, and ``log``, a map from segment numbers to
bytes.  The stages of an operator share both.  ``meta`` has the meta record of each stage, in their
order, and a stage's segments begin at a number of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fkjoin.state.errors import CorruptLogError, StoreMismatchError

_STAGE_SHIFT = 48
"""A stage's segments have the numbers from ``stage << 48`` on."""

_SEVERAL, _SIZE_BYTES = b"\xff", 4
"""First byte of several meta records, which none begins with, and the bytes of a record's size."""


def packed_metas(metas: Sequence[bytes]) -> bytes:
    """Pack the meta records of an operator's stages.

    A record of no bytes is of no store yet; one alone stands as it is.
    """
    if len(metas) == 1:
        return metas[0]
    return _SEVERAL + b"".join(len(meta).to_bytes(_SIZE_BYTES, "little") + meta for meta in metas)


def unpacked_metas(metas: bytes) -> list[bytes]:
    """The meta records of an operator's stages; ``CorruptLogError`` for bytes of another form."""
    if not metas.startswith(_SEVERAL):
        return [metas]
    records, rest = list[bytes](), metas[1:]
    while rest:
        size = int.from_bytes(rest[:_SIZE_BYTES], "little")
        end = _SIZE_BYTES + size
        if len(rest) < end:
            raise CorruptLogError(
                f"meta records end after {len(rest)} of {end} bytes: restore the checkpoint from "
                "a backup"
            )
        records.append(rest[_SIZE_BYTES:end])
        rest = rest[end:]
    return records


def meta_of(metas: bytes, stage: int) -> bytes | None:
    """The meta record of a stage; None if it has no store yet."""
    records = unpacked_metas(metas)
    return (records[stage] or None) if stage < len(records) else None


def saved_number(stage: int, number: int) -> int:
    """The number of a stage's segment among its operator's segments."""
    return (stage << _STAGE_SHIFT) + number


def stage_number(saved: int) -> tuple[int, int]:
    """The stage of a segment, and its number there."""
    return saved >> _STAGE_SHIFT, saved & ((1 << _STAGE_SHIFT) - 1)


class SparkLog:
    """The change logs of an operator's stages, committed with the batch, restored and moved by
    Spark.

    Each call is a question to the JVM by a socket, and a thread sends what is written.  The JVM
    takes 2 ms for a question, and each bucket of a small batch has two to ask.  Meanwhile the
    operator writes its pending file and hands its results on.

    A context manager: its end means that all is written, or raises the error.  One thing is asked
    at a time, in the order of the calls.  So a read waits for the writes before it, and nothing is
    written after a write that failed.
    """

    def __init__(self, meta: Any, segments: Any, stages: int = 1) -> None:
        """Keep the logs in ``meta``, a ``ValueState``, and ``segments``, a ``MapState``.

        Nothing else may use them meanwhile.
        """
        self.meta, self.segments, self._stages = meta, segments, stages
        self._known: list[bytes] | None = None
        self._writer = ThreadPoolExecutor(1, "change-log")
        self._last: Future[None] | None = None

    def __enter__(self) -> SparkLog:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if failed is None:
            self.wait()

    def of(self, stage: int) -> StageLog:
        """The log of a stage."""
        return StageLog(self, stage)

    def metas(self) -> list[bytes]:
        """The meta records of all stages."""
        if self._known is None:
            self.wait()
            row = self.meta.get()
            records = [] if row is None else unpacked_metas(bytes(row[0]))
            if records and len(records) != self._stages:
                raise StoreMismatchError(
                    f"the state has {len(records)} stages, and the operator has {self._stages}: "
                    "use the optimizer's rules of the checkpoint's first start"
                )
            self._known = records or [b""] * self._stages
        return self._known

    def later(self, write: Callable[..., None], *values: Any) -> None:
        """Have a state written, behind what is written before."""
        self._last = self._writer.submit(_after, self._last, write, *values)

    def wait(self) -> None:
        """Wait until all is written."""
        if self._last is not None:
            self._last.result()


class StageLog:
    """A ``SegmentLog``: the change log of one stage of an operator."""

    def __init__(self, log: SparkLog, stage: int) -> None:
        self._log, self._stage = log, stage

    def meta(self) -> bytes | None:
        return self._log.metas()[self._stage] or None

    def set_meta(self, meta: bytes) -> None:
        metas = self._log.metas()
        metas[self._stage] = meta
        self._log.later(self._log.meta.update, (packed_metas(metas),))

    def segment(self, number: int) -> bytes | None:
        self._log.wait()
        row = self._log.segments.getValue((saved_number(self._stage, number),))
        return None if row is None else bytes(row[0])

    def put_segment(self, number: int, data: bytes) -> None:
        saved = saved_number(self._stage, number)
        self._log.later(self._log.segments.updateValue, (saved,), (data,))

    def remove_segment(self, number: int) -> None:
        self._log.later(self._log.segments.removeKey, (saved_number(self._stage, number),))


def _after(before: Future[None] | None, write: Callable[..., None], *values: Any) -> None:
    if before is not None:
        before.result()  # done: there is one thread
    write(*values)
