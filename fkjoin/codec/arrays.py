"""Small bulk operations that Arrow lacks, on ``LargeBinaryArray`` and NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Not from ``fkjoin.state``: workers that only parse rows need no stores.
Bytes: TypeAlias = pa.LargeBinaryArray
BYTES = pa.large_binary()
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]


@cache
def _empty() -> pa.Scalar:
    # Not a constant: pyarrow imports pandas with its first scalar, which some workers do not need.
    return pa.scalar(b"", BYTES)


def as_bytes(array: pa.Array | pa.ChunkedArray) -> Bytes:
    """Make one contiguous ``LargeBinaryArray``; text becomes its UTF-8."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == BYTES:
        return array
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    return array.cast(BYTES)


def constant(value: bytes | None, rows: int) -> Bytes:
    """``rows`` times the same bytes, or null."""
    return pa.repeat(pa.scalar(value, BYTES), rows)


def fixed(items: npt.NDArray[Any]) -> Bytes:
    """Make a byte string per row of an ``(n, width)`` array of bytes, or per number of another."""
    rows, width = len(items), items.itemsize * int(np.prod(items.shape[1:]))
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    data = np.ascontiguousarray(items).view(np.uint8)
    return pa.Array.from_buffers(BYTES, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def concat(*parts: Bytes) -> Bytes:
    """Element-wise concatenation; a null part counts as empty."""
    return pc.binary_join_element_wise(
        *parts, _empty(), null_handling="replace", null_replacement=b""
    )


def prefixed(tag: bytes, keys: Bytes) -> Bytes:
    """Put ``tag`` in front of each key."""
    return pc.binary_replace_slice(keys, 0, 0, tag)


def stack(*arrays: Bytes) -> Bytes:
    """Concatenate arrays; where only one has elements, return that one itself."""
    some = [as_bytes(array) for array in arrays if len(array)] or [as_bytes(arrays[0])]
    return some[0] if len(some) == 1 else pa.concat_arrays(some)


def buffers(array: Bytes) -> tuple[Octets, Ints]:
    """The data bytes and the ``n + 1`` offsets of an array."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data or b"", np.uint8), bounds


def lengths(array: Bytes) -> Ints:
    """Length of each element; 0 for null."""
    return np.diff(buffers(array)[1])


def slices(data: Octets, starts: Ints, sizes: Ints, valid: Bools | None = None) -> Bytes:
    """The byte strings ``data[starts[i] : starts[i] + sizes[i]]``; null where not ``valid``."""
    if len(sizes) and (sizes == sizes[0]).all() and (valid is None or valid.all()):
        return fixed(window(data, starts, int(sizes[0])))
    if valid is not None:
        sizes = np.where(valid, sizes, 0)
    # An empty slice may stand anywhere: put at the end of the one before, it breaks no order.
    some = sizes > 0
    starts = np.where(some, starts, np.maximum.accumulate(np.where(some, starts + sizes, 0)))
    ends = starts + sizes
    if (starts[1:] >= ends[:-1]).all():
        return _in_order(data, starts, ends, valid)
    # Slices in any order: gather each byte.  A byte's source is its own position in the result,
    # moved by as much as its slice is.
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    positions = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    body = pa.py_buffer(np.ascontiguousarray(data[positions]))
    return pa.Array.from_buffers(BYTES, len(starts), [mask, pa.py_buffer(offsets), body])


def _in_order(data: Octets, starts: Ints, ends: Ints, valid: Bools | None) -> Bytes:
    """Slices that follow each other: every other element of an array of slices and gaps.

    Arrow takes these quickly.
    """
    rows = len(starts)
    if not rows:
        return pa.array([], BYTES)
    bounds = np.empty(2 * rows, np.int64)
    bounds[0::2], bounds[1::2] = starts, ends
    both = pa.Array.from_buffers(
        BYTES, 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return both.take(pa.array(2 * np.arange(rows), mask=None if valid is None else ~valid))


def after(array: Bytes, starts: Ints | int, valid: Bools | None = None) -> Bytes:
    """Cut off the first ``starts[i]`` bytes of each element; null where not ``valid``."""
    data, bounds = buffers(array)
    starts = np.broadcast_to(starts, len(array))
    sizes = np.diff(bounds) - starts
    if len(array) and (starts == starts[0]).all() and (valid is None or valid.all()):
        return pc.binary_slice(array, int(starts[0]), int(starts[0] + max(0, sizes.max())))
    return slices(data, bounds[:-1] + starts, np.maximum(sizes, 0), valid)


def paired(first: Bytes, second: Bytes) -> Bytes:
    """``{uint32 little-endian: length of first}{first}{second}``; a null counts as empty."""
    sizes = np.where(valid(first), lengths(first), 0).astype("<u4")
    return concat(fixed(sizes), first, second)


def unpaired(pairs: Bytes) -> tuple[Bytes, Bytes]:
    """Undo ``paired``; both are null where the pair is."""
    present = valid(pairs)
    data, bounds = buffers(pairs)
    sizes = np.where(present, numbers_at(data, bounds[:-1], "<u4"), 0)
    return slices(data, bounds[:-1] + 4, sizes, present), after(pairs, 4 + sizes, present)


def window(data: Octets, starts: Ints, width: int) -> Octets:
    """An ``(n, width)`` array of the bytes from ``starts[i]`` on; beyond the end, zeros."""
    rows = len(starts)
    if not rows or not width:
        return np.zeros((rows, width), np.uint8)
    # Windows side by side need no copy: they are the data.  The first test spares most others.
    side_by_side = int(starts[-1] - starts[0]) == width * (rows - 1)
    if side_by_side and (np.diff(starts) == width).all():
        begin, end = int(starts[0]), int(starts[-1]) + width
        if end <= len(data):
            return data[begin:end].reshape(rows, width)
    if int(starts.max()) + width > len(data):
        data = np.concatenate([data, np.zeros(width, np.uint8)])
        starts = np.minimum(starts, len(data) - width)
    # A view with a window at each byte: NumPy then copies the wanted ones as single items.
    data, shape = np.ascontiguousarray(data), (len(data) - width + 1,)
    everywhere = np.ndarray(shape, np.dtype((np.void, width)), data, strides=(1,))
    return everywhere[starts].view(np.uint8).reshape(rows, width)


def numbers_at(data: Octets, starts: Ints, kind: str) -> Ints:
    """The number of a ``kind`` (such as ``<u4``) that begins at each of ``starts``."""
    raw = np.ascontiguousarray(window(data, starts, np.dtype(kind).itemsize))
    return raw.view(kind).reshape(-1).astype(np.int64)


def padded(array: Bytes, width: int) -> Octets:
    """An ``(n, width)`` array of each element's bytes, filled up with zeros."""
    data, bounds = buffers(array)
    table = window(data, bounds[:-1], width)
    sizes = np.diff(bounds)
    if (sizes >= width).all():
        return table
    return np.where(np.arange(width) < sizes[:, None], table, np.uint8(0))


def untagged(keys: Bytes) -> Bytes:
    """Keys of a store without the byte that says what they are keys of."""
    return after(keys, 1)


def first_bytes(array: Bytes) -> Ints:
    """The first byte of each element (none is empty)."""
    data, bounds = buffers(array)
    return data[bounds[:-1]].astype(np.int64)


def codes(array: Bytes) -> tuple[Ints, Bytes]:
    """A number per distinct value (no nulls in), and the distinct values."""
    encoded = array.dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def equal(left: Bytes, right: Bytes) -> Bools:
    """Element-wise equality; null equals null."""
    same = pc.fill_null(pc.equal(left, right), False)
    return bools(pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right))))


