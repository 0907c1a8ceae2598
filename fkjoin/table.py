"""Tables over streams of changes, and the foreign-key join of two: the library's front door."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from fkjoin.kafka.internal import StageQuery
from fkjoin.operators import Operators
from fkjoin.outputs import Outputs
from fkjoin.plan.describe.render import Form, draw
from fkjoin.plan.nodes import Source
from fkjoin.sinks.preview import first_rows
from fkjoin.sources import Sources
from fkjoin.spark.spark_api import is_connect

HABITS = {
    "agg": "table.group_by(key).agg(**wanted)",
    "alias": "table.select(*columns)",
    "cache": "table.materialize(name)",
    "collect": "table.preview(20).collect()",
    "count": "fkjoin.read_state(spark, checkpoint, name).count()",
    "createOrReplaceTempView": "table.changes.createOrReplaceTempView(name)",
    "distinct": "table.preview(20).distinct()",
    "dropDuplicates": "table.rekey(key)",
    "dropna": "table.filter(condition)",
    "dtypes": "table.schema",
    "explain": "table.describe()",
    "fillna": "table.with_columns(more)",
    "first": "table.preview(1).first()",
    "groupBy": "table.group_by(key)",
    "groupby": "table.group_by(key)",
    "head": "table.preview(20).head()",
    "isEmpty": "table.preview(1).isEmpty()",
    "isStreaming": "table.changes.isStreaming",
    "limit": "table.preview(20)",
    "na": "table.with_columns(more)",
    "orderBy": "table.preview(20).orderBy(*table.key)",
    "persist": "table.materialize(name)",
    "printSchema": "table.preview(20).printSchema()",
    "sample": "table.filter(condition)",
    "selectExpr": "table.select(*columns)",
    "show": "table.preview(20).show()",
    "sort": "table.preview(20).orderBy(*table.key)",
    "sparkSession": "table.changes.sparkSession",
    "tail": "table.preview(20).tail(1)",
    "take": "table.preview(20).collect()",
    "toArrow": "table.preview(20).toArrow()",
    "toDF": "table.changes",
    "toPandas": "table.preview(20).toPandas()",
    "union": "table.merge(other)",
    "unionAll": "table.merge(other)",
    "unionByName": "table.merge(other)",
    "where": "table.filter(condition)",
    "withColumn": "table.with_columns(more)",
    "withColumnRenamed": "table.select(*columns)",
    "withColumns": "table.with_columns(more)",
    "withColumnsRenamed": "table.select(*columns)",
    "write": "table.to_parquet(path, checkpoint=folder)",
    "writeStream": "table.to_parquet(path, checkpoint=folder), or table.changes.writeStream",
}
"""Methods of DataFrames that a Table lacks, and what to call."""

_COLUMNS, _TYPE = 20, 80
"""So many columns, and letters of a type, does a table's ``repr`` show."""


_AT_A_SERVER = (
    "session of Spark Connect: Spark evaluates all expressions that are more than a name, "
    "workers evaluate none"
)


