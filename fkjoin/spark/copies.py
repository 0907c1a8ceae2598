"""Copies of a user's arguments, for what is kept longer than a call: the user may change a list, and use it again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import fields
from typing import Any

from pyspark.sql.types import DataType


def copied(given: Any) -> Any:
    """The argument with copies of its lists, sets, mappings and types; anything else in it is the same."""
    found: Any = given
    if isinstance(given, list):
        found = copy.copy(given)
        found[:] = [copied(one) for one in given]
    elif type(given) is tuple:
        found = tuple(copied(one) for one in given)
    elif isinstance(given, Mapping):
        found = copy.copy(given) if isinstance(given, MutableMapping) else dict(given)
        for name, one in given.items():
            found[name] = copied(one)
    elif isinstance(given, DataType | set):
        found = copy.deepcopy(given)
    return found


def copy_fields(of: Any) -> None:
    """Put copies in the place of the fields of a frozen dataclass that is being made."""
    for field in fields(of):
        object.__setattr__(of, field.name, copied(getattr(of, field.name)))
