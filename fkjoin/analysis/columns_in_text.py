"""Columns that an expression reads, as its text says, where Spark's analyzer cannot be asked.

*Law*: all that it reads is found.  A text names each column that it reads, has a ``*``, or makes a
name with ``identifier``.
"""

from __future__ import annotations

import itertools
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
"""Beginnings of what may hold a lone quote.

These are comments, and strings of other kinds, of which some may be names.
"""


def paths_named(text: str | None, columns: pa.Schema) -> list[Path]:
    """The columns that the text may read, and fields where no more of a struct is named.

    Without a text (None), all columns.
    """
    if text is None or _STAR.search(text) or _MADE.search(text):
        return [(name,) for name in columns.names]
    return list(itertools.chain.from_iterable(_paths(field, text) for field in columns))


def without_strings(text: str) -> str:
    """The text of SQL with empty strings.

    It is unchanged where it is unknown which of its quotes begin a string.
    """
    if _OTHER_QUOTES.search(text):
        return text
    return _STRING.sub(lambda match: match[1] or "''", text)


def _paths(field: pa.Field, text: str) -> Iterator[Path]:
    if not field.name.isascii():  # which letters are one to Spark is its affair
        yield (field.name,)
        return
    name = re.escape(field.name.replace("`", "``"))
    # a function that is called like the column has a parenthesis next
    bounds = (r"(?<!\w)", r"(?!\w)(?!\s*\()") if re.fullmatch(r"\w+", field.name) else ("", "")
    uses = list(re.finditer(f"{bounds[0]}{name}{bounds[1]}", text, re.IGNORECASE))
    if not uses:
        return
    if not pa.types.is_struct(field.type):
        yield (field.name,)
        return
    matches = [_FIELD.match(text[use.end() :]) for use in uses]
    meant = {_inner_name(match).lower() for match in matches if match is not None}
    fields = [part.name for part in field.type if part.name.lower() in meant]
    if None in matches or len({item.lower() for item in fields}) < len(meant):
        yield (field.name,)
    else:
        yield from ((field.name, item) for item in fields)


def _inner_name(match: re.Match[str]) -> str:
    return match[2] if match[1] is None else match[1].replace("``", "`")
