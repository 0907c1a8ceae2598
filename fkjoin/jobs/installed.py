"""Sinks and formats of other packages, which a job file names, by their entry points."""

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
    """Make the sink of that name.

    ``JobError`` if no package has it, or it does not take the settings.
    """
    sink = _made("sink", kind, settings)
    if not (hasattr(sink, "begin") and hasattr(sink, "place")):
        raise JobError(
            f"kind: the sink {kind!r} is of type {type(sink).__name__}: let it inherit from "
            "fkjoin.sinks.TableSink"
        )
    return sink


def format_of(kind: str, settings: Mapping[str, Any]) -> Format:
    """Make the format of that name; ``JobError`` as above."""
    form = _made("format", kind, settings)
    if not hasattr(form, "decode"):
        raise JobError(
            f"kind: the format {kind!r} is of type {type(form).__name__}: give it decode, "
            "as fkjoin.kafka.Format"
        )
    return form


def _made(role: Literal["sink", "format"], kind: str, settings: Mapping[str, Any]) -> Any:
    points = {point.name: point for point in entry_points(group=f"fkjoin.{role}s")}
    if kind not in points:
        names = ", ".join(sorted(points)) or "none"
        raise JobError(
            f"kind: no installed package provides the {role} {kind!r}; there are {names}. "
            "Name one of these, or install the package that provides it (entry points "
            f"fkjoin.{role}s)"
        )
    try:
        make = points[kind].load()
    except Exception as error:
        why = f"{points[kind].value} cannot be imported: {thrown_at(error)}"
        raise JobError(f"kind: the {role} {kind!r}: {why}") from error
    _require_settings(f"the {role} {kind!r}", make, settings)
    try:
        return make(**settings)
    except FkJoinError as error:
        raise JobError(f"settings: {error}") from error
    except Exception as error:
        raise JobError(
            f"settings: the {role} {kind!r} cannot be made: {thrown_at(error)}"
        ) from error


def _require_settings(subject: str, make: Any, settings: Mapping[str, Any]) -> None:
    """Raise ``JobError`` unless a constructor takes the settings."""
    try:
        taken = signature(make).parameters
    except (TypeError, ValueError) as error:
        raise JobError(
            f"kind: {subject} is a {type(make).__name__}: let its entry point name a class"
        ) from error
    named = {name: item for name, item in taken.items() if item.kind in _NAMED and name[0] != "_"}
    takes_all = any(item.kind is Parameter.VAR_KEYWORD for item in taken.values())
    for name in settings:
        if name not in named and not takes_all:
            raise JobError(
                f"settings.{name}: {subject} has no such setting; {nearest(name, named)}"
            )
    for name, item in named.items():
        if item.default is Parameter.empty and name not in settings:
            raise JobError(f"settings.{name}: {subject} needs it; give it a value")
