"""Columns that an expression reads, as far as its text says, where Spark's analyzer cannot be asked.

*Law*: all that it reads is found.  A text names each column that it reads, has a ``*``, or makes a
name with ``identifier``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from fkjoin.codec.rows import Path

_FIELD = re.compile(r"`?\s*\.\s*(?:`((?:[^`]|``)*)`|(\w+))")
"""Pattern of what follows a struct's name where a field of it is meant."""
_STAR = re.compile(r"(?:^|[^\w`)\]'\"\s.])\s*\*")
"""A ``*`` that multiplies nothing."""
_MADE = re.compile(r"(?<!\w)identifier\s*(?:\(|--|/\*)", re.IGNORECASE)
"""A function that makes a name of a string."""
_STRING = re.compile(
    r"(`(?:[^`]|``)*`)|(?<!\w)r'[^']*'|'(?:[^'\\]|\\.)*'", re.IGNORECASE | re.DOTALL
)
"""A name in backticks, which may have quotes in it, or a string, as Spark's lexer has them."""
_OTHER_QUOTES = re.compile(r"\"|--|/\*|\$")
"""The begin of what may hold a lone quote: comments, and strings of other kinds, of which some may be names."""


def paths_named(text: str | None, columns: pa.Schema) -> list[Path]:
    """The columns that the text may read, and fields where no more of a struct is named; None: all columns."""
    if text is None or _STAR.search(text) or _MADE.search(text):
        return [(name,) for name in columns.names]
    return [path for field in columns for path in _paths(field, text)]


def without_strings(text: str) -> str:
    """The text of SQL with empty strings; as it is where it cannot be told which of its quotes begin one."""
    if _OTHER_QUOTES.search(text):
        return text
    return _STRING.sub(lambda found: found[1] or "''", text)


def _paths(field: pa.Field, text: str) -> Iterator[Path]:
    name = re.escape(field.name.replace("`", "``"))
    # a function that is called like the column has a parenthesis next
    bounds = (r"(?<!\w)", r"(?!\w)(?!\s*\()") if re.fullmatch(r"\w+", field.name) else ("", "")
    found = [
        text[match.end() :]
        for match in re.finditer(f"{bounds[0]}{name}{bounds[1]}", text, re.IGNORECASE)
    ]
    if not field.name.isascii():  # which letters are one to Spark is its affair
        yield (field.name,)
    if not found or not field.name.isascii():
        return
    below = [_FIELD.match(rest) if pa.types.is_struct(field.type) else None for rest in found]
    inner = {
        one[1].replace("``", "`") if one[1] is not None else one[2]
        for one in below
        if one is not None
    }
    known = [one.name for one in field.type] if pa.types.is_struct(field.type) else []
    meant = {item.lower() for item in inner}
    fields = [item for item in known if item.lower() in meant]
    if None in below or len({item.lower() for item in fields}) < len(meant):
        yield (field.name,)
    else:
        yield from ((field.name, item) for item in fields)
