"""Rows as byte strings: a canonical form for keys and values of any Arrow type that Spark produces.

A row is ``{null bits}{fixed-width columns}{uint32 length of each other column}{their bytes}``,
little-endian.  Structs are flattened into their members; a list is
``{uint32 count}{uint32 length of each item}{items}``, a map a list of entries.  *Law*:
decode(encode(rows)) == rows, and equal rows have equal bytes; ``canonical`` also folds -0.0 into
0.0 and all NaNs into one, as comparing keys wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fkjoin.codec.arrays import (
    BYTES,
    Bools,
    Bytes,
    Ints,
    Octets,
    as_bytes,
    bools,
    buffers,
    concat,
    fixed,
    is_any,
    lengths,
    masked,
    slices,
    valid,
    window,
)
from fkjoin.errors import FormatError

Path = tuple[str, ...]
"""Names that lead to a column, or to a field in one."""


@dataclass(frozen=True)
class RowCodec:
    """Encodes rows of a schema; the schema is not part of the bytes."""

    schema: pa.Schema
    canonical: bool = False

    def encode(self, columns: list[pa.Array], rows: int) -> Bytes:
        """Encode columns in the schema's order into one byte string per row."""
        leaves: list[pa.Array] = []
        flags: list[Bools] = []
        for field, column in zip(self.schema, columns, strict=True):
            typed = column if column.type == field.type else column.cast(field.type)
            _flatten(typed, leaves, flags)
        bits = np.stack(flags, axis=1) if flags else np.zeros((rows, 0), bool)
        parts = [np.packbits(bits, axis=1, bitorder="little")]
        tails: list[Bytes] = []
        for leaf in leaves:
            width = _width(leaf.type)
            if width:
                parts.append(_fixed_bytes(leaf, width, self.canonical))
            else:
                tails.append(_variable_bytes(leaf, self.canonical))
        sizes = [lengths(tail).astype("<u4").view(np.uint8).reshape(rows, 4) for tail in tails]
        return concat(fixed(np.concatenate([*parts, *sizes], axis=1)), *tails)

    def fits(self, data: Bytes) -> Bools:
        """Tell by their lengths which byte strings can be rows of the schema; nulls can."""
        shape = _Shape(self.schema)
        octets, bounds = buffers(data)
        size = np.diff(bounds)
        sizes = shape.sizes(window(octets, bounds[:-1], shape.head))
        return ~valid(data) | ((size >= shape.head) & (size == shape.head + sizes.sum(axis=1)))

    def decode(self, data: Bytes) -> list[pa.Array]:
        """The columns of encoded rows; a null row gives null in every column."""
        reader = self._reader(data)
        return [reader.column(field.type) for field in self.schema]

    def narrowed(self, data: Bytes, schema: pa.Schema) -> list[pa.Array]:
        """Columns of encoded rows as ``arrays.narrowed`` has them; no others are decoded."""
        reader = self._reader(data)
        columns = reader.fields(self.schema, schema)
        return [columns[field.name] for field in schema]

    def pick(self, data: Bytes, paths: Sequence[Path]) -> list[pa.Array]:
        """Some columns of encoded rows, or fields in them, by the names that lead to each.

        The others are not decoded.
        """
        columns = self._reader(data).fields(self.schema, _pruned(self.schema, paths))
        picked = []
        for name, *below in paths:
            column = columns[name]
            picked.append(pc.struct_field(column, below) if below else column)
        return picked

    def _reader(self, data: Bytes) -> _Reader:
        shape = _Shape(self.schema)
        present = valid(data)
        octets, bounds = buffers(data)
        starts = bounds[:-1]
        if (np.diff(bounds)[present] < shape.head).any():
            need = f"the {shape.head} bytes that {self.schema.names} need"
            raise FormatError(f"an encoded row is shorter than {need}")
        # A null row has a head of zeros: all flags are off, and all columns null and without bytes.
        head = np.where(present[:, None], window(octets, starts, shape.head), np.uint8(0))
        bits = np.unpackbits(head[:, : shape.bitmap], axis=1, bitorder="little").astype(bool)
        sizes = shape.sizes(head)
        # A tail begins behind the head and all tails before it.
        tails = np.cumsum(sizes, axis=1) - sizes + (starts + shape.head)[:, None]
        return _Reader(octets, head, bits, sizes, tails, shape.bitmap)


def _pruned(fields: Iterable[pa.Field], paths: Sequence[Path]) -> list[pa.Field]:
    """The fields that the paths lead to or into, of structs no more than that."""
    wanted = []
    for field in fields:
        below = [path[1:] for path in paths if path[0] == field.name]
        if below and () not in below:
            field = field.with_type(pa.struct(_pruned(field.type, below)))
        wanted += [field] if below else []
    return wanted


