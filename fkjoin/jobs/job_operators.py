"""Sections of a job file for operators: the calls that make their tables, and what these read."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar, get_args

from pydantic import Field, create_model, model_validator

from fkjoin import aggregates
from fkjoin.analysis.planned import Settings, called
from fkjoin.analysis.wanted import Wanted
from fkjoin.analysis.windows import window as window_of
from fkjoin.errors import FkJoinError
from fkjoin.events import Enriched
from fkjoin.folds import fold
from fkjoin.grouped import Grouped
from fkjoin.jobs.job_kinds import ANY, FaceCall, JobError, Kind, Section, Texts, of_calls
from fkjoin.join import cogroup
from fkjoin.lowering.operators import Operator
from fkjoin.spark.schemas import listed
from fkjoin.table import Table


class OperatorSection(Section):
    """A table that is made of others, by the first call of the section."""

    inputs: ClassVar[tuple[str, ...]] = ("of",)
    """Settings that name tables, one or several, in the order in which the call takes them."""
    stream: ClassVar[str | None] = None
    """The one of them that names events, where it makes events itself."""

    @property
    def reads(self) -> dict[str, str]:
        """The tables and events that it reads, by the settings that name them."""
        reads = {}
        for setting in self.inputs:
            names = self.value_of(setting)
            if isinstance(names, str):
                reads[setting] = names
            else:
                reads |= {f"{setting}.{number}": name for number, name in enumerate(names)}
        return reads

    def build(self, read: Callable[[str], Any], name: str, application: str) -> Any:
        """The table, with that ``name``.

        ``read``: gives a table, or events, by name.  ``application``: the prefix of the names of
        internal topics.
        """
        table = self.make(application, name, *map(read, self.reads.values()))
        return table.materialize(name) if getattr(self, "materialize", False) else table

    def make(self, application: str, name: str, *tables: Any) -> Any:
        """The table, made of those that it reads."""
        return self.called(self.of_kind.calls[0].function, application, name, *tables)

    def called(
        self,
        function: Callable[..., Any],
        application: str,
        name: str | None,
        *tables: Any,
        **more: Any,
    ) -> Any:
        """The outcome of a call with these tables and the section's settings."""
        call = self.call_of(function)
        options = self.arguments(function)
        for argument, setting in call.settings.items():
            if setting in self.inputs:
                del options[argument]
        if "application" in call.parameters:
            options["application"] = application
        return function(*tables, name=name, **options, **more)


def section_of(operator: Operator) -> type[OperatorSection]:
    """The section of an operator of another package, by the arguments of its ``bind``."""
    bind = operator.bind
    assert bind is not None

    @functools.wraps(bind)
    def bound(*tables: Table, **options: Any) -> Table:
        planned = [table._planned for table in tables]
        settings = Settings.of(planned[0].spark)
        return Table._of(called(bind, *planned, settings=settings, **options))

    call = FaceCall(bound)
    model = create_model(f"{str(operator.section).title()}Section", __base__=OperatorSection)
    model.kinds = (Kind("an operator", calls=(call,)),)
    options = [name for name, item in call.parameters.items() if item.kind is item.KEYWORD_ONLY]
    model.inputs = tuple(name for name in call.parameters if name not in options)
    return of_calls(model)


_NOT_BY_KEY = dict.fromkeys(("deployment", "spread"))


@of_calls
class JoinSection(OperatorSection):
    """A join of two tables or joins, by a foreign key or by primary key."""

    inputs = ("left", "right")
    kinds = (
        Kind(
            "a join by foreign key",
            {"extractor": ANY},
            (FaceCall(Table.join, {"on": "extractor"}),),
        ),
        Kind(
            "a join by primary key",
            calls=(FaceCall(Table.join, {"on": "extractor", **_NOT_BY_KEY}),),
        ),
    )

    left: str
    """The table whose rows point at the other."""
    right: str
    """The table that they point at."""
    extractor: Texts | None = None
    """Columns or expressions of the left row that give the right key.

    Without it, rows with the same key are joined.
    """
    joiner: Texts | None = None
    """The columns of the result; without it, the structs `left` and `right`."""
    materialize: bool = False
    """Keep the results in state under the join's name."""


