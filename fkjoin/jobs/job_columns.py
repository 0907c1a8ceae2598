"""The columns that a job file names, looked up in the schemas that it has.  Nothing of Spark is needed for that.

*Law*: what Spark would take is never refused.  Names alone are looked up, and expressions are left to Spark.  A table has all
columns that it may have, or they are unknown (None), and nothing of it is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fkjoin.errors import nearest
from fkjoin.jobs.job_kinds import JobError
from fkjoin.spark.schemas import listed

if TYPE_CHECKING:
    from fkjoin.jobs.job_sections import JobSection

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NO_COLUMNS = {
    *("null", "true", "false", "current_date", "current_timestamp", "localtimestamp", "current_time"),
    *("current_user", "session_user", "user", "current_catalog", "current_database", "current_schema"),
}
"""Expressions of Spark's that read like names."""
_NAMED = re.compile(r"(.+?)\s+as\s+(\w+)", re.IGNORECASE | re.DOTALL)

KnownColumns = Mapping[str, Any] | None
"""The columns of a table by name, each with those of its fields that are known."""
Texts = str | Sequence[str] | None
"""The value of a setting that has expressions."""


def require_columns(spec: JobSection, order: Sequence[tuple[str, str]]) -> None:
    """Raise ``JobError`` for the name of a column that no row can have; ``order``: see ``in_order``."""
    known = {name: table.known_columns(name) for name, table in spec.tables.items()}
    for kind, name in order:
        known[name] = spec.operators[kind, name].known_columns(f"{kind}.{name}", known)


def named(names: Iterable[str]) -> dict[str, KnownColumns]:
    """Columns of these names, of whose fields nothing is known."""
    return {name.lower(): None for name in names}


def require_known(where: str, texts: Texts, columns: KnownColumns, of: str) -> None:
    """Raise ``JobError`` if one of the texts is the name of a column that is not among the columns."""
    for text in listed(texts or []):
        alias = _NAMED.fullmatch(text.strip())
        expression = text.strip() if alias is None else alias[1].strip()
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


def with_columns(columns: KnownColumns, texts: Texts) -> KnownColumns:
    """The columns, and those that expressions make; unknown where one does not say its name."""
    names = []
    for text in listed(texts or []):
        alias = _NAMED.fullmatch(text.strip())
        if alias is None and not _NAME.fullmatch(text.strip()):
            return None
        names.append(text.strip().rpartition(".")[2] if alias is None else alias[2])
    return None if columns is None else {**columns, **named(names)}


def names_in(schema: str) -> list[str] | None:
    """The names of a schema's columns; None where they cannot be told."""
    columns = split_arguments(schema, brackets="(<)>")
    names = [re.match(r"[A-Za-z_]\w*(?=[\s:])", column) for column in columns]
    return None if None in names else [name[0] for name in names if name is not None]


def split_arguments(text: str, brackets: str = "([{)]}") -> list[str]:
    """Cut SQL text at its commas, but for those in quotes or ``brackets``: opening ones first."""
    opening, closing = brackets[: len(brackets) // 2], brackets[len(brackets) // 2 :]
    parts, depth, quote = [""], 0, ""
    for index, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and text[index - 1] != "\\" else quote
        elif sign in "'\"`":
            quote = sign
        depth += (not quote) * ((sign in opening) - (sign in closing))
        if sign == "," and not quote and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]
