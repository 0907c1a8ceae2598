"""Records of a checkpoint's stores, by a key as a user types it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fkjoin.checkpoint.stores import SavedRecords
from fkjoin.codec import tags
from fkjoin.errors import FkJoinError
from fkjoin.spark.specs import STAGES


class State(Protocol):
    """The stores of a checkpoint."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def stores(self) -> Sequence[SavedRecords]: ...


def look_up(state: State, operator: str, key: str) -> list[dict[str, Any]]:
    """Look up what the stores of ``operator`` (empty: of the only one) know of a left row, a dict per record.

    For an aggregate: what a row with that key contributes, and the row of a group with that key.  For a flat map: what a row
    with that key makes, and the row that is shown under that key.

    ``key``: as typed, see ``parse_key``.  Raises ``FkJoinError``.
    """
    stores = _stores_of(state, operator)
    found: list[dict[str, Any]] = []
    problem = None
    for store in (stores[stage] for stage in STAGES if stage in stores):
        described = store.described()
        try:
            asked = store.kind.asked(described, key, found)
        except ValueError as error:  # a row's key may be no key of a group; the last store that is asked decides
            problem = error
            continue
        for records in asked:
            problem = None
            found += store.some(*records)
    if problem is not None and not found:
        raise FkJoinError(str(problem)) from problem
    return found


def remarks(state: State, operator: str, found: list[dict[str, Any]]) -> list[str]:
    """Say what a reader may miss in the records ``found`` of a join, and where it is kept."""
    stores = _stores_of(state, operator)
    kinds = [store.kind for store in stores.values()]
    joins = any(tags.RIGHT in kind.forms for kind in kinds)
    if found and joins and not any(kind.keeps for kind in kinds):
        others = {store.operator_name for store in state.stores} - {store.operator_name for store in stores.values()}
        ask = " or ".join(f"--operator {name}" for name in sorted(others))
        return [f"The join keeps no results, since another operator of the query reads them: ask with {ask}."]
    if any(entry["kind"] == "result" and entry["row"] is None and not entry["gone"] for entry in found):
        return ["A result has its row here if the join is materialized. Else the store keeps a hash of it."]
    return []


def _stores_of(state: State, operator: str) -> dict[str, SavedRecords]:
    """The stores of an operator, by stage; ``FkJoinError`` where the checkpoint has none of that name."""
    operators = list(dict.fromkeys(store.operator_name for store in state.stores))
    if operator not in operators and (operator or len(operators) > 1):
        has = f"no operator {operator!r}" if operator else "several operators"
        raise FkJoinError(f"checkpoint {state.checkpoint} has {has}; add --operator with one of {', '.join(operators)}")
    return {store.stage: store for store in state.stores if store.operator_name == (operator or operators[0])}
