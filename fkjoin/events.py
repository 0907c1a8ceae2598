"""Events that a table enriches, as a user has them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from fkjoin.kafka.internal import StageQuery
from fkjoin.outputs import Outputs
from fkjoin.plan.describe.render import Form, draw


class Enriched(Outputs):
    """Events, each joined once with a table's row; ``Table.enrich`` returns them.

    Nothing runs until a query starts. Rows are appended, and none of them changes later. So this is
    not a table: events have no key, and joins do not take them. Use ``events`` for any sink of
    Spark. ``to_parquet``, ``to_delta``, ``to_iceberg``, ``to_kafka`` and ``to`` write them as they
    write a table; ``to_postgres`` and ``to_sink`` refuse them.
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
        """The types of the columns: first the event's columns, then the table's.

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
        """A streaming DataFrame of the events, for any sink of Spark and for further steps.

        Its output mode is ``append``.

        Returns
        -------
        pyspark.sql.DataFrame

        Examples
        --------
        >>> carts = enriched.events.where("page = 'cart'")
        >>> query = carts.writeStream.format("console").start()
        """
        self._planned.require_fitting()
        return self._plan.changes

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of the records and events that cannot be used.

        Returns
        -------
        pyspark.sql.DataFrame or None
            The columns of ``Table.dead_letters``. ``value`` contains an event on which ``on``
            throws, as JSON. None if no record or event can be a dead letter.
        """
        return self._plan.dead_letters

    @property
    def stages(self) -> tuple[StageQuery, ...]:
        """The queries of staged operators, which must run beside the query of the events.

        Returns
        -------
        tuple of StageQuery
            Empty if all operators are fused. Start each query.
        """
        return self._stages()

    def describe(self, format: Form = "text") -> str:
        """Draw the topology that makes the events.

        Parameters
        ----------
        format : {"text", "json", "mermaid", "svg"}, default "text"
            ``"mermaid"`` is for a flowchart, ``"svg"`` for a picture.

        Returns
        -------
        str

        Examples
        --------
        >>> picture = customers.enrich(clicks, on="customer_id").describe("svg")
        """
        return draw(self._plan.node, self._plan.running(), format)

    def __repr__(self) -> str:
        return f"Enriched[{self.name}; columns: {', '.join(self.columns)}]"
