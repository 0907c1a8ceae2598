"""The base of a user's handle of a table: the table as asked for, and its plan once needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from fkjoin.analysis.planned import Planned, Settings, called
from fkjoin.analysis.windows import require_idle_in_time
from fkjoin.checkpoint.begun import Begun
from fkjoin.errors import TopologyError
from fkjoin.kafka.internal import StageQuery
from fkjoin.lowering.as_begun import as_begun, with_read_snapshots
from fkjoin.lowering.operators import plan
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.physical import Physical
from fkjoin.sessions.settings import require_running
from fkjoin.spark.trigger import Trigger, arguments_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Handle:
    """The base of ``Table``."""

    _planned: Planned

    @classmethod
    def _of(cls, planned: Planned) -> Self:
        """The handle of a planned table."""
        handle = cls.__new__(cls)
        handle._planned = planned
        return handle

    @classmethod
    def _read(cls, bind: Callable[..., Planned], **options: Any) -> Self:
        """The handle of a table that is read."""
        return cls._of(called(bind, **options))

    def _called(self, bind: Callable[..., Planned], *others: Planned, **options: Any) -> Self:
        """The handle of what an operator makes of the table and others.

        The session's settings at this moment hold.
        """
        table = self._planned
        settings = Settings.of(table.spark)
        return self._of(called(bind, table, *others, settings=settings, **options))

    @property
    def _plan(self) -> TablePlan:
        """The table's physical plan, made once, at its first use."""
        require_running(self._planned.spark)
        return plan(self._planned)

    def _as_begun(self, checkpoint: str) -> tuple[TablePlan, Begun]:
        """The table as the query of the checkpoint reads it, and what that is begun with.

        See ``as_begun``.
        """
        table, begun = as_begun(self._planned, checkpoint)
        return plan(table), begun

    def _stages(self) -> tuple[StageQuery, ...]:
        """The other queries of a staged deployment, each planned for its own checkpoint."""

        def planned(name: str, checkpoint: str) -> Physical:
            stages = plan(with_read_snapshots(self._planned, checkpoint)).stages
            return next(stage.plan for stage in stages if stage.name == name)

        stages = self._plan.stages
        return tuple(replace(stage, as_begun=partial(planned, stage.name)) for stage in stages)

    def _when(self, trigger: Trigger) -> dict[str, Any]:
        """Arguments of ``DataStreamWriter.trigger``, for a query of the table.

        Raises ``TopologyError`` for a trigger that is none, or that is too long for the table's
        windows.
        """
        when = arguments_of(trigger)
        require_idle_in_time(self._planned.node, when)
        return when


def planned_of(argument: str, table: Any) -> Planned:
    """The planned table of a handle; ``TopologyError`` with the way out if it is none."""
    if not isinstance(table, Handle):
        hint = (
            "wrap it with Table.from_stream(df, key=…, version=…)"
            if isinstance(table, DataFrame)
            else "see Table"
        )
        raise TopologyError(
            f"{argument}: a Table is needed, this is a {type(table).__name__}; {hint}"
        )
    if table._planned.node.appends:
        raise TopologyError(
            f"{argument}: {table._planned.name} are events, each sent once, not a table; join the "
            "tables, and enrich the events with the result"
        )
    return table._planned
