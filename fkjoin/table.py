"""Tables over streams of changes, and the foreign-key join of two: the library's front door."""

from __future__ import annotations

from pyspark.sql import DataFrame

from fkjoin.inspection import Inspection
from fkjoin.kafka.internal import StageQuery
from fkjoin.outputs import Outputs
from fkjoin.sources import Sources


class Table(Sources, Inspection, Outputs):
    """The newest row of each key, kept up to date by changes.

    A table is immutable. Nothing runs until you call ``preview`` or a ``to_…`` method, or start a
    query on ``changes``. Make a table with ``from_stream``, ``from_files``, ``from_kafka``,
    ``from_delta`` or ``from_fkjoin``; joins and other operators make tables of tables.
    """

    def __init__(self) -> None:
        raise TypeError(
            "make a Table with Table.from_files, from_kafka, from_delta, from_stream or "
            "from_fkjoin, or with fk_join"
        )

    @property
    def stages(self) -> tuple[StageQuery, ...]:
        """The queries of staged operators, which must run beside the query of the table.

        Returns
        -------
        tuple of StageQuery
            Empty if all operators are fused. Start each query.

        Examples
        --------
        >>> orders.join(customers, on="customer_id").stages
        ()
        """
        return self._stages()

    @property
    def changes(self) -> DataFrame:
        """A streaming DataFrame of the table's changes, for any sink (output mode ``append``).

        Returns
        -------
        pyspark.sql.DataFrame
            The columns of the key and of the row (null in a delete), then:

            - ``_operation``: ``insert``, ``update`` or ``delete``; for a source ``upsert`` or
              ``delete``.
            - The versions, as arrays of bigint. A join has ``_left_version`` and
              ``_right_version``, which is null without a right row; other tables have ``_version``.
            - ``_timestamp``: null if the sources have no timestamps.

        Examples
        --------
        >>> query = orders.changes.writeStream.format("console").start()
        """
        self._planned.require_fitting()
        return self._plan.changes

    @property
    def dead_letters(self) -> DataFrame | None:
        """A streaming DataFrame of the records that cannot be used, for a query of its own.

        It contains records of the table's sources with ``on_error="dead-letter"``.

        Returns
        -------
        pyspark.sql.DataFrame or None
            None if no record can be a dead letter. Columns: ``table`` (its name), the columns of
            the record, and ``reason``. The columns of the record are:

            - for topics ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and
              ``headers``
            - for files ``file``, and ``value`` with the line
            - for other streams, and for rows on which an expression or a function threw, ``key``
              and ``value`` as JSON

        Examples
        --------
        >>> if orders.dead_letters is not None:
        ...     query = orders.dead_letters.writeStream.format("console").start()
        """
        return self._plan.dead_letters
