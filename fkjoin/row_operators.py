"""Operators that make another table of a table row by row; ``Table`` has these methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from fkjoin.analysis import views
from fkjoin.analysis.emission import Emit
from fkjoin.lowering import flat_maps
from fkjoin.lowering.flat_maps import RowsExpression
from fkjoin.lowering.handle import Handle
from fkjoin.spark.schemas import Expression, Expressions, listed

if TYPE_CHECKING:
    from typing_extensions import Self


class RowOperators(Handle):
    """Each returns a new table; nothing runs."""

    def filter(
        self, condition: Expression, *, name: str | None = None, emit: Emit = "on-change"
    ) -> Self:
        """Keep the table's rows for which a condition is true.

        If it is no longer true for a row, the row is deleted from the result. A row that was not in
        the result emits no tombstone.

        Parameters
        ----------
        condition : str or Column
            SQL text or a Column over the table's columns.
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
        >>> orders.filter("amount > 5").preview().orderBy("order_id").show()
        +--------+-----------+------+
        |order_id|customer_id|amount|
        +--------+-----------+------+
        |      o1|         c1|  10.0|
        |      o2|         c2|  25.0|
        +--------+-----------+------+
        <BLANKLINE>
        """
        return self._called(views.filtered, condition=condition, name=name, emit=emit)

    def map_values(
        self, columns: Expressions, *, name: str | None = None, emit: Emit = "on-change"
    ) -> Self:
        """Replace the columns of the table's rows by other columns; the key stays.

        Parameters
        ----------
        columns : str, Column, or list of them
            The new columns: names, SQL texts or Columns.
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
        >>> cents = orders.map_values(["customer_id", "amount * 100 as cents"])
        >>> cents.columns
        ['order_id', 'customer_id', 'cents']
        """
        return self._called(views.mapped, columns=columns, name=name, emit=emit)

    def select(self, *cols: Expressions, name: str | None = None, emit: Emit = "on-change") -> Self:
        """Select columns, as Spark's ``select`` does; the key stays.

        Parameters
        ----------
        *cols : str, Column, or list of them
            Names, SQL texts or Columns; ``"*"`` stands for all columns.
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
        >>> orders.select("customer_id", "amount * 100 as cents").columns
        ['order_id', 'customer_id', 'cents']
        """
        columns: list[Expression] = []
        for column in cols:
            columns += listed(column)
        return self.map_values(columns, name=name, emit=emit)

    def drop(self, *cols: str, name: str | None = None, emit: Emit = "on-change") -> Self:
        """Drop columns of the row; the key stays.

        Parameters
        ----------
        *cols : str
            The names of the columns. Unlike in Spark's ``drop``, an unknown name is an error.
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
            If a column does not exist or belongs to the key, or if no column is left.

        Examples
        --------
        >>> orders.drop("amount").columns
        ['order_id', 'customer_id']
        """
        return self._called(views.dropped, names=cols, name=name, emit=emit)

    def with_columns(
        self,
        columns: Mapping[str, Expression],
        *,
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Add columns, or replace columns of equal names, as Spark's ``withColumns`` does.

        Parameters
        ----------
        columns : mapping of str to (str or Column)
            The new columns by name, as SQL texts or Columns over the table's columns.
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
        >>> columns = {"cents": "amount * 100", "customer_id": "upper(customer_id)"}
        >>> orders.with_columns(columns).columns
        ['order_id', 'customer_id', 'amount', 'cents']
        """
        return self._called(views.with_columns, columns=columns, name=name, emit=emit)

    def flat_map(
        self,
        rows: RowsExpression,
        *,
        key: Expressions,
        returns: str | StructType | None = None,
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Make any number of rows from each row, under keys of their own.

        An output that its row no longer makes is deleted. All results of one change of a row are in
        one batch. If several rows make one key, the result has the output of the row whose own key
        is least in byte order. A row that makes one key twice is a dead letter. ``_version`` is a
        counter of the key.

        Parameters
        ----------
        rows : str, Column, or callable
            SQL text or a Column over the table's columns that gives an array. The fields of its
            structs become the columns; other items become the column ``col``. Or a callable of
            (key, row) that returns rows, as tuples or dicts. Null and an empty array make no rows.
        key : str, Column, or list of them
            Columns of the new rows or of the table's key, or expressions over them. A row with a
            null in its key is left out and counted.
        returns : str or pyspark.sql.types.StructType, optional
            The columns of the rows that a callable returns, for example ``"sku string, n bigint"``.
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
        >>> rows = "transform(items, item -> struct(item.sku, item.n))"
        >>> lines = carts.flat_map(rows, key=["cart_id", "sku"])
        >>> lines.preview().orderBy("cart_id", "sku").show()
        +-------+---+---+
        |cart_id|sku|  n|
        +-------+---+---+
        |     a1|tea|  2|
        |     a1|tin|  1|
        |     a2|tea|  5|
        +-------+---+---+
        <BLANKLINE>
        """
        return self._called(
            flat_maps.flat_mapped,
            rows=rows,
            key=key,
            returns=returns,
            name=name,
            emit=emit,
        )

    def rekey(
        self,
        key: Expressions,
        *,
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Give the table's rows another key; the columns of the old key stay as columns.

        This is ``flat_map`` with one output of each row. If several rows get one new key, the
        result has the row with the least old key.

        Parameters
        ----------
        key : str, Column, or list of them
            Column names, SQL texts or Columns over the table's columns. A row with a null in its
            key is left out and counted.
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
        >>> customers.rekey("lower(name) as login").columns
        ['login', 'customer_id', 'name', 'region']
        """
        return self._called(flat_maps.rekeyed, key=key, name=name, emit=emit)
