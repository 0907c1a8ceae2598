"""Names of columns, as they are quoted for Spark.

They are written out where a ``*`` stands for them, and refused where they cannot be told apart.
Spark and its Parquet reader compare names without case; so does everything here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fkjoin.errors import TopologyError
from fkjoin.stages.complete import UNAVAILABLE

OPERATION, TIMESTAMP = "_operation", "_timestamp"
VERSIONS = ("_version", "_left_version", "_right_version")
POSITION = "_position"
"""Column of a topic's table that says where a row's record was read, if it is asked for."""
ADDED = (OPERATION, TIMESTAMP, *VERSIONS)
"""Columns that ``Table.changes`` adds to a table's own."""
_OURS = ("__fkjoin_", "_fkjoin_")
"""Prefix of names that the engine and its sinks give to columns beside a table's own."""


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(*path: str) -> str:
    """A column, or a field in one, as Spark's expressions name it, whatever is in the names."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def quoted_if_needed(name: str) -> str:
    """The name as it is where it is one in SQL as it stands, else in backticks."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def named(expression: object, known: Sequence[str]) -> str | None:
    """The column of ``known`` that ``expression`` is the name of, as it is or in backticks.

    None if it is more than a name.
    """
    if not isinstance(expression, str):
        return None
    if expression in known:
        return expression
    return next((name for name in known if expression == quoted(name)), None)


def is_added(name: str) -> bool:
    """Tell whether results add a column of that name."""
    return name.lower() in ADDED


def twice(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that are the same to Spark."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None


def require_apart(
    argument: str, names: Iterable[str], hint: str = "give one of them an alias"
) -> None:
    """``TopologyError`` if two columns have one name, or a column has none or the engine's own."""
    chosen = list(names)
    if (pair := twice(chosen)) is not None:
        first, second = pair
        wording = f"called {first!r}"
        if first != second:
            wording += f" and {second!r}, which Spark does not distinguish"
        raise TopologyError(f"{argument}: two columns are {wording}; {hint}")
    for name in chosen:
        if not name:
            raise TopologyError(
                f"{argument}: a column has no name, and no expression can name it; {hint}"
            )
        # ``UNAVAILABLE`` is a format's, and goes with its rows.
        if name.lower().startswith(_OURS) and name != UNAVAILABLE:
            raise TopologyError(
                f"{argument}: names that begin like {name!r} are reserved for fkjoin; {hint}"
            )


def require_results(table: str, columns: Iterable[str]) -> None:
    """``TopologyError`` if a table's column has a name that results add.

    It can be read by its name, but not be written.
    """
    for name in columns:
        if is_added(name):
            raise TopologyError(
                f"{table}: {name!r} is the name of a column that results add ({', '.join(ADDED)}): "
                "rename the table's column before you write it, in the joiner or aggregate, with "
                f'map_values(["…", "{name} as …"]) or in the stream; read fkjoin\'s own output '
                "with Table.from_fkjoin"
            )


def require_beside(
    key: Iterable[str], argument: str, names: Iterable[str], hint: str = "give it an alias"
) -> None:
    """Check like ``require_apart``, and that no column has the name of one of the ``key``."""
    chosen = list(names)
    require_apart(argument, chosen)
    for name in chosen:
        if name.lower() in (own.lower() for own in key):
            raise TopologyError(
                f"{argument}: column {name!r} is already there as the key; leave it out, or {hint}"
            )