def unsupported(schema: pa.Schema) -> str | None:
    """The first column that has no byte form, with its type; None if all have one."""
    for field in schema:
        try:
            _Shape(pa.schema([field]))
        except FormatError as error:
            return f"{field.name}: {error}"
    return None


class _Shape:
    """Layout of the head of a row."""

    def __init__(self, schema: pa.Schema) -> None:
        self.flags = self.fixed = self.variable = 0
        for field in schema:
            self._add(field.type)
        self.bitmap = -(-self.flags // 8)
        self.head = self.bitmap + self.fixed + 4 * self.variable

    def sizes(self, head: Octets) -> Ints:
        """The lengths of a row's tails, which its head ends with."""
        raw = np.ascontiguousarray(head[:, self.head - 4 * self.variable :])
        return raw.view("<u4").astype(np.int64)

    def _add(self, kind: pa.DataType) -> None:
        self.flags += 1
        if pa.types.is_struct(kind):
            for field in kind:
                self._add(field.type)
        elif width := _width(kind):
            self.fixed += width
        elif _is_list(kind):
            self.variable += 1
            _Shape(_item_schema(kind))  # raises if an item's type has no byte form
        elif is_text(kind):
            self.variable += 1
        else:
            raise FormatError(f"type {kind} has no byte form; cast it, or leave the column out")


@dataclass
class _Reader:
    """A reader of columns, one after the other out of the decoded heads.

    It has three cursors, which each column moves: columns can only be read, or skipped, in the
    schema's order.
    """

    octets: Octets
    head: Octets
    bits: Bools
    sizes: Ints
    tails: Ints
    fixed: int
    """The byte in the head at which the next fixed-width column begins."""
    flag: int = 0
    """The number of the next null bit."""
    tail: int = 0
    """The number of the next column of other width."""

    def skip(self, kind: pa.DataType) -> None:
        """Pass over a column."""
        shape = _Shape(pa.schema([pa.field("", kind)]))
        self.flag += shape.flags
        self.fixed += shape.fixed
        self.tail += shape.variable

    def fields(
        self, present: Iterable[pa.Field], wanted: Iterable[pa.Field]
    ) -> dict[str, pa.Array]:
        """Pass over all that are ``present``, and read those that are wanted, by their names."""
        kinds = {field.name: field.type for field in wanted}
        columns = {}
        for field in present:
            if field.name not in kinds:
                self.skip(field.type)
            elif pa.types.is_struct(field.type) and kinds[field.name] != field.type:
                mask = pa.array(~self.bits[:, self.flag])
                self.flag += 1
                kind = kinds[field.name]
                inner = self.fields(field.type, kind)
                columns[field.name] = pa.StructArray.from_arrays(
                    [inner[member.name] for member in kind], fields=list(kind), mask=mask
                )
            else:
                columns[field.name] = self.column(field.type)
        return columns

    def column(self, kind: pa.DataType) -> pa.Array:
        present = self.bits[:, self.flag]
        self.flag += 1
        if pa.types.is_struct(kind):
            children = [self.column(field.type) for field in kind]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(~present))
        width = _width(kind)
        if width:
            raw = np.ascontiguousarray(self.head[:, self.fixed : self.fixed + width])
            self.fixed += width
            return _from_fixed(raw, present, kind)
        raw_bytes = slices(self.octets, self.tails[:, self.tail], self.sizes[:, self.tail], present)
        self.tail += 1
        return _from_variable(raw_bytes, kind)


def _flatten(array: pa.Array, leaves: list[pa.Array], flags: list[Bools]) -> None:
    """Leaves of the array's struct tree, and a flag per node: not null."""
    flags.append(valid(array))
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            _flatten(child, leaves, flags)
    else:
        leaves.append(array)


