"""Events that a table enriches, as a user has them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from fkjoin.kafka.internal import StageQuery
from fkjoin.outputs import Outputs
from fkjoin.plan.describe.render import Form, draw


class Enriched(Outputs):
    """Events, each joined once with a table's row: what ``Table.enrich`` returns.

    Nothing runs until a query starts.

    Rows are appended, and none of them changes later.  So these are not a table: they have no key,
    and joins do not take them. ``events`` is for any sink of Spark's, and ``to_parquet``,
    ``to_delta``, ``to_iceberg``, ``to_kafka`` and ``to`` work as for a table.
    """

    def __init__(self) -> None:
        raise TypeError("an Enriched cannot be made directly: write table.enrich(events, on=…)")

    @property
    def name(self) -> str:
        """The name in metrics, in state and in errors.

        Returns
        -------
        str
        """
        return self._planned.name

    @property
    def schema(self) -> StructType:
        """The types of the columns: the event's, then the table's.

        Returns
        -------
        pyspark.sql.types.StructType
        """
        return self._planned.row_type

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        Returns
        -------
        list of str
        """
        return self.schema.names

    @property
    def events(self) -> DataFrame:
        """A streaming DataFrame of the events, for any sink and further steps (mode ``append``).

        Returns
        -------
        pyspark.sql.DataFrame

        Examples
        --------
        >>> query = enriched.events.where("amount > 10").writeStream.format("console").start()
        """
        self._planned.require_fitting()
        return self._plan.changes

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of records and events that cannot be used.  See ``Table``.

        Returns
        -------
        pyspark.sql.DataFrame or None
            An event on which ``on`` throws is in ``value``, as JSON.
        """
        return self._plan.dead_letters

    @property
    def stages(self) -> tuple[StageQuery, ...]:
        """The queries that must run besides; see ``Table.stages``.

        Returns
        -------
        tuple of StageQuery
        """
        return self._stages()

    def describe(self, format: Form = "text") -> str:
        """Draw the topology that makes the events.

        Parameters
        ----------
        format : {"text", "json", "mermaid", "svg"}, default "text"
            See ``Table.describe``.

        Returns
        -------
        str
        """
        return draw(self._plan.node, self._plan.running(), format)

    def __repr__(self) -> str:
        return f"Enriched[{self.name}; columns: {', '.join(self.columns)}]"
