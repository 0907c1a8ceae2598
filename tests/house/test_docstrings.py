"""Docstrings of public names are numpydoc: ``help()``, editors and the reference show their parameters as tables."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import griffe

import fkjoin
from fkjoin import kafka, sinks, testing
from fkjoin.events import Enriched
from fkjoin.grouped import Grouped
from tests.support.reference import reference

MADE_BY_METHODS = (fkjoin.Table, Grouped, Enriched)
OF_THE_ENGINE = tuple(getattr(module, name) for module in (kafka, sinks) for name in module.__all__ if name != "RETRY_S")
"""Formats and sinks: the reference shows methods that have a docstring, others are told at ``Format`` and ``Sink``."""


def entries() -> Iterator[tuple[str, Any, list[str] | None]]:
    """Yield the names that the reference shows, their objects, and the members that it lists."""
    for name, members in reference().items():
        above, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(above), last)
        if isinstance(found, ModuleType):
            yield from ((f"{name}.{member}", getattr(found, member), None) for member in members or [])
        else:
            yield name, found, members


def test_public_docstrings_name_no_files_of_a_checkout() -> None:
    """Readers of ``help()`` and of the site may have none: pages are named by their titles."""
    named = {name: re.findall(r"\bdocs/\S+", inspect.getdoc(of) or "") for name, of in PUBLIC.items()}
    assert {name: found for name, found in named.items() if found} == {}


def documented() -> Iterator[tuple[str, Any]]:
    """Functions, classes, methods and properties of the reference; no constants."""
    for name, found, members in entries():
        if callable(found):
            yield name, found
        if inspect.isclass(found):
            yield from ((f"{name}.{member}", one) for member, one in members_of(found, members))


def members_of(of: type, listed: list[str] | None) -> Iterator[tuple[str, Any]]:
    for name in listed or dir(of):
        one = inspect.getattr_static(of, name)
        homes = of.__mro__[: 1 if of in OF_THE_ENGINE else None]
        ours = any(name in vars(home) for home in homes if home.__module__.startswith("fkjoin"))
        shown = one.__doc__ or of not in OF_THE_ENGINE
        if ours and shown and not name.startswith("_") and isinstance(one, classmethod | property | FunctionType):
            yield name, one


PUBLIC = dict(documented())


def sections(of: Any) -> dict[str, Any]:
    parsed = griffe.parse_numpy(griffe.Docstring(inspect.getdoc(of) or ""))
    return {section.kind.value: section.value for section in parsed}


def signature(of: Any) -> list[str]:
    """The names of a signature as they are documented; none of what is no call, or not the user's."""
    made = inspect.isclass(of) and {"__init__", "__new__"} & set(vars(of)) and not getattr(of, "_is_protocol", False)
    if isinstance(of, property) or of in MADE_BY_METHODS or (inspect.isclass(of) and not made):
        return []
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    about = inspect.signature(getattr(of, "__func__", of)).parameters.values()
    names = [stars.get(one.kind, "") + one.name for one in about]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def test_parameters_are_those_of_the_signature() -> None:
    for name, of in PUBLIC.items():
        found = sections(of)
        listed = [*found.get("parameters", []), *found.get("attributes", [])]
        assert [one.name for one in listed] == signature(of), name
        untyped = [one.name for one in listed if one.annotation is None and not one.description.startswith("See")]
        assert untyped == [], name


def returns(found: Any) -> bool:
    """Tell whether it is a call that returns something."""
    return not inspect.isclass(found) and getattr(found, "__annotations__", {}).get("return") != "None"


def test_what_is_returned_is_said_and_examples_are_python() -> None:
    silent = [name for name, of in PUBLIC.items() if returns(of) and not {"returns", "yields"} & set(sections(of))]
    assert silent == []
    for name, of in PUBLIC.items():
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(of) or ""):
            compile(example.source, name, "exec")


def test_examples_of_tests_without_spark_are_true() -> None:
    runner = doctest.DocTestRunner()
    names = {name: getattr(testing, name) for name in testing.__all__}
    finder = doctest.DocTestFinder()
    kits = (
        testing,
        *(names[name] for name in ("JoinTest", "AggregateTest", "FlatMapTest", "left", "right", "change", "event")),
    )
    for test in [one for kit in kits for one in finder.find(kit, kit.__name__, globs=names)]:
        assert runner.run(test).failed == 0, test.name
    assert runner.tries > 8
