"""Work on a catalog of Iceberg tables: repeated through outages and other writers' commits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from fkjoin.errors import TopologyError, first_line
from fkjoin.sinks.retry import in_a_line

_MENDED = (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
_OF_A_DATABASE = {"sqlalchemy.DBAPIError", "sqlalchemy.TimeoutError"}
"""A catalog in a database has SQLAlchemy's errors; other catalogs do without that package."""
_NOTHING_YET = re.compile(
    r"(no such table: |relation \")iceberg_tables|iceberg_tables' doesn't exist"
)
"""Texts of databases in which no catalog has made its tables."""
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET"
    r"|[Pp]ermission denied|Read-only file|unable to open database file|readonly database"
    r"|authentication failed|(database|role) \S+ does not exist"
)
"""Texts of a storage or a database that no repetition repairs."""
_SQLITE, _EMPTY = re.compile(r"sqlite(?:\+\w+)?:///(?!file:)([^?]+)"), "sqlite:///:memory:"
"""Address of a catalog in a file of SQLite, and of an empty one in memory."""
_T = TypeVar("_T")


@lru_cache(maxsize=16)
def _loaded(name: str, properties: frozenset[tuple[str, str]]) -> Catalog:
    return load_catalog(name, **dict(properties))


def catalog_of(name: str, properties: Mapping[str, str], *, make: bool) -> Catalog:
    """Return the catalog, one for each process.

    ``TopologyError`` if the package has none of such properties.  ``make``: a catalog in a database
    gets its tables there, if it lacks them.  Without it nothing is made.
    """
    chosen = dict(properties) if make else {**properties, **_looked_at(name, properties)}
    try:
        return _loaded(name, frozenset(chosen.items()))
    except (ImportError, NoSuchPropertyException, NotInstalledError, ValueError) as error:
        if isinstance(error, OSError):  # of the client of a catalog that is reached by HTTP
            raise
        why = in_a_line(first_line(error), properties)
    raise TopologyError(
        f"catalog: {name!r} cannot be opened: {why}. Give its properties as options, "
        "or configure a catalog of that name in pyiceberg"
    )


def _looked_at(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Properties with which a look at a catalog makes nothing.

    SQLite would make its file, so an empty catalog stands for it.
    """
    address = _SQLITE.match(str({**_configured(name), **properties}.get("uri")))
    file = None if address is None else Path(address[1])
    is_unmade = file is not None and not file.exists() and os.access(file.parent, os.W_OK | os.X_OK)
    return {"init_catalog_tables": "false"} | ({"uri": _EMPTY} if is_unmade else {})


@lru_cache(maxsize=16)
def _configured(name: str) -> dict[str, Any]:
    """The properties of a catalog in pyiceberg's configuration."""
    return dict(Config().get_catalog_config(name) or {})


def table_in(catalog: Catalog, name: str) -> Table | None:
    """Return a table as it is; None if it is not there, or there is nothing yet."""
    return _if_there(lambda: catalog.load_table(name))


def place_in(catalog: Catalog, namespace: str) -> str | None:
    """Return the place of a namespace's tables; None without any.

    It is an empty text where the catalog keeps that to itself.
    """
    if not hasattr(catalog, "engine"):  # a server has a place of its own
        return ""
    about = _if_there(lambda: catalog.load_namespace_properties(namespace)) or {}
    return about.get("location") or catalog.properties.get("warehouse")


def _if_there(load: Callable[[], _T]) -> _T | None:
    try:
        return load()
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except Exception as error:
        if _kinds(error).isdisjoint(_OF_A_DATABASE) or not _NOTHING_YET.search(str(error)):
            raise
        return None


def mends(error: BaseException) -> bool:
    """Tell whether the same work may succeed later, unchanged."""
    if isinstance(error, _MENDED):
        return True
    if isinstance(error, RESTError | ValueError):
        return False
    return of_a_catalog(error) and not _REFUSED.search(str(error))


def of_a_catalog(error: BaseException) -> bool:
    """Tell whether a catalog or a storage says it."""
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OSError | RESTError) or not _kinds(error).isdisjoint(_OF_A_DATABASE)


def _kinds(error: BaseException) -> set[str]:
    """The names of an error's classes, with their packages."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