@of_calls
class ChildrenSection(OperatorSection):
    """A table whose rows get a map of the rows of another one that point at them."""

    inputs = ("right", "left")
    kinds = (Kind("children", calls=(FaceCall(Table.with_children),)),)

    left: str
    """The table of the children, whose rows point at the other."""
    right: str
    """The table that they point at, whose rows get the map."""


# A section of its own has the arguments of ``group_by`` that are about windows.
_OF_WINDOWS = FaceCall(Table.group_by, dict.fromkeys(("key", "value", "emit", "deployment")))
_OF_GROUPS = FaceCall(Table.group_by, dict.fromkeys(("key", "value", "grace", "idle", "ahead")))


@of_calls
class WindowSection(Section):
    """Windows of time, whose results are sent when they close."""

    kinds = (Kind("windows", calls=(FaceCall(window_of), _OF_WINDOWS)),)


@of_calls
class AggregateSection(OperatorSection):
    """A table's rows by group.

    ``columns`` are such as ``orders = "count()"`` or ``revenue = "sum(left.amount)"``.
    """

    kinds = (Kind("an aggregate", calls=(_OF_GROUPS, FaceCall(Grouped.agg, {"columns": None}))),)

    table: str = Field(alias="of")
    """The table that is grouped."""
    group_by: Texts = Field([])
    """Columns or expressions of the group."""
    window: WindowSection | None = None
    """The windows of time that groups are of, besides; `emit` must be `on-close`."""
    columns: dict[str, str] = Field(min_length=1)
    """A column of the result and its aggregate each, such as `revenue = "sum(left.amount)"`."""

    @model_validator(mode="after")
    def _groups(self) -> AggregateSection:
        if not self.group_by and self.window is None:
            raise ValueError("give group_by, window, or both")
        return self

    def setting(self, argument: str) -> str | None:
        if argument == "key":
            return "group_by" if self.group_by else "window"
        if argument in WindowSection.model_fields:
            return f"window.{argument}"
        of_columns = argument == "agg" or argument in get_args(fold.AggregateKind)
        return "columns" if of_columns else super().setting(argument)

    def make(self, application: str, name: str, *tables: Any) -> Any:
        window, keys = self.window, listed(self.group_by)
        of_windows: dict[str, Any] = {}
        if window is not None:
            keys = [window_of(**window.arguments(window_of)), *keys]
            of_windows = window.arguments(Table.group_by)
        columns = {title: wanted_of(title, text) for title, text in self.columns.items()}
        grouped = self.called(Table.group_by, application, name, *tables, keys, **of_windows)
        return grouped.agg(**self.arguments(Grouped.agg), **columns)


class TogetherSection(OperatorSection):
    """Several tables as one."""

    tables: list[str] = Field(alias="of", min_length=2)
    """The tables. In a merge, the first one that has a key gives its row."""

    def setting(self, argument: str) -> str | None:
        of_list = re.fullmatch(r"(tables|others)\[(\d+)\]", argument)
        if of_list is None:
            return super().setting(argument)
        # The others of a merge come after the first table.
        return f"of.{int(of_list[2]) + (of_list[1] == 'others')}"


@of_calls
class MergeSection(TogetherSection):
    """Several tables as one, which contains the rows of all of them."""

    kinds = (Kind("a merge", calls=(FaceCall(Table.merge, {"others": None}),)),)


@of_calls
class CogroupSection(TogetherSection):
    """Several aggregates by the same key as one table, side by side."""

    kinds = (Kind("a cogroup", calls=(FaceCall(cogroup, {"tables": None}),)),)


@of_calls
class ViewSection(OperatorSection):
    """A table with some of its rows, or with other columns."""

    kinds = (
        Kind(
            "a view",
            calls=(FaceCall(Table.filter, {"condition": "filter"}), FaceCall(Table.map_values)),
        ),
    )

    table: str = Field(alias="of")
    """The table that it is of."""
    filter: str | None = None
    """A condition on rows that stay."""
    columns: Texts | None = None
    """The columns of the result, expressions over the row."""
    materialize: bool = False
    """Keep the rows in state under the view's name."""

    @model_validator(mode="after")
    def _something(self) -> ViewSection:
        if self.filter is None and self.columns is None:
            raise ValueError("give filter, columns, or both (the filter comes first)")
        return self

    def make(self, application: str, name: str, *tables: Any) -> Any:
        (table,) = tables
        if self.filter is not None:
            label = name if self.columns is None else None
            table = self.called(Table.filter, application, label, table)
        if self.columns is not None:
            table = self.called(Table.map_values, application, name, table)
        return table


