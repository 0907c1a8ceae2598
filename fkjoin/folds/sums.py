"""count, sum and avg.

*Law*: sums are exact.  A sum of doubles is the exact sum of their values, rounded once when it is
read: it depends on no order, and what was added and taken back leaves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from fkjoin.codec.arrays import BYTES, Bools, Bytes, Ints, changes_from_previous, valid
from fkjoin.errors import FkJoinError
from fkjoin.folds.fold import AggregateColumn, FoldSteps, totals, whole

_LOW = np.int64(0xFFFFFFFF)
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Count(AggregateColumn):
    """The number of rows; with a ``column``, of those in which it is not null."""

    name: str
    column: int | None = None

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, pa.int64())

    @property
    def state(self) -> list[pa.Field]:
        return [] if self.column is None else [pa.field("count", pa.int64())]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        return [] if self.column is None else [pa.array(_counted(state[0], steps, self.column))]

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        return state[0] if state else pa.array(rows)


@dataclass(frozen=True)
class _Sum(AggregateColumn):
    """Sum or average of a column of numbers."""

    name: str
    column: int
    kind: Literal["sum", "avg"]


class WholeSum(_Sum):
    """Sum (``bigint``) or average (``double``) of whole numbers; kept as ``high * 2**32 + low``."""

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, pa.int64() if self.kind == "sum" else pa.float64())

    @property
    def state(self) -> list[pa.Field]:
        return [pa.field(name, pa.int64()) for name in ("count", "high", "low")]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        count = _counted(state[0], steps, self.column)
        code, sign, _ = steps.signed
        amounts = whole(steps.column(self.column).cast(pa.int64()))
        # A sum of int64 amounts needs more than 64 bits: their halves are summed up.  ``>>`` rounds
        # down, so that ``high * 2**32 + low`` is the amount also of a negative one.
        low = whole(state[2]) + totals(code, (amounts & _LOW) * sign, len(count))
        high = whole(state[1]) + totals(code, (amounts >> 32) * sign, len(count)) + (low >> 32)
        return [pa.array(count), pa.array(high), pa.array(low & _LOW)]

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        count, high, low = (whole(part) for part in state)
        counted = count > 0
        if self.kind == "avg":
            return pa.array(_quotients(high, low, count), mask=~counted)
        if (beyond := counted & ((high < -(1 << 31)) | (high >= 1 << 31))).any():
            raise _too_large(self.name, steps.keys, beyond, "bigint")
        return pa.array((high << 32) + low, mask=~counted)


def _quotients(high: Ints, low: Ints, count: Ints) -> np.ndarray:
    """Correctly rounded quotients."""
    # A double has 53 bits: up to there the sum is exact as a double, and one division rounds once.
    # Python divides larger whole numbers with one rounding, too, but one by one.
    count = np.maximum(count, 1)
    quotients = (high.astype(np.float64) * 2.0**32 + low) / count
    for group in np.flatnonzero((high < -(1 << 20)) | (high >= 1 << 20) | (count >= 1 << 53)):
        quotients[group] = ((int(high[group]) << 32) + int(low[group])) / int(count[group])
    return quotients


class DoubleSum(_Sum):
    """Sum or average of floats and doubles (``double``), exactly.

    It is stored as ``{int16 exponent}{whole number}``, little-endian.  Infinities and not-a-numbers
    are counted apart, so that they too can be taken back.
    """

    @property
    def result(self) -> pa.Field:
        return pa.field(self.name, pa.float64())

    @property
    def state(self) -> list[pa.Field]:
        counts = [pa.field(name, pa.int64()) for name in ("count", "nans", "above", "below")]
        return [*counts, pa.field("sum", BYTES)]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        counted = _counted(state[0], steps, self.column)
        groups = len(counted)
        code, sign, _ = steps.signed
        column = steps.column(self.column).cast(pa.float64()).fill_null(0.0)
        amounts = column.to_numpy(zero_copy_only=False)
        tests = np.isnan(amounts), np.isposinf(amounts), np.isneginf(amounts)
        specials = [
            whole(part) + totals(code, test * sign, groups)
            for part, test in zip(state[1:4], tests, strict=True)
        ]
        finite = np.where(np.isfinite(amounts), amounts, 0.0)
        sums = _added(state[4].to_pylist(), code, sign, finite)
        return [pa.array(counted), *(pa.array(part) for part in specials), pa.array(sums, BYTES)]

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        count, nans, above, below = (whole(part) for part in state[:4])
        divisors = count.tolist() if self.kind == "avg" else [1] * len(count)
        stored = zip(state[4].to_pylist(), divisors, strict=True)
        sums = np.array([_rounded(amount, max(divisor, 1)) for amount, divisor in stored], float)
        sums = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, sums))
        sums = np.where((nans > 0) | ((above > 0) & (below > 0)), np.nan, sums)
        return pa.array(sums, mask=count <= 0)


def _added(stored: list[bytes | None], code: Ints, sign: Ints, amounts: np.ndarray) -> list[bytes]:
    """Exact sums, with the amounts added.

    A double is a whole number of 53 bits times a power of two::

        take each amount apart into such a number and its exponent
        sum up the numbers of equal group and exponent in bulk, as halves of 32 bits
        for each of these sums: bring it and its group's sum to the lesser exponent, and add them
    """
    mantissa, exponent = np.frexp(amounts)
    digits = (mantissa * 2.0**53).astype(np.int64)
    exponent = np.where(digits == 0, 0, exponent.astype(np.int64) - 53)
    order = np.lexsort((exponent, code))
    code, exponent, digits = code[order], exponent[order], digits[order] * sign[order]
    starts = np.flatnonzero(changes_from_previous(code) | changes_from_previous(exponent))
    sums = [_read(item) for item in stored]
    if len(starts):
        low, high = (np.add.reduceat(part, starts) for part in (digits & _LOW, digits >> 32))
        parts = code[starts], exponent[starts], low, high
        for group, power, low_sum, high_sum in zip(*map(np.ndarray.tolist, parts), strict=True):
            held, base = sums[group]
            amount = low_sum + (high_sum << 32)
            # Zero has no exponent: it must not drag the other one down, nor be dragged.
            if not amount:
                continue
            if not held:
                sums[group] = amount, power
            elif power >= base:
                sums[group] = held + (amount << (power - base)), base
            else:
                sums[group] = (held << (base - power)) + amount, power
    return [_written(*item) for item in sums]


def _read(stored: bytes | None) -> tuple[int, int]:
    if not stored:
        return 0, 0
    return _number(stored[2:]), _number(stored[:2])


def _written(digits: int, exponent: int) -> bytes:
    """The shortest form, so that equal sums are equal bytes."""
    if not digits:
        return b""
    spare = (digits & -digits).bit_length() - 1
    digits >>= spare
    return (exponent + spare).to_bytes(2, "little", signed=True) + _signed_bytes(digits)


def _rounded(stored: bytes | None, divisor: int) -> float:
    digits, exponent = _read(stored)
    try:
        return (digits << exponent) / divisor if exponent >= 0 else digits / (divisor << -exponent)
    except OverflowError:
        return np.inf if digits > 0 else -np.inf


@dataclass(frozen=True)
class DecimalSum(_Sum):
    """Sum or average of decimals, with Spark's types.

    It is stored as a whole number of the column's smallest unit.
    """

    precision: int
    scale: int

    @property
    def result(self) -> pa.Field:
        digits, places = (4, 4) if self.kind == "avg" else (10, 0)
        precision = min(_MOST_DIGITS, self.precision + digits)
        scale = min(_MOST_DIGITS, self.scale + places)
        return pa.field(self.name, pa.decimal128(precision, scale))

    @property
    def state(self) -> list[pa.Field]:
        return [pa.field("count", pa.int64()), pa.field("sum", BYTES)]

    def fold(self, state: list[pa.Array], steps: FoldSteps, number: int) -> list[pa.Array]:
        counted = _counted(state[0], steps, self.column)
        code, sign, _ = steps.signed
        amounts = steps.column(self.column)
        # As four parts of 32 bits, each of which sums up in int64; only the highest has a sign.
        words = decimal_words(amounts)
        words[~valid(amounts)] = 0
        low, high = words[:, 0], words[:, 1].view(np.int64)
        parts = (
            (low & np.uint64(_LOW)).view(np.int64),
            (low >> np.uint64(32)).view(np.int64),
            high & _LOW,
            high >> 32,
        )
        sums = [totals(code, part * sign, len(counted)).tolist() for part in parts]
        stored = map(_number, state[1].to_pylist())
        whole_sums = [
            base + a + (b << 32) + (c << 64) + (d << 96)
            for base, a, b, c, d in zip(stored, *sums, strict=True)
        ]
        return [pa.array(counted), pa.array(map(_signed_bytes, whole_sums), BYTES)]

    def final(self, state: list[pa.Array], rows: Ints, steps: FoldSteps, number: int) -> pa.Array:
        count = whole(state[0])
        kind = self.result.type
        amounts = [_number(item) for item in state[1].to_pylist()]
        if self.kind == "avg":
            unit = 10 ** (kind.scale - self.scale)
            sums = zip(amounts, count.tolist(), strict=True)
            amounts = [_half_up(amount * unit, max(divisor, 1)) for amount, divisor in sums]
        counted = count > 0
        beyond = counted & np.array([abs(amount) >= 10**kind.precision for amount in amounts], bool)
        if beyond.any():
            raise _too_large(self.name, steps.keys, beyond, str(kind))
        return _decimals(amounts, counted, kind)


def decimal_words(array: pa.Array) -> np.ndarray:
    """Copy a decimal128 column as an ``(n, 2)`` array of unsigned halves, the lower one first."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros((len(array), 2), np.uint64)
    words = np.frombuffer(data, "<u8").reshape(-1, 2)
    return words[array.offset : array.offset + len(array)].copy()


def _decimals(amounts: list[int], present: Bools, kind: pa.DataType) -> pa.Array:
    """Decimals from whole numbers of their smallest unit; null where not ``present``."""
    numbers = np.where(present, np.array(amounts, object), 0).tolist()
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(amounts), [mask, pa.py_buffer(data)])


def _half_up(number: int, divisor: int) -> int:
    rounded = (2 * abs(number) + divisor) // (2 * divisor)
    return rounded if number >= 0 else -rounded


def _number(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "little", signed=True)


def _signed_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True) if number else b""


def _counted(count: pa.Array, steps: FoldSteps, column: int) -> Ints:
    """The number of each group's rows that have a value."""
    code, sign, _ = steps.signed
    return whole(count) + totals(code, sign * valid(steps.column(column)), len(count))


def _too_large(name: str, keys: Bytes, beyond: np.ndarray, kind: str) -> FkJoinError:
    key = keys[int(beyond.argmax())].as_py()
    return FkJoinError(
        f"{name} of group {key!r} does not fit into {kind}: "
        "cast what is summed up, for instance to decimal(38, 0), "
        "and start with a new checkpoint and an empty target"
    )
