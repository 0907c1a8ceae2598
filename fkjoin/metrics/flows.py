"""Steps of a topology and the operators that count for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fkjoin.plan.describe.steps import Step
from fkjoin.stages import counters

_ROLES = {"left": counters.LEFT_IN, "right": counters.RIGHT_IN, "events": counters.EVENTS_IN, "table": counters.ROWS_IN}


def rates_on_arrows(steps: Sequence[Step], snapshot: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Compute what flows, in rows a second of the last batches, as far as operators count it: see ``picture.svg``."""
    operators: dict[str, dict[str, float]] = {}
    for query in snapshot.values():
        operators |= query["rates"]
    found = {}
    for step in steps:
        for role, name in step.reads:
            together = role == "right" and any(stage.name == "scatter" for stage in step.stages)
            if together or (len(step.reads) > 1 and role not in _ROLES):  # it counts the rows of all its tables together
                continue
            item = _ROLES.get(role, counters.ROWS_IN)
            told = [*((operator, item) for operator in step.operators), (name, counters.OUT)]
            rates = [operators[operator][item] for operator, item in told if item in operators.get(operator, {})]
            if rates:
                found[f"{step.kind} {step.name}", role] = f"{rates[0]:,.0f}/s"
    return found


def table_of(operator: str, tables: Collection[str]) -> str:
    """Find the table that an operator makes, without the reader that it runs for."""
    name = re.sub(r"(-answers)?(-for-.+)?$", "", operator)
    return name if operator not in tables and name in tables else operator
