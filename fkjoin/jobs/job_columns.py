"""The columns that a job file names, looked up in the schemas that it has.  Nothing of Spark is needed for that.

*Law*: what Spark would take is never refused.  Names alone are looked up, and expressions are left to Spark.  A table has all
columns that it may have, or they are unknown (None), and nothing of it is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fkjoin.errors import nearest
from fkjoin.jobs.job_kinds import JobError, located
from fkjoin.jobs.job_operators import arguments_of, split_arguments, wanted_of
from fkjoin.jobs.job_sections import FormatSection
from fkjoin.spark.schemas import listed

if TYPE_CHECKING:
    from fkjoin.jobs.job_sections import JobSection, TableSection

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_GLOB = re.compile(r"[\[\]{}*?=]")
_NO_COLUMNS = {
    *("null", "true", "false", "current_date", "current_timestamp", "localtimestamp", "current_time"),
    *("current_user", "session_user", "user", "current_catalog", "current_database", "current_schema"),
}
"""Expressions of Spark's that read like names."""
_NAMED = re.compile(r"(.+?)\s+as\s+(\w+)", re.IGNORECASE | re.DOTALL)

KnownColumns = Mapping[str, Any] | None
"""The columns of a table by name, each with those of its fields that are known."""


def require_columns(spec: JobSection, order: Sequence[tuple[str, str]]) -> None:
    """Raise ``JobError`` for the name of a column that no row can have; ``order``: see ``in_order``."""
    known: dict[str, KnownColumns] = {name: _of_table(name, table) for name, table in spec.tables.items()}
    for kind, name in order:
        section, where = getattr(spec, kind)[name], f"{kind}.{name}"
        known[name] = _LOOKED_UP[kind](where, section, known) if kind in _LOOKED_UP else None


def _of_table(name: str, table: TableSection) -> KnownColumns:
    """Return the columns of a table; unknown where files are elsewhere, or folders may give it more of them."""
    if table.topic is not None:
        parts = [_of_format(f"tables.{name}", table.key, "key"), _of_format(f"tables.{name}", table.value, "value")]
        in_record = [column for part in parts for column in part or ()]
        return None if None in parts else _unknown_fields([*in_record, "headers", "_position"])
    columns = None if table.columns is None else _names_in(table.columns)
    path = "" if table.path is None else table.path.removeprefix("file://")
    if columns is None or _GLOB.search(path) or not Path(path).is_dir() or any(Path(path).glob("*=*")):
        return None
    found = _unknown_fields([*columns, "_metadata"])
    for setting in ("key", "version", "timestamp", "deleted"):
        _require(f"tables.{name}.{setting}", listed(getattr(table, setting) or []), found, name)
    return found


def _of_format(where: str, given: Any, name: str) -> list[str] | None:
    if not isinstance(given, FormatSection):
        if isinstance(given, str) and given not in ("string", "bytes"):
            raise JobError(f'{where}.{name}: {given!r} is no format: write "string", "bytes" or {{format = …, schema = …}}')
        return [name]
    if given.format in ("string", "bytes"):
        return [given.name or name]
    columns = None if given.columns is None else _names_in(given.columns)
    return columns if columns is None or given.text is None else [*columns, given.text]


def _names_in(schema: str) -> list[str] | None:
    """Return the names of a schema's columns; None where they cannot be told."""
    names = [re.match(r"[A-Za-z_]\w*(?=[\s:])", column) for column in split_arguments(schema, brackets="(<)>")]
    return None if None in names else [name[0] for name in names if name is not None]


def _unknown_fields(names: Iterable[str]) -> dict[str, KnownColumns]:
    return {name.lower(): None for name in names}


def _require(where: str, texts: Sequence[str], columns: KnownColumns, of: str) -> None:
    """Raise ``JobError`` if one of the texts is the name of a column that is not among the columns."""
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        expression = text.strip() if named is None else named[1].strip()
        if columns is None or not _NAME.fullmatch(expression) or expression.lower() in _NO_COLUMNS:
            continue
        head, _, rest = expression.lower().partition(".")
        fields = columns.get(head)
        if head not in columns or (fields is not None and rest and rest.partition(".")[0] not in fields):
            paths = _paths(columns)
            raise JobError(f"{where}: {of} has no column {expression!r}; {nearest(expression.lower(), paths)}")


def _paths(columns: Mapping[str, Any]) -> list[str]:
    paths = []
    for name, fields in columns.items():
        paths += [name] if fields is None else [f"{name}.{field}" for field in fields]
    return paths


def _made(texts: Sequence[str]) -> list[str] | None:
    """Return the names of the columns that expressions make; None where one of them is not told."""
    names = []
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        if named is None and not _NAME.fullmatch(text.strip()):
            return None
        names.append(text.strip().rpartition(".")[2] if named is None else named[2])
    return names


def _of_join(where: str, join: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    left, right = known.get(join.left), known.get(join.right)
    _require(f"{where}.extractor", listed(join.extractor or []), left, f"left table {join.left}")
    if left is None or right is None:
        return None
    _require(f"{where}.joiner", listed(join.joiner or []), {"left": left, "right": right}, "the joined row")
    made = None if join.joiner is None else _made(listed(join.joiner))
    keys = {**right, **left}  # and more: which of them are the key is not looked up
    if join.joiner is None:
        return {**keys, "left": left, "right": right}
    return None if made is None else keys | _unknown_fields(made)


def _of_children(where: str, children: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    _require(f"{where}.extractor", listed(children.extractor), known.get(children.left), f"left table {children.left}")
    columns = known.get(children.right)
    return None if columns is None else {**columns, children.column.lower(): None}


def _of_aggregate(where: str, aggregate: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    columns, of = known.get(aggregate.of), f"table {aggregate.of}"
    _require(f"{where}.group_by", listed(aggregate.group_by), columns, of)
    if aggregate.window is not None:
        _require(f"{where}.window.time", [aggregate.window.time], columns, of)
    for title, text in aggregate.columns.items():
        with located(where, aggregate):
            wanted_of(title, text)
        _require(f"{where}.columns.{title}", arguments_of(text), columns, of)
    keys = _made(listed(aggregate.group_by))
    return None if keys is None or aggregate.window is not None else _unknown_fields([*keys, *aggregate.columns])


def _of_merge(where: str, merge: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    return known.get(merge.of[0])


def _of_view(where: str, view: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    columns = known.get(view.of)
    texts = listed(view.columns or [])
    _require(f"{where}.filter", listed(view.filter or []), columns, f"table {view.of}")
    _require(f"{where}.columns", texts, columns, f"table {view.of}")
    made = _made(texts)
    return None if columns is None or made is None else {**columns, **_unknown_fields(made)}


def _of_flat_map(where: str, flat_map: Any, known: Mapping[str, KnownColumns]) -> KnownColumns:
    columns = known.get(flat_map.of)
    _require(f"{where}.rows", listed(flat_map.rows or []), columns, f"table {flat_map.of}")
    if flat_map.rows is not None:
        return None
    _require(f"{where}.key", listed(flat_map.key), columns, f"table {flat_map.of}")
    keys = _made(listed(flat_map.key))
    return None if columns is None or keys is None else {**columns, **_unknown_fields(keys)}


_LOOKED_UP = {
    "joins": _of_join,
    "children": _of_children,
    "aggregates": _of_aggregate,
    "merges": _of_merge,
    "views": _of_view,
    "flat_maps": _of_flat_map,
}
