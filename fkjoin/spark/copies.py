"""Copies of a user's arguments, for what lives longer than a call.

The user may change a list, and use it again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import fields
from typing import Any

from pyspark.sql.types import DataType


def copied(argument: Any) -> Any:
    """The argument with copies of its lists, sets, mappings and types; all else is the same."""
    if isinstance(argument, list):
        items = copy.copy(argument)
        items[:] = [copied(item) for item in argument]
        return items
    if type(argument) is tuple:
        return tuple(copied(item) for item in argument)
    if isinstance(argument, Mapping):
        mutable = isinstance(argument, MutableMapping)
        entries: Any = copy.copy(argument) if mutable else dict(argument)
        for name, value in argument.items():
            entries[name] = copied(value)
        return entries
    return copy.deepcopy(argument) if isinstance(argument, DataType | set) else argument


def copy_fields(instance: Any) -> None:
    """Put copies in the place of the fields of a frozen dataclass that is being made."""
    for field in fields(instance):
        object.__setattr__(instance, field.name, copied(getattr(instance, field.name)))
