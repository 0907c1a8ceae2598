"""Tables in memory for your own tests, without Spark and a JVM.

You can make them crash, read twice and reorder. Rows are dicts of what JSON can write. The stages
are the stages that run on Spark; the kits imitate what lies between them. ``Driver`` runs a table
of any topology, and needs a session for that. ``SinkContract`` tests a sink of your own.

Examples
--------
>>> test = JoinTest(extractor="customer", how="left")
>>> ada, order = right("c1", {"name": "Ada"}), left("o1", {"customer": "c1"})
>>> results = test.feed(ada, order, CRASH, left("o1", None), DUPLICATE)
>>> assert test.table == {}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fkjoin.testing.kit import CRASH, DUPLICATE, REORDER, Change, Result, change, event, left, right
from fkjoin.testing.operators import (
    AggregateTest,
    EnrichTest,
    FlatMapTest,
    JoinTest,
    KeyJoinTest,
    MembersTest,
)

if TYPE_CHECKING:
    from fkjoin.testing.driver import Driver, DriverStore, TableChange
    from fkjoin.testing.driver_input import DriverInput
    from fkjoin.testing.sink import SinkContract

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
    """Names whose modules import nearly all of the library, which takes seconds.

    Other tests need little of it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "sink" if name == "SinkContract" else "driver"
    return getattr(importlib.import_module(f"fkjoin.testing.{home}"), name)


def __dir__() -> list[str]:
    return __all__
