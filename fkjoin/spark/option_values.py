"""Values of options of Spark's sources, compared with what the source takes.

Spark itself does so in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fkjoin.errors import TopologyError


def require_whole(options: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Raise ``TopologyError`` for an option that is not a whole number, or less than its "
    "``least``."""
    known = {name.lower(): number for name, number in least.items()}
    for name, value in options.items():
        number = known.get(name.lower())
        if number is not None and not (
            str(value).strip().removeprefix("+").isdecimal() and int(value) >= number
        ):
            raise TopologyError(
                f"options: {name} is {value!r}: give a whole number from {number} on"
            )


def require_one_of(options: Mapping[str, Any], values: Mapping[str, tuple[str, ...]]) -> None:
    """Raise ``TopologyError`` for an option that has none of its ``values``."""
    known = {name.lower(): allowed for name, allowed in values.items()}
    for name, value in options.items():
        allowed = known.get(name.lower())
        if allowed is not None and str(value).lower() not in allowed:
            raise TopologyError(f"options: {name} is {value!r}: give one of {', '.join(allowed)}")
