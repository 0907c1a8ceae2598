"""Foreign-key table joins on Spark, kept up to date on both sides (KIP-213).

Examples
--------
>>> joined = fk_join(orders, customers, extractor="customer_id")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkjoin import aggregates as aggregates
    from fkjoin import kafka as kafka
    from fkjoin import metrics as metrics
    from fkjoin import sinks as sinks
    from fkjoin import testing as testing
    from fkjoin.analysis.windows import window
    from fkjoin.checkpoint.failure import QueryError, failure
    from fkjoin.checkpoint.query import Query
    from fkjoin.checkpoint.reader import StateReader
    from fkjoin.checkpoint.saved import read_state
    from fkjoin.errors import FkJoinError, FormatError, InvariantError, SessionError, TopologyError
    from fkjoin.join import cogroup, fk_join
    from fkjoin.sessions.settings import session
    from fkjoin.table import Table

__version__ = "0.1.0"

__all__ = [
    "FkJoinError",
    "FormatError",
    "InvariantError",
    "Query",
    "QueryError",
    "SessionError",
    "StateReader",
    "Table",
    "TopologyError",
    "cogroup",
    "failure",
    "fk_join",
    "read_state",
    "session",
    "window",
]

_HOMES = {
    "Query": "fkjoin.checkpoint.query",
    "QueryError": "fkjoin.checkpoint.failure",
    "StateReader": "fkjoin.checkpoint.reader",
    "Table": "fkjoin.table",
    "cogroup": "fkjoin.join",
    "failure": "fkjoin.checkpoint.failure",
    "fk_join": "fkjoin.join",
    "read_state": "fkjoin.checkpoint.saved",
    "session": "fkjoin.sessions.settings",
    "window": "fkjoin.analysis.windows",
}

_MODULES = ("aggregates", "kafka", "metrics", "sinks", "testing")
"""Modules that users call, too."""


def __getattr__(name: str) -> Any:
    """Import names when they are used: Spark's workers start many times, and need little of it."""
    if name in _MODULES:
        return importlib.import_module(f"fkjoin.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "fkjoin.errors")), name)


def __dir__() -> list[str]:
    """The public names, for completion, without what the module itself imports."""
    return [*__all__, *_MODULES, "__version__"]
