"""For your own tests: tables in memory that can be made to crash, to read twice and to reorder; no Spark, no JVM.

Rows are dicts of what JSON can write.  The stages are those that run on Spark; what is between them is played here.
``Driver`` runs a table of any topology, and needs a session for that.  ``SinkContract`` tries a sink of your own.

Examples
--------
>>> test = JoinTest(extractor="customer", how="left")
>>> results = test.feed(right("c1", {"name": "Ada"}), left("o1", {"customer": "c1"}), CRASH, left("o1", None), DUPLICATE)
>>> assert test.table == {}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fkjoin.testing.aggregate import AggregateTest
from fkjoin.testing.changes import change, event, left, right
from fkjoin.testing.enrich import EnrichTest
from fkjoin.testing.flat_map import FlatMapTest
from fkjoin.testing.join import JoinTest
from fkjoin.testing.key_join import KeyJoinTest
from fkjoin.testing.kit import CRASH, DUPLICATE, REORDER, Change, Result
from fkjoin.testing.members import MembersTest
from fkjoin.testing.sink import SinkContract

if TYPE_CHECKING:
    from fkjoin.testing.driver import Driver
    from fkjoin.testing.driver_ends import DriverInput, DriverStore, TableChange

__all__ = [
    "CRASH",
    "DUPLICATE",
    "REORDER",
    "AggregateTest",
    "Change",
    "Driver",
    "DriverInput",
    "DriverStore",
    "EnrichTest",
    "FlatMapTest",
    "JoinTest",
    "KeyJoinTest",
    "MembersTest",
    "Result",
    "SinkContract",
    "TableChange",
    "change",
    "event",
    "left",
    "right",
]


def __getattr__(name: str) -> Any:
    """Names of the driver need Spark's Python package, which the other kits do not."""
    if name in ("Driver", "DriverInput", "DriverStore", "TableChange"):
        home = "driver" if name == "Driver" else "driver_ends"
        return getattr(importlib.import_module(f"fkjoin.testing.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