@of_calls
class FlatMapSection(OperatorSection):
    """The rows that a table's rows make, under a key of their own.

    Without ``rows``, the rows themselves.
    """

    kinds = (
        Kind(
            "a flat map", calls=(FaceCall(Table.rekey), FaceCall(Table.flat_map, {"returns": None}))
        ),
    )

    table: str = Field(alias="of")
    """The table whose rows make them."""
    rows: str | None = None
    """An expression that gives an array; each of its items is a row."""

    def make(self, application: str, name: str, *tables: Any) -> Any:
        function = Table.rekey if self.rows is None else Table.flat_map
        return self.called(function, application, name, *tables)


@of_calls
class EnrichmentSection(OperatorSection):
    """Events with the columns of a table, each sent once."""

    inputs = ("table", "events")
    stream = "events"
    kinds = (Kind("an enrichment", calls=(FaceCall(Table.enrich, {"events_name": None}),)),)

    table: str
    """The table whose columns events get."""
    events: str
    """The events: a section of `events`, or of `enrichments`."""

    def make(self, application: str, name: str, *tables: Any) -> Any:
        more = {} if isinstance(tables[1], Enriched) else {"events_name": self.events}
        return self.called(Table.enrich, application, name, *tables, **more)


_CALL = re.compile(
    r"\s*(\w+)\s*\((.*?)\)"
    r"(?:\s*within\s+group\s*\(\s*order\s+by\s+(.+?)(?:\s+(asc|desc))?\s*\))?\s*",
    re.DOTALL | re.IGNORECASE,
)
_PIECES = re.compile(r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|.)""", re.DOTALL)
"""Texts and names in quotes, and single signs."""
_FORMS = {
    "string_agg": "string_agg(COLUMN, ', ')",
    "min_by": "min_by(COLUMN, ORDER)",
    "max_by": "max_by(COLUMN, ORDER, 3)",
}


def wanted_of(title: str, text: str) -> Wanted:
    """Read an aggregate's column as it stands in a job file.

    Such as ``count()``, ``sum(left.amount)`` or ``max_by(sku, amount, 3)``.
    """
    try:
        return _wanted(text)
    except (FkJoinError, ValueError, TypeError, SyntaxError) as error:
        forms = ", ".join(
            _FORMS.get(kind, f"{kind}(COLUMN)") for kind in get_args(fold.AggregateKind)
        )
        more = "; collect_list and string_agg may have: within group (order by COLUMN desc)"
        why = f" ({error})" if isinstance(error, FkJoinError) else ""
        raise JobError(
            f"columns.{title}: {text!r} is none of count(), {forms}{more}{why}"
        ) from error


def _wanted(text: str) -> Wanted:
    """The aggregate of a text, by a call of ``fkjoin.aggregates``."""
    match = _CALL.fullmatch(text)
    if match is None or match[1].lower() not in get_args(fold.AggregateKind):
        raise ValueError(text)
    make = getattr(aggregates, match[1].lower())
    arguments: list[Any] = split_arguments(match[2])
    for index, parameter in enumerate(inspect.signature(make).parameters.values()):
        # Columns are expressions, and other arguments literals: a delimiter, a number of rows.
        if index < len(arguments) and "Expression" not in parameter.annotation:
            arguments[index] = ast.literal_eval(arguments[index])
    order: dict[str, Any] = {}
    if match[3]:
        order["order_by"] = split_arguments(match[3])
        order["descending"] = (match[4] or "").lower() == "desc"
    wanted: Wanted = make(*arguments, **order)
    return wanted


def split_arguments(text: str) -> list[str]:
    """Cut SQL text at its commas, but for those in quotes or brackets."""
    parts, depth = [""], 0
    for piece in _PIECES.findall(text):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]
