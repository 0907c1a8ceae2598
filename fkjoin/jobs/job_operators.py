"""Sections of a job file for operators: their settings, what they read, and how tables are built."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import AfterValidator, Field, create_model, model_validator

from fkjoin import aggregates
from fkjoin.analysis.checks import Deployment
from fkjoin.analysis.emission import Emission, Emit
from fkjoin.analysis.planned import Planned, Settings, called
from fkjoin.analysis.wanted import Wanted
from fkjoin.analysis.windows import window as window_of
from fkjoin.errors import FkJoinError
from fkjoin.folds import fold
from fkjoin.jobs.job_columns import KnownColumns, named, require_known, split_arguments, with_columns
from fkjoin.jobs.job_events import events_of
from fkjoin.jobs.job_kinds import ANY, JobError, Kind, Section, Strict, located
from fkjoin.join import fk_join
from fkjoin.lowering.operators import OPERATORS, Operator
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.schemas import listed
from fkjoin.stages import How, HowByKey
from fkjoin.stages.join_rows import require_how
from fkjoin.table import Table

if TYPE_CHECKING:
    from fkjoin.jobs.job import Job


def understood(setting: str, understand: Callable[[str], object]) -> AfterValidator:
    """Turn a library's error about a text into one about its place in the file."""

    def checked(text: str) -> str:
        try:
            understand(text)
        except FkJoinError as error:
            raise ValueError(str(error).removeprefix(f"{setting}: ")) from error
        return text

    return AfterValidator(checked)


EmitText = Annotated[Emit, understood("emit", Emission.of)]
EmitOfGroups = Annotated[Emit, understood("emit", functools.partial(Emission.of, windows=True))]


class OperatorSection(Strict):
    """A table that is made of others."""

    inputs: ClassVar[tuple[str, ...]] = ("of",)
    """Settings that name tables, one or several."""
    stream: ClassVar[str | None] = None
    """The one of them that names events, where it makes events itself."""

    @property
    def reads(self) -> dict[str, str]:
        """The tables and events that it reads, by the settings that name them."""
        reads = {}
        for setting in self.inputs:
            names = getattr(self, setting)
            if isinstance(names, str):
                reads[setting] = names
            else:
                reads |= {f"{setting}.{number}": name for number, name in enumerate(names)}
        return reads

    def build(self, job: Job, kind: str, name: str) -> Any:
        """The table, with that ``name``; ``kind``: the name of the section."""
        operator = next(operator for operator in OPERATORS.values() if operator.section == kind)
        assert operator.bind is not None
        tables = [job.tables[table]._planned for table in self.reads.values()]
        others = [setting for setting in type(self).model_fields if setting not in self.inputs]
        about = {"name": name, "settings": Settings.of(tables[0].spark), **self.arguments(*others)}
        return Table._of(called(operator.bind, *tables, **about))

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        """The columns of its table, by those of others.

        Raises ``JobError`` for the name of a column that no row can have.
        """
        return None


_IN_FILES = {"Expression": str, "Expressions": str | list[str], "Emit": EmitText}
"""Names of types of arguments, and what a job file has in their place."""


def section_of(operator: Operator) -> type[OperatorSection]:
    """The section of an operator without a model of its own, by the arguments of its ``bind``."""
    assert operator.bind is not None
    fields: dict[str, Any] = {}
    inputs: list[str] = []
    arguments = signature(operator.bind, locals=_IN_FILES, eval_str=True).parameters
    for name, argument in arguments.items():
        if name in ("name", "settings"):
            continue
        kind = argument.annotation
        if kind is Planned:
            inputs.append(name)
            kind = list[str] if argument.kind is Parameter.VAR_POSITIONAL else str
        fields[name] = (kind, ... if argument.default is Parameter.empty else argument.default)
    title = f"{str(operator.section).title()}Section"
    model = create_model(title, __base__=OperatorSection, **fields)
    model.inputs = tuple(inputs)
    return model


