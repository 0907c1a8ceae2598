"""Operators that make another table of a table; ``Table`` has these methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fkjoin.analysis import views
from fkjoin.analysis.checks import Deployment, Extractor, Joiner
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_join
from fkjoin.analysis.planned import Settings, called
from fkjoin.analysis.windows import Options, Window
from fkjoin.errors import TopologyError
from fkjoin.events import Enriched
from fkjoin.grouped import Grouped
from fkjoin.lowering.children import planned_children
from fkjoin.lowering.enrich import planned_enrich, planned_events
from fkjoin.lowering.handle import Handle, planned_of
from fkjoin.lowering.key_joins import planned_key_join
from fkjoin.lowering.unions import merged
from fkjoin.row_operators import RowOperators
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expressions
from fkjoin.stages.join_rows import How, HowByKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self


class Operators(RowOperators):
    """Each returns a new table; nothing runs."""

    def join(
        self,
        right: Self,
        on: Extractor | None = None,
        how: HowByKey = "inner",
        joiner: Joiner | None = None,
        name: str | None = None,
        *,
        deployment: Deployment = "fused",
        application: str | None = None,
        emit: Emit = "on-change",
        spread: int = 1,
    ) -> Self:
        """Join this table, the left one, with another table, by a foreign key or by primary key.

        With ``on``, many left rows may name one right row. Without ``on``, the join takes rows with
        equal primary keys, in one stage with one store. The result has the left key, and the
        versions of both tables.

        In an outer join ``left`` may be null, too. A join by primary key refuses ``spread`` and
        ``deployment="staged"``. There, a joiner that only Spark can evaluate, for example a
        function, needs a second stage.

        Parameters
        ----------
        right : Table
            The other table. Without ``on``, its key must have the types of this table's key; the
            names may differ.
        on : str, Column, list of them, or callable, optional
            The foreign key of a left row: a column name or names, a Column, SQL text, or a Python
            callable of (key, row). The callable returns the foreign key, as a tuple for several
            columns. A row has no foreign key if it is null, or null in one of its columns. Without
            ``on``, rows with equal primary keys are joined.
        how : {"inner", "left", "outer"}, default "inner"
            ``"inner"`` drops rows without a partner. ``"left"`` keeps such rows of this table, and
            ``"outer"``, only by primary key, of both tables.
        joiner : str, Column, list of them, or callable, optional
            The columns of a joined row. By default both rows, as structs ``left`` and ``right``.

            - Columns or SQL texts over ``left.…`` and ``right.…``.
            - A Spark UDF of (left row, right row). Its type gives the columns: the fields of a
              struct, otherwise ``value``.
            - Another callable of (left row, right row). Its return annotation gives the type of
              ``value``: bool, int, float or str, or one of them or None. Without an annotation,
              ``value`` is the result as JSON.
            - If the joiner returns null, the result has no row.
        name : str, optional
            The name of the result in state and metrics. By default fkjoin generates one.
        deployment : {"fused", "staged"}, default "fused"
            ``"fused"`` runs all stages in one query. ``"staged"``, for tables read from topics,
            runs rekey and subscription as queries of their own, which your program starts
            (``Table.stages``). The topics ``APPLICATION-NAME-subscription-registration`` and
            ``APPLICATION-NAME-subscription-response`` connect them with resolve.
        application : str, optional
            The first part of the names of internal topics. By default the name of the Spark
            application.
        emit : str, default "on-change"
            When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
            last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
            ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row
            emitted last; ``"periodic"`` is one minute.
        spread : int, default 1
            The number of buckets that share the left rows of one foreign key, for right rows with
            very many left rows. Each right row is stored that many times. The number is fixed at
            the first start.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> joiner = ["left.amount", "right.name"]
        >>> named = orders.join(customers, on="customer_id", joiner=joiner)
        >>> named.preview().orderBy("order_id").show()
        +--------+------+-----+
        |order_id|amount| name|
        +--------+------+-----+
        |      o1|  10.0|  Ada|
        |      o2|  25.0|Grace|
        |      o3|   5.0|  Ada|
        +--------+------+-----+
        <BLANKLINE>

        By primary key:

        >>> joiner = ["left.amount", "right.paid"]
        >>> paid = orders.join(payments, how="left", joiner=joiner)
        >>> paid.preview().orderBy("order_id").show()
        +--------+------+----+
        |order_id|amount|paid|
        +--------+------+----+
        |      o1|  10.0|10.0|
        |      o2|  25.0|NULL|
        |      o3|   5.0|NULL|
        +--------+------+----+
        <BLANKLINE>
        """
        other = planned_of("right", right)
        common: Any = {"how": how, "joiner": joiner, "name": name, "emit": emit}
        if on is None:
            if spread != 1:
                raise TopologyError(
                    "spread: a row has one partner by primary key; leave it out, "
                    "or give on, the foreign key"
                )
            if deployment != "fused":
                raise TopologyError(
                    "deployment: a join by primary key is one stage; leave it out, "
                    "or give on, the foreign key of left rows"
                )
            return self._called(planned_key_join, other, **common)
        return self._called(
            planned_join,
            other,
            extractor=on,
            deployment=deployment,
            application=application,
            spread=spread,
            argument="on",
            **common,
        )

    def group_by(
        self,
        key: Expressions | Window | list[Any],
        value: Expressions | None = None,
        *,
        name: str | None = None,
        emit: Emit = "on-change",
        grace: str | None = None,
        idle: str | None = None,
        ahead: str | None = None,
        deployment: Deployment = "fused",
        application: str | None = None,
    ) -> Grouped[Self]:
        """Group the table's rows, for a method of ``Grouped`` such as ``agg`` or ``count``.

        Parameters
        ----------
        key : str, Column, Window, or list of them
            Column names, SQL texts or Columns over the table's columns; they become the key of the
            result. A row with a null in one of them belongs to no group. One of them may be
            ``fkjoin.window(…)``, with ``emit="on-close"``.
        value : str, Column, or list of them, optional
            The value that a row contributes, if the aggregate does not name a column. By default
            the whole row.
        name : str, optional
            The name of the result in state and metrics. By default fkjoin generates one.
        emit : str, default "on-change"
            When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
            last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
            ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row
            emitted last; ``"periodic"`` is one minute. The row of a group also differs if its
            timestamp does, which is the latest of its rows' changes. ``"on-close"``, for windows:
            once, when stream time has reached the end of the window plus ``grace``. Stream time is
            the time that all sources have reached, by their timestamps.
        grace : str, optional
            How long after its end a window accepts rows, for example ``"2 minutes"``. By default 0
            seconds.
        idle : str, optional
            How long a source without rows holds stream time back. By default forever.
        ahead : str, optional
            How far the timestamp of a row may be ahead of the time of its batch, for example
            ``"1 hour"``. A row beyond that is a dead letter, and does not move stream time. By
            default any timestamp counts.
        deployment : {"fused", "staged"}, default "fused"
            ``"fused"`` runs in one query. ``"staged"`` is for tables made from topics. A query of
            ``Table.stages`` then writes the contributions of rows to the topic
            ``APPLICATION-NAME-repartition``, in the format of KIP-904. The aggregate reads that
            topic.
        application : str, optional
            The first part of the names of internal topics. By default the name of the Spark
            application.

        Returns
        -------
        Grouped

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> orders.group_by("customer_id").count().columns
        ['customer_id', 'count']
        """
        options = Options(name, emit, deployment, application, grace, idle, ahead)
        settings = Settings.of(self._planned.spark)
        return Grouped._by(
            self._of, self._planned, key=key, value=value, options=options, settings=settings
        )

    def with_children(
        self,
        left: Self,
        extractor: Extractor,
        *,
        column: str = "children",
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Give each of this table's rows a map of the left rows whose foreign key names it.

        This is alternative B of KIP-213. Every result contains the whole map, in byte order of the
        left keys. The store keeps an entry for each left row, so a change writes only its entry.

        Parameters
        ----------
        left : Table
            The table of the children.
        extractor : str, Column, list of them, or callable
            The foreign key of a left row: a column name or names, a Column, SQL text, or a Python
            callable of (key, row). The callable returns the foreign key, as a tuple for several
            columns. A row has no foreign key if it is null, or null in one of its columns.
        column : str, default "children"
            The name of the map's column. The map of a row without children is empty.
        name : str, optional
            The name of the result in state and metrics. By default fkjoin generates one.
        emit : str, default "on-change"
            When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
            last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
            ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row
            emitted last; ``"periodic"`` is one minute.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> customers.with_children(orders, "customer_id", column="orders").columns
        ['customer_id', 'name', 'region', 'orders']
        """
        children = planned_of("left", left)
        return self._called(
            planned_children,
            children,
            extractor=extractor,
            column=column,
            name=name,
            emit=emit,
        )

    def enrich(
        self,
        events: DataFrame | Enriched,
        on: Expressions,
        how: How = "inner",
        name: str | None = None,
        *,
        events_name: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Enriched:
        """Give each event the columns of this table's row, once, as of the event's micro-batch.

        An event gets the row as it is after all changes of the table in the event's micro-batch. It
        is emitted in that batch, and later changes of the table emit nothing for it. The table's
        key is left out, since it equals ``on``.

        Parameters
        ----------
        events : pyspark.sql.DataFrame or Enriched
            A streaming DataFrame whose rows are appended, or the events that another table has
            enriched.
        on : str, Column, or list of them
            Column names, SQL texts or Columns over the events. They give the key of the table's
            row.
        how : {"inner", "left"}, default "inner"
            ``"inner"`` drops an event without a row in the table, and counts it as
            ``events-without-row``. ``"left"`` emits it with nulls, and counts it too. An ``on``
            that is null, or null in one of its columns, names no row.
        name : str, optional
            The name of the result in state and metrics. By default fkjoin generates one.
        events_name : str, optional
            The name of the stream in ``describe()`` and in errors. By default fkjoin generates one.
        on_error : {"dead-letter", "fail", "skip"}, default "dead-letter"
            What happens to an event on which ``on`` throws. ``"dead-letter"`` leaves it out, counts
            it and shows it in ``dead_letters``. ``"skip"`` leaves it out and counts it. ``"fail"``
            stops the query.

        Returns
        -------
        Enriched

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> enriched = customers.enrich(clicks, on="customer_id", how="left")
        >>> settings = {"checkpoint": "ck/clicks", "trigger": "available-now"}
        >>> enriched.to_parquet("lake/clicks", **settings).awaitTermination()
        >>> rows = spark.read.parquet("lake/clicks").select("page", "name")
        >>> rows.orderBy("page").show()
        +-----+----+
        | page|name|
        +-----+----+
        | cart|NULL|
        |start| Ada|
        +-----+----+
        <BLANKLINE>
        """
        if isinstance(events, Enriched):
            planned = events._planned
            if events_name is not None:
                raise TopologyError(
                    f"events_name: these events are called {planned.name}; leave it out"
                )
        elif isinstance(events, Handle):
            raise TopologyError(
                f"events: {events._planned.name} is a table, whose rows change, and an event is "
                "sent once; join tables with join, or give table.changes if each change is an event"
            )
        else:
            planned = planned_events(events, events_name)
        settings = Settings.of(self._planned.spark)
        about: Any = {"on": on, "how": how, "name": name, "on_error": on_error}
        return Enriched._of(
            called(planned_enrich, self._planned, planned, settings=settings, **about)
        )

    def merge(
        self,
        *others: Self,
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Combine this table with others that have equal key columns and row columns.

        If several tables have a row with the same key, the result has the row of the first of them,
        beginning with this table. So a stale tombstone does not delete a row that moves from one
        table to another. ``_version`` is a counter of the row.

        Parameters
        ----------
        *others : Table
            The other tables. An earlier one takes precedence over a later one.
        name : str, optional
            The name of the result in state and metrics. By default fkjoin generates one.
        emit : str, default "on-change"
            When a row of the result is emitted. ``"on-change"``: if it differs from the row emitted
            last (KIP-557). ``"on-update"``: whenever one of its inputs was updated.
            ``"periodic 10 seconds"``: at the end of each interval, if it differs from the row
            emitted last; ``"periodic"`` is one minute.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> everywhere = orders.merge(old_orders)
        >>> everywhere.preview().orderBy("order_id").show()
        +--------+-----------+------+
        |order_id|customer_id|amount|
        +--------+-----------+------+
        |      o0|         c2|  99.0|
        |      o1|         c1|  10.0|
        |      o2|         c2|  25.0|
        |      o3|         c1|   5.0|
        +--------+-----------+------+
        <BLANKLINE>
        """
        tables = [planned_of(f"others[{index}]", other) for index, other in enumerate(others)]
        return self._called(merged, *tables, name=name, emit=emit)

    def materialize(self, name: str) -> Self:
        """Keep the table's rows in state under a name, for ``fkjoin.read_state``.

        fkjoin refuses a checkpoint that began without this call, or under another name. A source
        that is materialized drops changes that leave a row unchanged; the row keeps its older
        timestamp (KIP-557). Its ``_operation`` tells inserts from updates.

        Parameters
        ----------
        name : str
            The name for ``read_state`` and ``StateReader``.

        Returns
        -------
        Table
            The same table.

        Examples
        --------
        >>> kept = orders.materialize("orders")
        """
        return self._called(views.materialized, name=name)
