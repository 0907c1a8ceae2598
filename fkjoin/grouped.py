"""``Table.group_by``: rows summed up by group, up to date as rows come, change and go (KIP-904)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from fkjoin import aggregates
from fkjoin.analysis.bound import Projection, bind, schema_of
from fkjoin.analysis.checks import name_of, require_callables
from fkjoin.analysis.joiner import RETURNS
from fkjoin.analysis.planned import Call, Planned, Settings, telling_files
from fkjoin.analysis.wanted import Wanted, aggregate_column, ordered_by_key
from fkjoin.analysis.windows import Options, windowed, without_window
from fkjoin.errors import TopologyError
from fkjoin.folds.calls import AGGREGATE, Called, Evaluating, Reducing, Starting
from fkjoin.folds.fold import Fold
from fkjoin.lowering.aggregates import aggregated, bound_step, condition_on
from fkjoin.spark.copies import copied
from fkjoin.spark.names import quoted, quoted_if_needed
from fkjoin.spark.schemas import Expression, Expressions, arrow_schema, text
from fkjoin.spark.spark_api import require_classic

_Table = TypeVar("_Table")

Expressed = (str, Column)
"""The types in which an expression is given."""


class Grouped(Generic[_Table]):
    """A table's rows by group, from ``Table.group_by``; each method makes a table of groups.

    A group without rows has no row in the result. ``_version`` is a counter of the group.
    """

    _of: Callable[[Planned], _Table]
    """Function that makes a table's handle."""
    _grouping: _Grouping
    _given: dict[str, Any]

    @classmethod
    def _by(
        cls, handle: Callable[[Planned], _Table], table: Planned, **arguments: Any
    ) -> Grouped[_Table]:
        grouped = cls()
        grouped._of, grouped._given = handle, copied(arguments)
        grouped._grouping = _Grouping.of(table, **grouped._given)
        return grouped

    def _made(self, method: str, **arguments: Any) -> _Table:
        """The table that a method of the grouping makes."""
        grouping, options = self._grouping, copied({**self._given, "arguments": arguments})
        call = Call(partial(_grouped, method), (grouping.table,), options)
        with telling_files(grouping.table):
            planned = getattr(grouping, method)(**options["arguments"])
        return self._of(replace(planned, call=call))

    if not TYPE_CHECKING:  # else any name would do for type checkers

        def __getattr__(self, name: str) -> Any:
            if name[0] != "_" and hasattr(self._of.__self__, name):
                raise AttributeError(
                    f"a Grouped has no {name}; write .agg(…) first, which makes a Table",
                    name=name,
                    obj=self,
                )
            return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        grouping = self._grouping
        value = "" if grouping.value is None else f", of {', '.join(grouping.value.texts)}"
        return f"Grouped[{grouping.table.name} by {', '.join(grouping.key.texts)}{value}]"

    def agg(
        self, /, *_unnamed: object, having: Expression | None = None, **columns: Wanted
    ) -> _Table:
        """Make a table of named columns, each an aggregate of ``fkjoin.aggregates``.

        Parameters
        ----------
        *_unnamed : object
            Refused: each column needs a name.
        having : str or Column, optional
            A condition on the columns of the result and of its key. A group for which it is not
            true has no row.
        **columns : Wanted
            Aggregates of ``fkjoin.aggregates``, by the names of the result's columns. They are over
            the columns of the grouped table, or over the ``value`` of ``group_by``.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If no column is named, or one is wrong; the message says which, and why.

        Examples
        --------
        >>> from fkjoin import aggregates as agg
        >>> grouped = orders.group_by("customer_id")
        >>> totals = grouped.agg(orders=agg.count(), revenue=agg.sum("amount"))
        >>> totals.preview().orderBy("customer_id").show()
        +-----------+------+-------+
        |customer_id|orders|revenue|
        +-----------+------+-------+
        |         c1|     2|   15.0|
        |         c2|     1|   25.0|
        +-----------+------+-------+
        <BLANKLINE>
        """
        if _unnamed or not columns:
            raise TopologyError(
                "agg: name each column, such as agg(orders=fkjoin.aggregates.count())"
            )
        return self._made("agg", having=having, columns=columns)

    def count(self, column: Expression | None = None) -> _Table:
        """Count the rows of a group: ``agg(count=aggregates.count(column))``.

        Parameters
        ----------
        column : str or Column, optional
            The column; without it, or with ``"*"``, all rows count.

        Returns
        -------
        Table

        Examples
        --------
        >>> orders.group_by("customer_id").count().columns
        ['customer_id', 'count']
        """
        return self.agg(count=aggregates.count(column))

    def sum(self, column: Expression) -> _Table:
        """Add up a column in a group: ``agg(sum=aggregates.sum(column))``.

        Parameters
        ----------
        column : str or Column
            A column of numbers.

        Returns
        -------
        Table

        Examples
        --------
        >>> orders.group_by("customer_id").sum("amount").columns
        ['customer_id', 'sum']
        """
        return self.agg(sum=aggregates.sum(column))

    def avg(self, column: Expression) -> _Table:
        """Compute the mean of a column in a group: ``agg(avg=aggregates.avg(column))``.

        Parameters
        ----------
        column : str or Column
            A column of numbers.

        Returns
        -------
        Table

        Examples
        --------
        >>> orders.group_by("customer_id").avg("amount").columns
        ['customer_id', 'avg']
        """
        return self.agg(avg=aggregates.avg(column))

    def min(self, column: Expression) -> _Table:
        """Find the least value of a column in a group: ``agg(min=aggregates.min(column))``.

        Parameters
        ----------
        column : str or Column
            A column of numbers, text (compared by its bytes), booleans, dates or timestamps.

        Returns
        -------
        Table

        Examples
        --------
        >>> orders.group_by("customer_id").min("amount").columns
        ['customer_id', 'min']
        """
        return self.agg(min=aggregates.min(column))

    def max(self, column: Expression) -> _Table:
        """Find the greatest value of a column in a group: ``agg(max=aggregates.max(column))``.

        Parameters
        ----------
        column : str or Column
            A column of numbers, text (compared by its bytes), booleans, dates or timestamps.

        Returns
        -------
        Table

        Examples
        --------
        >>> orders.group_by("customer_id").max("amount").columns
        ['customer_id', 'max']
        """
        return self.agg(max=aggregates.max(column))

    def aggregate(
        self,
        initializer: Any,
        adder: Callable[[Any, Any, Any], Any] | Expression,
        subtractor: Callable[[Any, Any, Any], Any] | Expression,
        *,
        returns: DataType | str | None = None,
        column: str = "value",
    ) -> _Table:
        """Make a table with one column, by functions that add a row to a group and take it out.

        Each function is a Python callable of (key, value, aggregate) that returns the aggregate, or
        a Spark expression. An expression is over ``aggregate`` and the columns of key and value,
        for example ``"aggregate + amount"``. It may contain arithmetic, comparisons, conditions,
        casts of numbers, and functions of arrays. Workers evaluate it as Spark does in ANSI mode.

        For a row that changes and stays, fkjoin calls the subtractor with the old row, then the
        adder with the new row, in one step. In a group, changes of rows count in the order of
        their versions; a batch's changes of one row count as one. ``value`` is what
        ``group_by(value=…)`` names: one column unchanged, or several or a whole row as a ``Row``.
        An aggregate of None means "no result", and the next step starts with the initializer.

        Parameters
        ----------
        initializer : callable or value
            The aggregate that a group starts with: a value, or a callable without arguments that
            returns it. The functions get the aggregate in the type of the initializer, for example
            a set.
        adder : callable, str, or Column
            The function that adds a row to its group.
        subtractor : callable, str, or Column
            The function that takes a row out of its group.
        returns : pyspark.sql.types.DataType or str, optional
            The Spark type of the aggregate. By default bool, int, float or str, as the initializer
            makes it.
        column : str, default "value"
            The name of the result's column.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> grouped = orders.group_by("customer_id")
        >>> sums = grouped.aggregate(0.0, "aggregate + amount", "aggregate - amount")
        >>> sums.columns
        ['customer_id', 'value']
        """
        start = initializer if callable(initializer) else Starting(initializer)
        arguments = {"start": start, "adder": adder, "subtractor": subtractor}
        return self._made("aggregate", **arguments, returns=returns, column=column)

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        *,
        column: str = "value",
    ) -> _Table:
        """Make a table with one column, by functions of (aggregate, value).

        A group starts with its first value. The result has the type of the value.

        Parameters
        ----------
        adder : callable
            A function of (aggregate, value) that adds a value, and returns the aggregate.
        subtractor : callable
            A function of (aggregate, value) that takes a value out, and returns the aggregate.
        column : str, default "value"
            The name of the result's column.

        Returns
        -------
        Table

        Raises
        ------
        TopologyError
            If an argument is wrong; the message says which, and why.

        Examples
        --------
        >>> from operator import add, sub
        >>> grouped = orders.group_by("customer_id", "amount")
        >>> grouped.reduce(add, sub, column="total").columns
        ['customer_id', 'total']
        """
        return self._made("reduce", adder=adder, subtractor=subtractor, column=column)