class JoinSection(Section, OperatorSection):
    """A join of two tables or joins, by a foreign key or by primary key."""

    inputs = ("left", "right")
    kinds = (
        Kind("a join by foreign key", {"extractor": ANY}, ("deployment", "spread")),
        Kind("a join by primary key", {}),
    )
    this_is = "this is"

    left: str
    """The table whose rows point at the other."""
    right: str
    """The table that they point at."""
    extractor: str | list[str] | None = None
    """Columns or expressions of the left row that give the right key; without it, rows with the same key are joined."""
    how: HowByKey = "inner"
    """`left` keeps left rows without a right row, and `outer`, by primary key only, those of both."""
    joiner: str | list[str] | None = None
    """The columns of the result; without it, the structs `left` and `right`."""
    deployment: Deployment = "fused"
    """`staged` passes messages through topics."""
    spread: int = Field(1, ge=1)
    """The number of buckets over which the left rows of one foreign key are spread."""
    emit: EmitText = "on-change"
    """The results to send: those on change, on update, or at intervals."""
    materialize: bool = False
    """Keep the results in state under the join's name."""

    @model_validator(mode="after")
    def _how_of_its_kind(self) -> JoinSection:
        if self.extractor is not None:
            try:
                require_how(self.how)
            except FkJoinError as error:
                raise ValueError(str(error)) from error
        return self

    def build(self, job: Job, kind: str, name: str) -> Any:
        left, right = job.tables[self.left], job.tables[self.right]
        about = self.arguments("how", "joiner", "emit")
        if self.extractor is None:
            joined = left.join(right, name=name, **about)
        else:
            about |= self.arguments("extractor", "deployment", "spread")
            joined = fk_join(left, right, name=name, application=job.spec.name, **about)
        return joined.materialize(name) if self.materialize else joined

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        left, right = known.get(self.left), known.get(self.right)
        require_known(f"{where}.extractor", self.extractor, left, f"left table {self.left}")
        if left is None or right is None:
            return None
        # Which columns are the key is not looked up.
        sides, keys = {"left": left, "right": right}, {**right, **left}
        require_known(f"{where}.joiner", self.joiner, sides, "the joined row")
        return {**keys, **sides} if self.joiner is None else with_columns(keys, self.joiner)


class ChildrenSection(OperatorSection):
    """A table whose rows get a map of the rows of another one that point at them."""

    inputs = ("left", "right")

    left: str
    """The table of the children, whose rows point at the other."""
    right: str
    """The table that they point at, whose rows get the map."""
    extractor: str | list[str]
    """Columns or expressions of the left row that give the right key."""
    column: str = "children"
    """The name of the map's column."""
    emit: EmitText = "on-change"
    """The results to send: those on change, on update, or at intervals."""

    def build(self, job: Job, kind: str, name: str) -> Any:
        parents, children = job.tables[self.right], job.tables[self.left]
        about = self.arguments("extractor", "column", "emit")
        return parents.with_children(children, name=name, **about)

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        left, columns = known.get(self.left), known.get(self.right)
        require_known(f"{where}.extractor", self.extractor, left, f"left table {self.left}")
        return None if columns is None else {**columns, **named([self.column])}


class WindowSection(Strict):
    """Windows of time, whose results are sent when they close."""

    time: str
    """The column or expression of the row's time."""
    size: str
    """The length of a window, such as `10 minutes`."""
    slide: str | None = None
    """The time between the starts of windows; without it, the size."""
    grace: str | None = None
    """The time after its end in which a window takes in rows; without it, no longer."""
    idle: str | None = None
    """The time for which a source without rows holds windows open; without it, for ever."""
    ahead: str | None = None
    """The time by which a row's timestamp may be ahead of its batch; rows beyond it are dead letters."""


