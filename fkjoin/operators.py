"""Operators that make another table of a table; ``Table`` has these methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fkjoin.analysis import views
from fkjoin.analysis.checks import Deployment, Extractor, Joiner
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_join
from fkjoin.analysis.planned import Settings, called
from fkjoin.analysis.windows import Window
from fkjoin.errors import TopologyError
from fkjoin.events import Enriched
from fkjoin.grouped import Grouped
from fkjoin.lowering.aggregates import Options
from fkjoin.lowering.children import planned_children
from fkjoin.lowering.enrich import planned_enrich, planned_events
from fkjoin.lowering.handle import Handle, planned_of
from fkjoin.lowering.key_joins import planned_key_join
from fkjoin.lowering.unions import merged
from fkjoin.row_operators import RowOperators
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import Expressions
from fkjoin.stages import How, HowByKey

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
        validate: bool | None = None,
        spread: int = 1,
    ) -> Self:
        """Join this table's rows with those of another, by a foreign key or by primary key.

        With ``on`` this is ``fk_join``: many rows of this table may name one of the other.  Without
        ``on`` it joins rows with the same key, in one stage with one store.  The result has this
        table's key, and the versions of both.

        Parameters
        ----------
        right : Table
            The other table.  Without ``on`` its key has the types of this table's key; names may
            differ.
        on : str, Column, list of them, or callable, optional
            The foreign key of this table's rows: the extractor of ``fk_join``.
        how : {"inner", "left", "outer"}, default "inner"
            ``"left"`` keeps this table's rows without a partner; ``"outer"``, only by primary key,
            those of both tables.
        joiner : str, Column, list of them, or callable, optional
            See ``fk_join``.  In an outer join ``left`` may be null, too.  A joiner that only Spark
            can evaluate, such as a function, needs a second stage.
        name : str, optional
            The name of state and metrics; generated from the rest if left out.
        deployment, application
            See ``fk_join``; a join by primary key is always fused.
        emit, validate, spread
            See ``fk_join``; a join by primary key has no ``spread``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> named = orders.join(customers, on="customer_id", how="left")
        >>> paid = orders.join(payments, how="outer", joiner=["left.amount", "right.paid"])
        """
        other = planned_of("right", right)
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
            return self._called(
                planned_key_join,
                other,
                how=how,
                joiner=joiner,
                name=name,
                emit=emit,
                validate=validate,
            )
        return self._called(
            planned_join,
            other,
            extractor=on,
            how=how,
            joiner=joiner,
            name=name,
            deployment=deployment,
            application=application,
            emit=emit,
            validate=validate,
            spread=spread,
            argument="on",
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
        validate: bool | None = None,
    ) -> Grouped[Self]:
        """Group the table's rows, for a method of ``Grouped``: ``.agg(…)``, ``.count()``, ….

        Parameters
        ----------
        key : str, Column, window, or list of them
            Columns, SQL texts or Columns over the table's columns; they become the result's key.  A
            row with a null among them is in no group.  One may be ``fkjoin.window(…)``, with
            ``emit="on-close"``.
        value : str, Column, or list of them, optional
            The value that a row contributes, if the aggregate does not name a column.
        name : str, optional
            The name of state and metrics.
        emit : {"on-change", "on-update", "periodic …", "on-close"}, default "on-change"
            When a group's row is emitted.  ``"on-change"``: if its value or its timestamp (the
            latest of its rows' changes) differs from the one emitted last (KIP-557).
            ``"on-update"``: whenever one of its rows was updated.  ``"periodic …"``: see
            ``fk_join``.  ``"on-close"``, for windows: once, when stream time has reached the
            window's end plus ``grace``.  Stream time is the time that all sources have reached, by
            their timestamps.
        grace : str, optional
            How long after its end a window takes in rows, such as ``"2 minutes"``.  By default 0
            seconds.
        idle : str, optional
            How long a source without rows holds stream time back.  By default forever.
        ahead : str, optional
            How far a row's timestamp may be ahead of the time of its batch, such as ``"1 hour"``.
            Rows beyond that are dead letters, and do not move stream time.  By default any
            timestamp counts.
        deployment : {"fused", "staged"}, default "fused"
            ``"fused"``: in one query.  ``"staged"``, for tables made from topics: a query of
            ``Table.stages`` writes rows' contributions to the topic
            ``APPLICATION-NAME-repartition``, in KIP-904's format; the aggregate reads it.
        application : str, optional
            See ``fk_join``.
        validate : bool, optional
            See ``fk_join``.

        Returns
        -------
        Grouped

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> counts = orders.group_by("customer_id").count()
        """
        options = Options(name, emit, deployment, application, grace, idle, ahead)
        settings = Settings.of(self._planned.spark, validate)
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
        validate: bool | None = None,
    ) -> Self:
        """Give each of this table's rows a map of the left rows whose foreign key names it.

        This is KIP-213's alternative B.  Every result has the whole map, in byte order of the left
        keys.  In the store each left row is an entry of its own, so a change writes only that
        entry.

        Parameters
        ----------
        left : Table
            The table of the children.
        extractor : str, Column, list of them, or callable
            The foreign key of a left row; see ``fk_join``.
        column : str, default "children"
            The name of the map's column.  Without children the map is empty.
        name, emit, validate
            See ``fk_join``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> with_orders = customers.with_children(orders, "customer_id", column="orders")
        """
        children = planned_of("left", left)
        return self._called(
            planned_children,
            children,
            extractor=extractor,
            column=column,
            name=name,
            emit=emit,
            validate=validate,
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
        validate: bool | None = None,
    ) -> Enriched:
        """Give each event the columns of this table's row, once, as of the event's micro-batch.

        An event gets the row after all of the table's changes in its micro-batch.  It is emitted in
        that batch, and later changes of the table emit nothing for it.  The table's key is not
        added, since ``on`` is the same.

        Parameters
        ----------
        events : pyspark.sql.DataFrame or Enriched
            A streaming DataFrame whose rows are appended, or the events that another table has
            enriched.
        on : str, Column, or list of them
            Columns, SQL texts or Columns over the events that give the key of the table's row.
        how : {"inner", "left"}, default "inner"
            ``"inner"`` drops an event for which the table has no row, and counts it as
            ``events-without-row``.  ``"left"`` emits it with nulls, and counts it, too.  If ``on``
            is null, or null in one of its columns, there is no row.
        name : str, optional
            The name of state and metrics; generated from the rest if left out.
        events_name : str, optional
            The name of the stream in ``describe()`` and in errors; generated from its columns if
            left out.
        on_error : {"dead-letter", "skip", "fail"}, default "dead-letter"
            What happens to an event on which ``on`` throws; see ``from_stream``.
        validate : bool, optional
            See ``fk_join``.

        Returns
        -------
        Enriched

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> enriched = customers.enrich(clicks, on="customer", how="left")
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
        settings = Settings.of(self._planned.spark, validate)
        about: Any = {"on": on, "how": how, "name": name, "on_error": on_error}
        enriched: Enriched = Enriched._of(
            called(planned_enrich, self._planned, planned, settings=settings, **about)
        )
        return enriched

    def merge(
        self,
        *others: Self,
        name: str | None = None,
        emit: Emit = "on-change",
        validate: bool | None = None,
    ) -> Self:
        """Combine this table with others that have the same key and columns.

        If several tables have a key, the result has the row of the first of them, beginning with
        this one.  So a row that moves from one table to another is not lost to a stale tombstone.
        ``_version`` is a counter of the row.

        Parameters
        ----------
        *others : Table
            The other tables, by falling precedence.
        name, emit, validate
            See ``fk_join``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> everywhere = orders.merge(old_orders, name="everywhere")
        """
        tables = [planned_of(f"others[{index}]", other) for index, other in enumerate(others)]
        return self._called(merged, *tables, name=name, emit=emit, validate=validate)

    def materialize(self, name: str) -> Self:
        """Keep the table's rows in state under a name, for ``fkjoin.read_state``.

        fkjoin refuses a checkpoint that began without it, or under another name.  For a source, it
        also drops changes that leave a row unchanged, whose older timestamp stays (KIP-557), and
        ``_operation`` tells inserts from updates.

        Parameters
        ----------
        name : str
            The name for ``read_state``.

        Returns
        -------
        Table
            The same table.

        Examples
        --------
        >>> kept = orders.materialize("orders")
        """
        return self._called(views.materialized, name=name)
