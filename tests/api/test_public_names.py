"""Names that completion and ``help`` show: those of the reference, and no others."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

import pytest

import fkjoin
from fkjoin import kafka, sinks
from fkjoin.events import Enriched
from fkjoin.grouped import Grouped
from tests.support.places import ROOT
from tests.support.reference import reference

MODULES = ("aggregates", "kafka", "metrics", "sinks", "testing")


def public(of: Any) -> list[str]:
    return sorted(name for name in dir(of) if not name.startswith("_"))


@pytest.mark.parametrize(
    "name", ["fkjoin.Table", "fkjoin.grouped.Grouped", "fkjoin.events.Enriched", *(f"fkjoin.{module}" for module in MODULES)]
)
def test_what_completion_offers_is_in_the_reference(name: str) -> None:
    above, _, last = name.rpartition(".")
    assert public(getattr(importlib.import_module(above), last)) == sorted(reference()[name] or [])


def test_what_the_package_offers_is_in_the_reference() -> None:
    direct = {name.removeprefix("fkjoin.") for name in reference() if name.count(".") == 1}
    assert set(public(fkjoin)) == direct == {*fkjoin.__all__, *MODULES}


def test_every_name_that_is_offered_is_there() -> None:
    for name in public(fkjoin):
        assert getattr(fkjoin, name).__doc__, name


def test_the_modules_are_attributes_and_imported_when_they_are_asked_for() -> None:
    """In a process of its own: each of Spark's workers imports the package."""
    code = f"""
import sys
before = set(sys.modules)
import fkjoin
dir(fkjoin)
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names))
for name in {MODULES!r}:
    assert getattr(fkjoin, name).__name__ == f"fkjoin.{{name}}"
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "['fkjoin']\n"


def test_an_unknown_name_is_said_to_be_none() -> None:
    with pytest.raises(AttributeError, match="module 'fkjoin' has no attribute 'Tabel'"):
        fkjoin.Tabel  # noqa: B018


def exported() -> dict[str, type]:
    """Classes that users meet, by name."""
    places = [fkjoin, *(importlib.import_module(f"fkjoin.{module}") for module in MODULES)]
    offered = [getattr(place, name) for place in places for name in public(place)]
    return {one.__name__: one for one in (*offered, Grouped, Enriched) if inspect.isclass(one)}


CLASSES = exported()
MADE_BY_METHODS = {"Grouped", "Table", "Enriched"}
"""Classes that users do not make, and that say nothing of how."""
MADE_BY_THE_DRIVER = {"DriverInput", "DriverStore"}
ENGINES = {name for module in (kafka, sinks) for name in module.__all__}
"""Formats and sinks, whose methods the engine calls; ``Format`` and ``Sink`` document them."""


@pytest.mark.parametrize("name", CLASSES)
def test_what_users_meet_shows_nothing_of_its_inside(name: str) -> None:
    of = CLASSES[name]
    if is_dataclass(of):
        inner = [field for field in fields(of) if field.name.startswith("_")]
        assert not of.__dataclass_params__.repr or [field.name for field in inner if field.repr] == []
        assert name in MADE_BY_THE_DRIVER or [field.name for field in inner if field.init] == []
    if name in MADE_BY_METHODS:
        assert not inspect.signature(of).parameters
    ours = [one for home in of.__mro__ if home.__module__.startswith("fkjoin") for one in vars(home).items()]
    methods = {title: one for title, one in ours if isinstance(one, classmethod | property | FunctionType)}
    assert name in ENGINES or [title for title in methods if not title.startswith("_") and not getattr(of, title).__doc__] == []


def test_a_class_that_users_keep_has_a_repr_that_says_what_it_is() -> None:
    bases = {"Format", "Sink", "TableSink", "SinkContract"}
    """Classes to be implemented or inherited from."""
    assert {name for name, of in CLASSES.items() if of.__repr__ is object.__repr__} - bases == set()
    assert repr(sinks.Parquet("lake/joined")) == "Parquet(path='lake/joined', retry_s=60.0)"
    watched = fkjoin.metrics.Metrics()
    assert repr(watched) == "Metrics[queries: none]"
    watched._start("sink-out")
    assert repr(watched) == "Metrics[queries: sink-out]"