@dataclass(frozen=True, eq=False)
class _Grouping:
    """A planned table's rows by group."""

    table: Planned
    key: Projection
    value: Projection | None
    options: Options
    settings: Settings
    plain: bool
    """The value is one column, given as it is."""

    @classmethod
    def of(
        cls,
        table: Planned,
        *,
        key: Any,
        value: Expressions | None,
        options: Options,
        settings: Settings,
    ) -> _Grouping:
        window, keys = without_window(key)
        with telling_files(table):
            groups = Projection.of("key", keys, table.scope)
            values = None if value is None else Projection.of("value", value, table.scope)
        is_single = values is not None and len(values.bound) == 1  # a star may be several
        plain = is_single and not isinstance(value, list | tuple)
        return cls(table, groups, values, replace(options, window=window), settings, plain)

    def agg(self, *, having: Expression | None, columns: Mapping[str, Wanted]) -> Planned:
        """See ``Grouped.agg``."""
        needed: dict[str, Expression] = {}
        for title, wanted in columns.items():
            if not isinstance(wanted, Wanted):
                names = ", ".join(aggregates.__all__[1:])
                raise TopologyError(
                    f"agg: {title} must be one of {names} of fkjoin.aggregates, it is a "
                    f"{type(wanted).__name__}"
                )
            for item in (wanted.column, *wanted.order):
                if item is not None:  # a literal reads like a column's name, but for its type
                    needed.setdefault(str(item), item)
        by_key = self.table.key if any(map(ordered_by_key, columns.values())) else ()
        value = self._numbered(needed, [quoted_if_needed(name) for name in by_key])
        schema = arrow_schema("agg", value.schema)
        places = {item: index for index, item in enumerate(needed)}
        key = range(len(needed), len(schema))
        items = columns.items()
        results = tuple(
            aggregate_column(title, wanted, places, key, schema) for title, wanted in items
        )
        described = tuple((title, str(wanted)) for title, wanted in items)
        fold = Fold(schema, results)
        if having is not None:
            condition = condition_on(having, self.table.spark, self._group, fold.schema)
            fold = replace(fold, having=condition)
        return self._aggregated(value, fold, described)

    def aggregate(
        self, *, start: Callable[[], Any], adder: Any, subtractor: Any, returns: Any, column: str
    ) -> Planned:
        """See ``Grouped.aggregate``."""
        require_callables("key, value, aggregate", Expressed, adder=adder, subtractor=subtractor)
        kind = RETURNS.get(type(start())) if returns is None else returns
        if kind is None:
            raise TopologyError(
                "returns: give the aggregate's Spark type, such as 'array<string>'; "
                f"it cannot be told from {start()!r}"
            )
        try:
            result = self.table.visible.select(F.lit(None).cast(kind).alias(column)).schema
        except (ParseException, AnalysisException) as error:
            raise TopologyError(
                f"returns: {returns!r} is not a Spark type, such as 'array<string>'"
            ) from error
        add = self._step("adder", adder, result)
        subtract = self._step("subtractor", subtractor, result)
        return self._called("aggregate", result, (start, add, subtract), (adder, subtractor))

    def reduce(self, *, adder: Any, subtractor: Any, column: str) -> Planned:
        """See ``Grouped.reduce``."""
        require_callables("aggregate, value", adder=adder, subtractor=subtractor)
        value = self.value or self._whole_row()
        kind = value.schema[0].dataType if self.plain else value.schema
        result = StructType().add(column, kind)
        functions = Starting(None), Reducing(adder), Reducing(subtractor)
        return self._called("reduce", result, functions, (adder, subtractor))

    @property
    def _group(self) -> StructType:
        """The type of a group's key."""
        return self.key.schema if self.options.window is None else windowed(self.key.schema)

    def _called(
        self,
        method: str,
        result: StructType,
        functions: tuple[Any, Any, Any],
        steps: tuple[Any, Any],
    ) -> Planned:
        value = self.value or self._whole_row()
        schema, key = arrow_schema("value", value.schema), arrow_schema("key", self._group)
        title, kind = result.names[0], arrow_schema("returns", result).field(0).type
        column = Called(title, kind, key, schema, self.plain, *functions, row=_row)
        fold = Fold(schema, (column,), nullable=True, ordered=True)
        texts = ", ".join(map(_text_of, steps))
        return self._aggregated(value, fold, ((title, f"{method} by {texts}"),))

    def _aggregated(
        self, value: Projection, fold: Fold, columns: tuple[tuple[str, str], ...]
    ) -> Planned:
        about: Any = {"options": self.options, "settings": self.settings}
        return aggregated(self.table, self.key, value, fold=fold, columns=columns, **about)

    def _step(self, argument: str, function: Any, result: StructType) -> Any:
        """An adder or subtractor, callable."""
        if not isinstance(function, Expressed):
            return function
        require_classic(self.table.spark, f"{argument} as an expression", "give a Python callable")
        value = self.value or self._whole_row()
        if self.options.window is not None:
            raise TopologyError(
                f"{argument}: an expression cannot aggregate by windows; give a Python callable, "
                "or write agg(…)"
            )
        key = self.key.schema.names
        names = [*key, *(name for name in value.schema.names if name not in key)]
        if AGGREGATE in names:
            raise TopologyError(
                f"{argument}: a column is called {AGGREGATE!r}, as the aggregate is; "
                "give it an alias"
            )
        columns = value.named | self.key.named
        kind = result[0].dataType
        own = [columns[name].alias(name) for name in names]
        rows = self.table.visible.select(*own, F.lit(None).cast(kind).alias(AGGREGATE))
        part = bound_step(argument, function, rows, kind)
        lower_key = tuple(map(str.lower, key))
        lower_value = tuple(map(str.lower, value.schema.names))
        return Evaluating(part, lower_key, lower_value, self.plain)

    def _whole_row(self) -> Projection:
        columns = [F.col(quoted(item)) for item in self.table.row_type.names]
        return Projection.of("value", columns, self.table.scope)

    def _numbered(self, needed: dict[str, Expression], key: list[str]) -> Projection:
        """The columns that aggregates need, the rows' key's last, called ``v0``, ``v1``, …."""
        names = [f"v{number}" for number in range(len(needed) + len(key))]
        if self.value is not None:
            among = {item: self.value.among("agg", item) for item in needed.values()}
            bound = tuple(replace(column, expression=item) for item, column in among.items())
        else:
            bound = bind("agg", list(needed.values()), self.table.scope)
        bound += bind("agg", key, self.table.scope)
        return Projection(bound, schema_of(bound)).renamed(names)


def _grouped(method: str, table: Planned, *, arguments: Mapping[str, Any], **by: Any) -> Planned:
    return getattr(_Grouping.of(table, **by), method)(**arguments)


def _text_of(step: Any) -> str:
    return text(step) if isinstance(step, Expressed) else name_of(step)


def _row(columns: Any) -> Row:
    return Row(*columns)(*columns.values())  # a column may be called as a parameter of Row is
