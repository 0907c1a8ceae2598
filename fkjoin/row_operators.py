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

        A row for which it no longer is true is deleted.  No tombstone is emitted for a row that was
        not in the result.

        Parameters
        ----------
        condition : str or Column
            SQL text or a Column over the table's columns.
        name : str, optional
            The name of state and metrics.
        emit : {"on-change", "on-update", "periodic …"}, default "on-change"
            When a row is emitted: ``"on-change"`` drops changes that leave it unchanged (KIP-557),
            ``"on-update"`` does not. ``"periodic …"``: see ``fk_join``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> large = orders.filter("amount > 100")
        """
        return self._called(views.filtered, condition=condition, name=name, emit=emit)

    def map_values(
        self, columns: Expressions, *, name: str | None = None, emit: Emit = "on-change"
    ) -> Self:
        """Replace the columns of the table's rows by others; the key stays.

        Parameters
        ----------
        columns : str, Column, or list of them
            The new columns: names, SQL texts, Columns.
        name, emit
            See ``filter``.

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
        """
        return self._called(views.mapped, columns=columns, name=name, emit=emit)

    def select(self, *cols: Expressions, name: str | None = None, emit: Emit = "on-change") -> Self:
        """Select columns, as Spark's ``select`` does, by ``map_values``; the key stays.

        Parameters
        ----------
        *cols : str, Column, or list of them
            Names, SQL texts, Columns; ``"*"`` is all of them.
        name, emit
            See ``filter``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> cents = orders.select("customer_id", "amount * 100 as cents")
        """
        columns: list[Expression] = []
        for column in cols:
            columns += listed(column)
        return self.map_values(columns, name=name, emit=emit)

    def drop(self, *cols: str, name: str | None = None, emit: Emit = "on-change") -> Self:
        """Drop columns, by ``map_values`` of the others.

        Parameters
        ----------
        *cols : str
            The names of the columns.  Unlike Spark's ``drop``, it refuses an unknown name.
        name, emit
            See ``filter``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If there is no such column, if it is one of the key, or if none is left.

        Examples
        --------
        >>> short = orders.drop("amount")
        """
        return self._called(views.dropped, names=cols, name=name, emit=emit)

    def with_columns(
        self,
        columns: Mapping[str, Expression],
        *,
        name: str | None = None,
        emit: Emit = "on-change",
    ) -> Self:
        """Add columns, or replace columns of the same names, as Spark's ``withColumns`` does.

        Parameters
        ----------
        columns : mapping of str to (str or Column)
            The new columns by name: SQL texts or Columns over the table's columns.
        name, emit
            See ``filter``.

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
        >>> more = orders.with_columns(columns)
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
        validate: bool | None = None,
    ) -> Self:
        """Make any number of rows from each row, under keys of their own.

        An output that its row no longer makes is deleted.  All results of one change of a row are
        in one batch.  If several rows make the same key, the result has the output of the row whose
        own key is least in byte order.  A row that makes one key twice is a dead letter.
        ``_version`` is a counter of the key.

        Parameters
        ----------
        rows : str, Column or callable
            An array over the table's columns.  The fields of its structs become the columns; other
            items the column ``col``. Or a callable of (key, row) that returns rows: tuples or
            dicts.  Null and an empty array make no rows.
        key : str, Column, or list of them
            Columns of the new rows or of the table's key, or expressions of them.  A row with a
            null in its key is left out and counted.
        returns : str or StructType, optional
            The columns of the rows that a callable returns, such as ``"sku string, n bigint"``.
        name : str, optional
            The name of state and metrics.
        emit
            See ``filter``.
        validate : bool, optional
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
        >>> rows = "transform(items, item -> struct(item.sku, item.n))"
        >>> lines = orders.flat_map(rows, key=["order_id", "sku"])
        """
        return self._called(
            flat_maps.flat_mapped,
            rows=rows,
            key=key,
            returns=returns,
            name=name,
            emit=emit,
            validate=validate,
        )

    def rekey(
        self,
        key: Expressions,
        *,
        name: str | None = None,
        emit: Emit = "on-change",
        validate: bool | None = None,
    ) -> Self:
        """Give the table's rows another key; the columns of the old key stay as columns.

        This is ``flat_map`` with one output of each row.  Of rows with the same new key, the result
        has the row of the least old key.

        Parameters
        ----------
        key : str, Column, or list of them
            Columns, SQL texts or Columns over the table's columns.  A row with a null in its key is
            left out and counted.
        name, emit, validate
            See ``flat_map``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> by_email = customers.rekey("lower(email) as login")
        """
        return self._called(flat_maps.rekeyed, key=key, name=name, emit=emit, validate=validate)