class AggregateSection(OperatorSection):
    """A table's rows by group; ``columns`` are such as ``orders = "count()"`` or ``revenue = "sum(left.amount)"``."""

    of: str
    """The table that is grouped."""
    group_by: str | list[str] = Field([])
    """Columns or expressions of the group."""
    window: WindowSection | None = None
    """The windows of time that groups are of, besides; `emit` must be `on-close`."""
    columns: dict[str, str] = Field(min_length=1)
    """A column of the result and its aggregate each, such as `revenue = "sum(left.amount)"`."""
    having: str | None = None
    """A condition on the columns of the result; a group for which it does not hold has no row."""
    emit: EmitOfGroups = "on-change"
    """The results to send: those on change, on update, at intervals, or, of windows, when they close."""
    deployment: Deployment = "fused"
    """`staged` passes messages through a topic."""
    upgrade_from: int | None = None
    """The older wire version to write for as long as an instance reads no newer one."""

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
        return "columns" if argument == "agg" or argument in get_args(fold.AggregateKind) else super().setting(argument)

    def build(self, job: Job, kind: str, name: str) -> Any:
        window, key = self.window, listed(self.group_by)
        about = self.arguments("emit", "deployment", "upgrade_from")
        if window is not None:
            key = [window_of(window.time, window.size, window.slide), *key]
            about |= window.arguments("grace", "idle", "ahead")
        columns = {title: wanted_of(title, text) for title, text in self.columns.items()}
        grouped = job.tables[self.of].group_by(key, name=name, application=job.spec.name, **about)
        return grouped.agg(having=self.having, **columns)

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        columns, of = known.get(self.of), f"table {self.of}"
        require_known(f"{where}.group_by", self.group_by, columns, of)
        if self.window is not None:
            require_known(f"{where}.window.time", self.window.time, columns, of)
        for title, text in self.columns.items():
            with located(where, self):
                wanted_of(title, text)
            require_known(f"{where}.columns.{title}", arguments_of(text), columns, of)
        return None if self.window is not None else with_columns(named(self.columns), self.group_by)


class TogetherSection(OperatorSection):
    """Several tables as one: merged, or, of aggregates by the same key, side by side."""

    of: list[str] = Field(min_length=2)
    """The tables. In a merge, the first one that has a key gives its row."""
    emit: EmitText = "on-change"
    """The results to send: those on change, on update, or at intervals."""

    def setting(self, argument: str) -> str | None:
        of_list = re.fullmatch(r"(tables|others)\[(\d+)\]", argument)
        if of_list is None:
            return super().setting(argument)
        return f"of.{int(of_list[2]) + (of_list[1] == 'others')}"  # the others come after the first one

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        return known.get(self.of[0]) if where.startswith("merges.") else None


class ViewSection(OperatorSection):
    """A table with some of its rows, or with other columns."""

    of: str
    """The table that it is of."""
    filter: str | None = None
    """A condition on rows that stay."""
    columns: str | list[str] | None = None
    """The columns of the result, expressions over the row."""
    emit: EmitText = "on-change"
    """The results to send: those on change, on update, or at intervals."""
    materialize: bool = False
    """Keep the rows in state under the view's name."""

    def setting(self, argument: str) -> str | None:
        return "filter" if argument == "condition" else super().setting(argument)

    @model_validator(mode="after")
    def _something(self) -> ViewSection:
        if self.filter is None and self.columns is None:
            raise ValueError("give filter, columns, or both (the filter comes first)")
        return self

    def build(self, job: Job, kind: str, name: str) -> Any:
        table = job.tables[self.of]
        if self.filter is not None:
            label = name if self.columns is None else None
            table = table.filter(self.filter, name=label, emit=self.emit)
        if self.columns is not None:
            table = table.map_values(self.columns, name=name, emit=self.emit)
        return table.materialize(name) if self.materialize else table

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        columns, of = known.get(self.of), f"table {self.of}"
        require_known(f"{where}.filter", self.filter, columns, of)
        require_known(f"{where}.columns", self.columns, columns, of)
        return with_columns(columns, self.columns)


class FlatMapSection(OperatorSection):
    """The rows that a table's rows make, under a key of their own; without ``rows``, the rows themselves."""

    of: str
    """The table whose rows make them."""
    key: str | list[str]
    """Columns or expressions of the made row that give its key."""
    rows: str | None = None
    """An expression that gives an array; each of its items is a row."""
    emit: EmitText = "on-change"
    """The results to send: those on change, on update, or at intervals."""

    def build(self, job: Job, kind: str, name: str) -> Any:
        table, key = job.tables[self.of], listed(self.key)
        if self.rows is None:
            return table.rekey(key, name=name, emit=self.emit)
        return table.flat_map(self.rows, key=key, name=name, emit=self.emit)

    def known_columns(self, where: str, known: Mapping[str, KnownColumns]) -> KnownColumns:
        columns, of = known.get(self.of), f"table {self.of}"
        require_known(f"{where}.rows", self.rows, columns, of)
        if self.rows is not None:
            return None
        require_known(f"{where}.key", self.key, columns, of)
        return with_columns(columns, self.key)


