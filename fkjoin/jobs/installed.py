"""Sinks and formats of other packages, which a job file names: a package says what it has by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import Any, Literal

from fkjoin.errors import FkJoinError, nearest, thrown_at
from fkjoin.jobs.job_kinds import JobError
from fkjoin.kafka import Format
from fkjoin.sinks import Sink

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def sink_of(kind: str, settings: Mapping[str, Any]) -> Sink:
    """Make the sink of that name; ``JobError`` if no package has it, or it does not take the settings."""
    made = _made("sink", kind, settings, "")
    if not (hasattr(made, "begin") and hasattr(made, "place")):
        raise JobError(
            f"kind: the sink {kind!r} is of type {type(made).__name__}: let it inherit from fkjoin.sinks.TableSink"
        )
    return made


def format_of(kind: str, settings: Mapping[str, Any], where: str) -> Format:
    """Make the format of that name, for ``where`` of a table or sink; ``JobError`` as above."""
    made = _made("format", kind, settings, f"{where}.")
    if not hasattr(made, "decode"):
        raise JobError(
            f"{where}.kind: the format {kind!r} is of type {type(made).__name__}: give it decode, as fkjoin.kafka.Format"
        )
    return made


def _made(
    what: Literal["sink", "format"], kind: str, settings: Mapping[str, Any], where: str
) -> Any:
    found = {one.name: one for one in entry_points(group=f"fkjoin.{what}s")}
    if kind not in found:
        there = ", ".join(sorted(found)) or "none"
        raise JobError(
            f"{where}kind: no installed package has a {what} {kind!r}, there are {there}: name one, or install the "
            f"package that has it (entry points fkjoin.{what}s)"
        )
    try:
        make = found[kind].load()
    except Exception as error:
        why = f"{found[kind].value} cannot be imported: {thrown_at(error)}"
        raise JobError(f"{where}kind: the {what} {kind!r}: {why}") from error
    _require_settings(f"the {what} {kind!r}", make, settings, where)
    try:
        return make(**settings)
    except FkJoinError as error:
        raise JobError(f"{where}settings: {error}") from error
    except Exception as error:
        raise JobError(
            f"{where}settings: the {what} {kind!r} cannot be made: {thrown_at(error)}"
        ) from error


def _require_settings(what: str, make: Any, settings: Mapping[str, Any], where: str) -> None:
    """Raise ``JobError`` unless a constructor takes the settings."""
    try:
        taken = signature(make).parameters
    except (TypeError, ValueError) as error:
        raise JobError(
            f"{where}kind: {what} is a {type(make).__name__}: let its entry point name a class"
        ) from error
    named = {
        name: one for name, one in taken.items() if one.kind in _NAMED and not name.startswith("_")
    }
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
    for name in settings:
        if name not in named and not takes_all:
            raise JobError(
                f"{where}settings.{name}: {what} has no such setting; {nearest(name, named)}"
            )
    for name, one in named.items():
        if one.default is Parameter.empty and name not in settings:
            raise JobError(f"{where}settings.{name}: {what} needs it; give it a value")