class Table(Sources, Operators, Outputs):
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
    def name(self) -> str:
        """The name of the table in metrics, in state and in errors.

        Returns
        -------
        str
        """
        return self._planned.name

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's columns.

        Returns
        -------
        tuple of str
        """
        return self._planned.key

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns: the key's, then the row's.

        Returns
        -------
        list of str
            The columns of ``changes``, without the columns about a change, which begin with an
            underscore.

        Examples
        --------
        >>> orders.columns
        ['order_id', 'customer_id', 'amount']
        """
        return self.schema.names

    @property
    def schema(self) -> StructType:
        """The types of ``columns``.

        Returns
        -------
        pyspark.sql.types.StructType

        Examples
        --------
        >>> orders.schema.simpleString()
        'struct<order_id:string,customer_id:string,amount:double>'
        """
        planned = self._planned
        return StructType([*planned.key_type, *(planned.row_type[name] for name in planned.rest)])

    def preview(self, n: int = 20) -> DataFrame:
        """Read some rows of the table, with a query of its own that leaves nothing behind.

        The query reads the sources from the beginning, in steps of 10,000 records of each topic, or
        8 MiB of whole files. It reads a stream of ``from_stream`` by the stream's options. It ends
        when it has ``n`` rows, when it has read the input that existed at its start, or after ten
        steps. So rows may be missing, or older than the newest. If the query has read all input,
        they are rows of the current table.

        Results that a periodic ``emit`` holds back are included; open windows are not. A staged
        table runs without its topics. Checkpoint and state are in a temporary folder, on a cluster
        on its default file system.

        Parameters
        ----------
        n : int, default 20
            The largest number of rows.

        Returns
        -------
        pyspark.sql.DataFrame
            At most ``n`` rows with the table's ``columns``, in any order. The DataFrame is a batch,
            not a stream.

        Raises
        ------
        TopologyError
            If ``n`` is not a whole number of at least 1.
        QueryError
            If the query fails, as a query on the table would.

        Examples
        --------
        >>> orders.preview().orderBy("order_id").show()
        +--------+-----------+------+
        |order_id|customer_id|amount|
        +--------+-----------+------+
        |      o1|         c1|  10.0|
        |      o2|         c2|  25.0|
        |      o3|         c1|   5.0|
        +--------+-----------+------+
        <BLANKLINE>
        """
        is_source = isinstance(self._planned.node, Source)
        table = self.materialize(self.name) if is_source else self
        return first_rows(table, self.schema, n)

    def describe(self, format: Form = "text") -> str:
        """Draw the topology that makes this table.

        Parameters
        ----------
        format : {"text", "json", "mermaid", "svg"}, default "text"
            ``"mermaid"`` is for a flowchart, ``"svg"`` for a picture.

        Returns
        -------
        str

        Raises
        ------
        TopologyError
            If the format is unknown.

        Examples
        --------
        >>> picture = orders.describe("svg")
        """
        drawn = draw(self._plan.node, self._plan.running(), format)
        return (
            f"{drawn}\n{_AT_A_SERVER}"
            if format == "text" and is_connect(self._planned.spark)
            else drawn
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

    def _repr_html_(self) -> str:
        """In notebooks: the topology as a picture, and the columns with their types."""
        roles = dict.fromkeys(self.key, "key")
        rows = [_html_row(field, roles.get(field.name, "")) for field in self.schema]
        head = "<thead><tr><th>column</th><th>type</th><th></th></tr></thead>"
        return f"{self.describe('svg')}\n<table>{head}<tbody>{''.join(rows)}</tbody></table>"

    def __repr__(self) -> str:
        planned = self._planned
        emit = "changes as they are read" if isinstance(planned.node, Source) else planned.node.emit
        row = [planned.row_type[name] for name in planned.rest]
        columns = f"key: {_shown(planned.key_type)}; row: {_shown(row) or 'none'}"
        return f"Table[{self.name}; {columns}; emit: {emit}]"

    if not TYPE_CHECKING:  # else any name would do for type checkers
        __iter__ = None  # else Python would ask for item after item

        def __contains__(self, name: object) -> bool:
            raise TypeError(f"a Table has no items; ask for {name!r} in table.columns")

        def __getitem__(self, name: object) -> Any:
            if isinstance(name, str) and name in self.columns:
                raise TypeError(_named(name))
            raise TypeError(f"a Table has no items; its columns are {', '.join(self.columns)}")

        def __getattr__(self, name: str) -> Any:
            if name in HABITS:
                raise AttributeError(
                    f"a Table has no {name}; call {HABITS[name]}", name=name, obj=self
                )
            if "_planned" in vars(self) and name in self.columns:
                raise AttributeError(_named(name), name=name, obj=self)
            # Raises what there is to say, also of a property that failed.
            return object.__getattribute__(self, name)


def _named(column: str) -> str:
    advice = f"write {column!r}, an SQL text with it, or F.col({column!r})"
    return f"a Table's columns are named where they are used: {advice}"


def _shown(fields: Iterable[StructField]) -> str:
    """Columns with their types, for people."""
    listed = [f"{field.name} {_short(field.dataType.simpleString())}" for field in fields]
    more = [f"{len(listed) - _COLUMNS} more"] if len(listed) > _COLUMNS else []
    return ", ".join([*listed[:_COLUMNS], *more])


def _html_row(field: StructField, role: str) -> str:
    kind = field.dataType.simpleString()
    short, whole = html.escape(_short(kind)), html.escape(kind, quote=True)
    cells = f'<td>{html.escape(field.name)}</td><td title="{whole}">{short}</td><td>{role}</td>'
    return f"<tr>{cells}</tr>"


def _short(kind: str) -> str:
    return kind if len(kind) <= _TYPE else f"{kind[: _TYPE - 1]}…"
