"""The names that the pages of the reference show, and what signatures say of their parameters."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from inspect import Parameter
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args

import yaml

import fkjoin
from fkjoin import kafka, sinks
from fkjoin.events import Enriched
from fkjoin.grouped import Grouped
from tests.support.places import ROOT

_ENTRY = re.compile(r"^::: (\S+)\n((?: {4}.*\n|\n(?= {4}))*)", re.MULTILINE)

MADE_BY_METHODS = (fkjoin.Table, Grouped, Enriched)
OF_THE_ENGINE = tuple(getattr(module, name) for module in (kafka, sinks) for name in module.__all__ if name != "RETRY_S")
"""Formats and sinks: the reference shows methods that have a docstring, others are told at ``Format`` and ``Sink``."""


@cache
def reference() -> dict[str, list[str] | None]:
    """Return the reference's entries by full name, with the members that each lists.

    An entry of its own below another one is a member of that one, too.
    """
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("reference*.md")))
    listed: dict[str, list[str] | None] = {}
    for name, about in _ENTRY.findall(pages):
        listed[name] = (yaml.safe_load(about) or {}).get("options", {}).get("members")
    entries = dict(listed)
    for name in listed:
        above, _, last = name.rpartition(".")
        if above in entries:
            entries[above] = [*(entries[above] or []), last]
            del entries[name]
    return entries


@cache
def public() -> dict[str, Any]:
    """Return functions, classes, methods and properties of the reference by full name; no constants."""
    found: dict[str, Any] = {}
    for name, members in reference().items():
        above, _, last = name.rpartition(".")
        entry = getattr(importlib.import_module(above), last)
        if isinstance(entry, ModuleType):
            for member in members or []:
                found |= _with_members(f"{name}.{member}", getattr(entry, member), None)
        else:
            found |= _with_members(name, entry, members)
    return found


def _with_members(name: str, entry: Any, listed: list[str] | None) -> dict[str, Any]:
    members = _members(entry, listed) if inspect.isclass(entry) else ()
    return ({name: entry} if callable(entry) else {}) | {f"{name}.{title}": member for title, member in members}


def _members(of: type, listed: list[str] | None) -> Iterator[tuple[str, Any]]:
    for name in listed or dir(of):
        one = inspect.getattr_static(of, name)
        homes = of.__mro__[: 1 if of in OF_THE_ENGINE else None]
        ours = any(name in vars(home) for home in homes if home.__module__.startswith("fkjoin"))
        shown = one.__doc__ or of not in OF_THE_ENGINE
        if ours and shown and not name.startswith("_") and isinstance(one, classmethod | property | FunctionType):
            yield name, one


def parameters(of: Any) -> list[Parameter]:
    """Return the parameters of a call that users make; none of what they do not call, or that are not theirs."""
    made = inspect.isclass(of) and {"__init__", "__new__"} & set(vars(of)) and not getattr(of, "_is_protocol", False)
    if isinstance(of, property) or of in MADE_BY_METHODS or (inspect.isclass(of) and not made):
        return []
    about = inspect.signature(getattr(of, "__func__", of)).parameters.values()
    return [one for one in about if one.name not in ("self", "cls") and not title(one).startswith("_")]


def title(parameter: Parameter) -> str:
    """Return a parameter's name, with its stars."""
    stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def choices(of: Any, parameter: Parameter) -> tuple[str, ...]:
    """Return the texts that a parameter takes, whose type is a choice of them."""
    return get_args(eval(type_name(parameter), {"Literal": Literal, **vars(sys.modules[of.__module__])}))


def type_name(parameter: Parameter) -> str:
    """Return a type as the signature has it, without the None that an optional parameter takes."""
    return str(parameter.annotation).removesuffix(" | None" if parameter.default is None else "\0")