class EnrichmentSection(OperatorSection):
    """Events with the columns of a table, each sent once."""

    inputs = ("events", "table")
    stream = "events"

    table: str
    """The table whose columns events get."""
    events: str
    """The events: a section of `events`, or of `enrichments`."""
    on: str | list[str]
    """Columns or expressions of the event that give the table's key."""
    how: How = "inner"
    """`inner` drops events for which the table has no row, and `left` gives them nulls."""
    on_error: OnError = "dead-letter"
    """Handling of events on which `on` fails: `fail` stops the query, `dead-letter` sets them aside."""

    def build(self, job: Job, kind: str, name: str) -> Any:
        table = job.tables[self.table]
        about = self.arguments("on", "how", "on_error")
        if self.events not in job.spec.events:
            return table.enrich(job.tables[self.events], name=name, **about)
        events = events_of(job.spec, self.events, table._planned.spark)
        return table.enrich(events, name=name, events_name=self.events, **about)


_CALL = re.compile(
    r"\s*(\w+)\s*\((.*?)\)(?:\s*within\s+group\s*\(\s*order\s+by\s+(.+?)(?:\s+(asc|desc))?\s*\))?\s*", re.DOTALL | re.IGNORECASE
)
_FORMS = {
    "string_agg": "string_agg(COLUMN, ', ')",
    "min_by": "min_by(COLUMN, ORDER)",
    "max_by": "max_by(COLUMN, ORDER, 3)",
}


def wanted_of(title: str, text: str) -> Wanted:
    """An aggregate's column as it stands in a job file: ``count()``, ``sum(left.amount)``, ``max_by(sku, amount, 3)``, …."""
    try:
        return _wanted(*_parsed(text))
    except (FkJoinError, ValueError, TypeError, SyntaxError) as error:
        forms = ", ".join(_FORMS.get(one, f"{one}(COLUMN)") for one in get_args(fold.AggregateKind))
        more = "; collect_list and string_agg may have: within group (order by COLUMN desc)"
        why = f" ({error})" if isinstance(error, FkJoinError) else ""
        raise JobError(f"columns.{title}: {text!r} is none of count(), {forms}{more}{why}") from error


def _parsed(text: str) -> tuple[str, str, list[str], bool]:
    """The aggregate, what is in its parentheses, its order, and whether that is from the greatest down."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(text)
    kind, column, order, way = match[1].lower(), match[2].strip(), match[3], match[4]
    if kind not in get_args(fold.AggregateKind) or (not column and kind != "count"):
        raise ValueError(text)
    if order and kind not in ("collect_list", "string_agg"):
        raise ValueError(text)
    return kind, column, split_arguments(order or ""), (way or "").lower() == "desc"


def _wanted(kind: str, given: str, order: list[str], descending: bool) -> Wanted:
    if kind in ("min_by", "max_by"):
        column, by, *rest = split_arguments(given)
        return (aggregates.min_by if kind == "min_by" else aggregates.max_by)(column, by, *map(int, rest))
    how: Any = {"order_by": order or None, "descending": descending}
    if kind == "string_agg":
        column, *rest = split_arguments(given)
        return aggregates.string_agg(column, *map(ast.literal_eval, rest), **how)
    if kind == "collect_list":
        return aggregates.collect_list(given, **how)
    return Wanted(kind, given if given not in ("", "*") else None)  # type: ignore[arg-type]


def arguments_of(text: str) -> list[str]:
    """List what stands in the parentheses of an aggregate's column, and what it is ordered by."""
    _, column, order, _ = _parsed(text)
    return [*split_arguments(column), *order]