def bools(array: Any) -> Bools:
    """An Arrow boolean array without nulls, as NumPy."""
    return array.to_numpy(zero_copy_only=False)


def valid(array: pa.Array) -> Bools:
    """Tell where the array is not null."""
    if not array.null_count:
        return np.ones(len(array), bool)
    return bools(pc.is_valid(array))


def masked(array: Bytes, keep: Bools) -> Bytes:
    """The array with null where not ``keep``."""
    if keep.all():
        return array
    return pc.if_else(pa.array(keep), array, pa.scalar(None, BYTES))


def take(array: pa.Array, positions: Ints, valid: Bools | None = None) -> pa.Array:
    """The elements at ``positions``, null where not ``valid``.

    All of them in their order are the array itself.
    """
    same = len(array) == len(positions) > 0 and positions[0] == 0
    if same and (np.diff(positions) == 1).all() and (valid is None or valid.all()):
        return array
    return array.take(pa.array(positions, mask=None if valid is None else ~valid))


def chosen(array: pa.Array, which: Bools) -> pa.Array:
    """The elements that are to be kept; of all of them, the array itself."""
    return array if which.all() else array.filter(pa.array(which))


def replaced(array: Bytes, positions: Ints, by: Bytes) -> Bytes:
    """The array with other elements at some positions."""
    sources = np.arange(len(array))
    sources[positions] = len(array) + np.arange(len(positions))
    return take(stack(array, by), sources)


def is_any(kind: pa.DataType, *names: str) -> bool:
    """Tell whether a type is one of these, as tests of ``pyarrow.types`` name them."""
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def changes_from_previous(sorted_codes: Ints) -> Bools:
    """True at the first row of each run of equal codes."""
    first = np.ones(len(sorted_codes), bool)
    first[1:] = sorted_codes[1:] != sorted_codes[:-1]
    return first


def last_of_run(sorted_codes: Ints) -> Bools:
    """True at the last row of each run of equal codes."""
    last = np.ones(len(sorted_codes), bool)
    last[:-1] = sorted_codes[1:] != sorted_codes[:-1]
    return last


def narrowed(columns: Mapping[str, pa.Array], fields: Iterable[pa.Field]) -> list[pa.Array]:
    """Columns of these fields; structs have no more than the field says."""
    chosen_columns = []
    for field in fields:
        column = columns[field.name]
        if pa.types.is_struct(field.type) and column.type != field.type:
            names = [member.name for member in column.type]
            inner = narrowed(dict(zip(names, column.flatten(), strict=True)), field.type)
            column = pa.StructArray.from_arrays(
                inner, fields=list(field.type), mask=pa.array(~valid(column))
            )
        chosen_columns.append(column)
    return chosen_columns
