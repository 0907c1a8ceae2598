"""``left.join(right)``, a join by primary key: keys and joiner checked, before anything of it is a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fkjoin.analysis.checks import Joiner, as_emitted, described, refuse_same_name, require_same_timestamps
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.joiner import BoundJoiner, bound_joiner, written_out
from fkjoin.analysis.planned import Planned, Settings
from fkjoin.errors import TopologyError
from fkjoin.plan.nodes import KeyJoin, generated_name
from fkjoin.sessions.settings import prepare
from fkjoin.spark.names import require_beside
from fkjoin.spark.schemas import arrow_schema, spark_schema, types_text
from fkjoin.spark.unpacking import UnpackAnswers
from fkjoin.stages import HowByKey
from fkjoin.stages.join_rows import require_how_by_key


@dataclass(frozen=True, eq=False)
class KeyJoinBound:
    """Needs of lowering a join by primary key, besides its node."""

    operator: ClassVar[str] = "key_join"
    joiner: BoundJoiner
    emission: Emission
    settings: Settings


def planned_key_join(
    left: Planned,
    right: Planned,
    *,
    how: HowByKey,
    joiner: Joiner | None,
    name: str | None,
    emit: Emit,
    settings: Settings,
) -> Planned:
    """See ``Table.join``.  Raises ``TopologyError``."""
    require_how_by_key(how)
    emission = Emission.of(emit)
    _require_one_key(left, right)
    require_same_timestamps(left, right)
    prepare(left.spark)
    joiner = written_out(joiner, left, right, by_key=True)
    text = None if joiner is None else described(joiner, "left", "right")
    label = name or f"{left.name}-{right.name}-{generated_name(left.name, right.name, how, text)}"
    refuse_same_name(label, (left.node, right.node), "join")
    key = arrow_schema("left", left.key_type)
    rows = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    answers = left.spark.createDataFrame([], spark_schema(UnpackAnswers(*rows, how, key).schema))
    bound = bound_joiner(label, joiner, answers, left.on_error)
    hint = "name the result's columns in a joiner" if joiner is None else ""
    require_beside(left.key, "joiner", bound.result.names, *([hint] if hint else []))
    return Planned(
        KeyJoin(label, left.node, right.node, how, text, emit),
        spark_schema(key),
        as_emitted("joiner", bound.result),
        left.spark,
        KeyJoinBound(bound, emission, settings),
        (left, right),
        left.timestamps or right.timestamps,
        left.on_error,
        left.connection or right.connection,
    )


def _require_one_key(left: Planned, right: Planned) -> None:
    """Raise ``TopologyError`` if the keys are of other types; names of their columns may differ."""
    if left.name == right.name:
        raise TopologyError(
            f"right: {right.name} is joined with itself, or another table has its name; give one of them a name= of its own"
        )
    if left.key != right.key and set(left.key) == set(right.key):
        raise TopologyError(
            f"right: the key of {right.name} is ({', '.join(right.key)}), and that of {left.name} is ({', '.join(left.key)}): "
            "columns are matched by their places; give both keys in the same order, for instance with rekey"
        )
    if [field.dataType for field in as_emitted("left", left.key_type)] != [
        field.dataType for field in as_emitted("right", right.key_type)
    ]:
        raise TopologyError(
            f"right: the key of {right.name} is {types_text(right.key_type)}, and that of {left.name} is "
            f"{types_text(left.key_type)}; name the columns of left that are right's key, on=…, or make both keys the same, "
            "for instance with rekey"
        )