def _width(kind: pa.DataType) -> int:
    """Bytes of a fixed-width type; 0 for the others."""
    if pa.types.is_boolean(kind):
        return 1
    if is_text(kind) or is_any(kind, "nested", "null", "dictionary"):
        return 0
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type is text or bytes."""
    return is_any(kind, "string", "binary", "large_string", "large_binary")


def _is_list(kind: pa.DataType) -> bool:
    return is_any(kind, "list", "large_list", "map")


def _item_schema(kind: pa.DataType) -> pa.Schema:
    if pa.types.is_map(kind):
        return pa.schema([("key", kind.key_type), ("value", kind.item_type)])
    return pa.schema([("item", kind.value_type)])


def _fixed_bytes(leaf: pa.Array, width: int, canonical: bool) -> Octets:
    rows = len(leaf)
    if pa.types.is_boolean(leaf.type):
        return bools(pc.fill_null(leaf, False)).astype(np.uint8).reshape(rows, 1)
    data = leaf.buffers()[1]
    if data is None or not rows:
        return np.zeros((rows, width), np.uint8)
    start = leaf.offset * width
    table = np.frombuffer(data, np.uint8)[start : start + rows * width].reshape(rows, width)
    # Adding 0.0 makes 0.0 of -0.0.
    if canonical and pa.types.is_floating(leaf.type):
        numbers = np.ascontiguousarray(table).view(f"<f{width}").reshape(-1) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        table = numbers.view(np.uint8).reshape(rows, width)
    # Under a null any bytes may stand: with zeros, equal rows have equal bytes.
    return np.where(valid(leaf)[:, None], table, np.uint8(0)) if leaf.null_count else table


def _from_fixed(raw: Octets, present: Bools, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(raw[:, 0] > 0, mask=~present)
    mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(raw), [mask, pa.py_buffer(raw)])


def _variable_bytes(leaf: pa.Array, canonical: bool) -> Bytes:
    if not _is_list(leaf.type):
        return pc.fill_null(as_bytes(leaf), pa.scalar(b"", BYTES))
    # The items of all lists are rows of their own: they are encoded at once, and then joined list
    # by list, their lengths first.
    starts = pc.fill_null(leaf.offsets, 0).to_numpy().astype(np.int64)
    counts = np.where(valid(leaf), np.diff(starts), 0)
    columns = [leaf.keys, leaf.items] if pa.types.is_map(leaf.type) else [leaf.values]
    first = int(starts[0]) if len(starts) else 0
    total = int(starts[-1]) - first if len(starts) else 0
    columns = [column.slice(first, total) for column in columns]
    rows = RowCodec(_item_schema(leaf.type), canonical).encode(columns, total)
    offsets = pa.array(starts - first)
    sizes = fixed(lengths(rows).astype("<u4"))
    lists = [pa.LargeListArray.from_arrays(offsets, part) for part in (sizes, rows)]
    joined = [pc.binary_join(part, pa.scalar(b"", BYTES)) for part in lists]
    everything = concat(fixed(counts.astype("<u4")), *joined)
    return pc.if_else(pa.array(valid(leaf)), everything, pa.scalar(b"", BYTES))


def _from_variable(raw: Bytes, kind: pa.DataType) -> pa.Array:
    if not _is_list(kind):
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return raw.cast(pa.large_string()).cast(kind) if text else raw.cast(kind)
    present = valid(raw)
    data, bounds = buffers(raw)
    starts = np.where(present, bounds[:-1], 0)
    counts = _words(data, starts, np.where(present, 1, 0))
    full = np.zeros(len(raw), np.int64)
    full[present] = counts
    sizes = _words(data, starts + 4, full)
    # An item begins behind its list's count and sizes, and behind the items before it in the list:
    # those are all items before it less those before its list.
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(full, out=offsets[1:])
    ahead = np.cumsum(sizes) - sizes
    base = np.repeat(starts + 4 + 4 * full - _at(ahead, offsets[:-1]), full)
    columns = RowCodec(_item_schema(kind)).decode(slices(data, base + ahead, sizes))
    ends = pa.array(offsets, mask=np.append(~present, False))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(ends.cast(pa.int32()), *columns, type=kind)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(ends, columns[0], type=kind)
    return pa.ListArray.from_arrays(ends.cast(pa.int32()), columns[0], type=kind)


def _words(data: Octets, starts: Ints, counts: Ints) -> Ints:
    """``counts[i]`` uint32 from each start, one after the other."""
    block = slices(data, starts, 4 * counts)
    raw, bounds = buffers(block)
    return np.ascontiguousarray(raw[: bounds[-1]]).view("<u4").astype(np.int64)


def _at(values: Ints, positions: Ints) -> Ints:
    if not len(values):
        return np.zeros(len(positions), np.int64)
    return values[np.minimum(positions, len(values) - 1)]


def bytes_codec(columns: int) -> RowCodec:
    """Make the codec of rows of so many byte strings, each perhaps null."""
    return RowCodec(pa.schema([pa.field(str(number), BYTES) for number in range(columns)]))


@dataclass(frozen=True)
class KeyCodec:
    """Keys as bytes: one column of text or bytes is itself, and sorts so; others are a row."""

    schema: pa.Schema

    @property
    def _plain(self) -> bool:
        return len(self.schema) == 1 and is_text(self.schema.field(0).type)

    def encode(self, columns: list[pa.Array], rows: int) -> Bytes:
        """Null where any of the columns is null: such a key equals nothing."""
        if self._plain:
            return as_bytes(columns[0])
        present = np.logical_and.reduce([valid(column) for column in columns])
        whole = RowCodec(self.schema, canonical=True).encode(columns, rows)
        return masked(whole, present)

    def decode(self, keys: Bytes) -> list[pa.Array]:
        if self._plain:
            return [_from_variable(keys, self.schema.field(0).type)]
        return RowCodec(self.schema).decode(keys)
