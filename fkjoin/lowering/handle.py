"""The base of a user's handle of a table: the table as it was asked for, and its frames once they are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from fkjoin.analysis.enrich import topics_of_events
from fkjoin.analysis.planned import Planned
from fkjoin.analysis.windows import require_idle_in_time
from fkjoin.checkpoint.begun import Begun
from fkjoin.errors import TopologyError
from fkjoin.kafka.connection import Connection
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.as_begun import as_begun, with_read_snapshots
from fkjoin.lowering.lowered import Lowered
from fkjoin.lowering.planner import lower
from fkjoin.lowering.recipes import Remembered, recipes_below
from fkjoin.plan.events import Enrich
from fkjoin.plan.nodes import Source
from fkjoin.sessions.settings import require_running
from fkjoin.spark.trigger import Trigger, arguments_of


class Handle(Remembered):
    """The base of ``Table``."""

    _planned: Planned

    @classmethod
    def _of(cls, planned: Planned) -> Any:
        """The handle of a planned table."""
        handle = cls.__new__(cls)
        handle._planned = planned
        return handle

    @property
    def _lowered(self) -> Lowered:
        """The table as streaming DataFrames, made once, at its first use."""
        require_running(self._planned.spark)
        return lower(self._planned)

    def _as_begun(self, checkpoint: str) -> tuple[Lowered, Begun]:
        """The table as the query of the checkpoint reads it, and what that is begun with: see ``as_begun``."""
        stateful = not isinstance(self._planned.node, Source)
        events = topics_of_events(self._planned)
        table, begun = as_begun(self._planned.spark, self, checkpoint, stateful=stateful, events=events)
        table._planned.require_fitting()
        return table._lowered, begun

    def _with_read_snapshots(self, checkpoint: str) -> Handle:
        """The table as the query of the checkpoint reads snapshots; ``TopologyError`` if one is to be read and does not fit."""
        begun = with_read_snapshots(self._planned.spark, self, checkpoint)
        begun._planned.require_fitting()
        return begun

    def _stages(self) -> tuple[StageQuery, ...]:
        """The queries besides, each with the frame that its own checkpoint asks for."""

        def frame(name: str, checkpoint: str) -> DataFrame:
            stages = self._with_read_snapshots(checkpoint)._lowered.stages
            return next(stage.frame for stage in stages if stage.name == name)

        return tuple(replace(stage, as_begun=partial(frame, stage.name)) for stage in self._lowered.stages)

    def _when(self, trigger: Trigger) -> dict[str, Any]:
        """Arguments of ``DataStreamWriter.trigger``, for a query of the table.

        Raises ``TopologyError`` for a trigger that is none, or that is too long for the table's windows.
        """
        when = arguments_of(trigger)
        require_idle_in_time(self._planned.node, when)
        return when

    @property
    def _topics(self) -> list[Connection]:
        """The topics that a query of the table reads, but for internal ones."""
        tables = [recipe.connection for _, recipe in recipes_below(self) if recipe.connection is not None]
        return [*tables, *topics_of_events(self._planned)]


def planned_of(argument: str, table: Any) -> Planned:
    """The planned table of a handle; ``TopologyError`` with the way out if it is none."""
    if not isinstance(table, Handle):
        hint = "wrap it with Table.from_stream(df, key=…, version=…)" if isinstance(table, DataFrame) else "see Table"
        raise TopologyError(f"{argument}: a Table is needed, this is a {type(table).__name__}; {hint}")
    if isinstance(table._planned.node, Enrich):
        raise TopologyError(
            f"{argument}: {table._planned.name} are events, each sent once, and no table; join the tables, and enrich with the "
            "result"
        )
    return table._planned
