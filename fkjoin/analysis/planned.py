"""A table as it was asked for, before anything of it runs.

It has a node, the types of its rows, and its expressions, analyzed.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, LongType, StringType, StructType

from fkjoin.analysis.bound import Scope
from fkjoin.analysis.emission import Emission
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.kafka.connection import Connection
from fkjoin.plan.base import Node, in_order
from fkjoin.plan.nodes import Source
from fkjoin.plan.physical import Physical
from fkjoin.sessions.settings import (
    bucket_count,
    index_dir,
    require_running,
    retention_ms,
    switched_off,
    validated,
)
from fkjoin.spark.copies import copied
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.frame import DELETED, KEY, PROBLEM, ROW, SOURCE, TS, VERSION
from fkjoin.spark.names import quoted
from fkjoin.spark.schemas import arrow_schema


@dataclass(frozen=True)
class Settings:
    """The session's settings at the moment when an operator is applied."""

    buckets: int
    retention_ms: int
    index_dir: str
    off: Mapping[str, str]
    """The rules of the optimizer that the session does not want, and why."""
    validate: bool

    @classmethod
    def of(cls, spark: SparkSession) -> Settings:
        """Read the session's settings."""
        return cls(
            bucket_count(spark),
            retention_ms(spark),
            index_dir(spark),
            switched_off(spark),
            validated(spark),
        )


class Undecoded(NamedTuple):
    """The lines of files, or a topic's records, and how workers read them."""

    lines: Physical
    reading: Any
    """``JsonLines``, ``TopicRecords``, or one of these ``Stepped``."""
    snapshot: Physical | None = None
    """Rows of a snapshot, which Spark reads; see ``spark.frame``."""


@dataclass(frozen=True, eq=False)
class SourceBound:
    """Source of a table."""

    operator: ClassVar[str] = "source"
    rows: Physical
    """With the columns of ``spark.frame``."""
    dead: tuple[Physical, ...] = ()
    """Rows, with ``RAW`` and ``PROBLEM``, that dead letters come from."""
    undecoded: Undecoded | None = None
    """Lines or records that workers read without ``rows``."""
    starts_over: bool = False
    """The user said so of the topic, should it be created again."""
    files: tuple[str, ...] = ()
    """Paths of the files that are read, perhaps patterns."""
    deleted: Any = None
    """The user's expression that deletes; None without."""
    misfit: TopologyError | None = None
    """Cause why the snapshot's files cannot be read.

    A checkpoint whose query has read them does not need them.
    """
    learned: StructType | None = None
    """The columns that files had when the table was made, where the user gave none."""
    folders: tuple[str, ...] = ()
    """Columns that names of folders are."""
    written: str | None = None
    """The folder of what fkjoin wrote."""
    delta: bool = False
    """The source is a Delta table: its rows are read first.

    All are as of one commit, perhaps in several batches.
    """


@dataclass(frozen=True, eq=False)
class OperatorBound:
    """Needs of lowering an operator, besides its node."""

    operator: ClassVar[str]
    emission: Emission
    settings: Settings


@dataclass(frozen=True, eq=False)
class Call:
    """A call that made a table, to be repeated when a checkpoint knows its sources otherwise."""

    bind: Callable[..., Planned]
    tables: tuple[Planned, ...]
    """The tables that it was given."""
    options: Mapping[str, Any] = field(repr=False)
    """Other arguments, the session's settings among them; of sources also secrets."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A table as it was asked for.  No frame is in it, but one that the user gave."""

    node: Node
    key_type: StructType
    row_type: StructType
    spark: SparkSession = field(repr=False)
    bound: Any = field(repr=False)
    """Needs of the planner besides the node: the operator's expressions and settings.

    Its ``operator`` says which one that is, see ``OPERATORS``."""
    inputs: tuple[Planned, ...] = ()
    """The tables that the operator reads."""
    timestamps: str | None = None
    """``"timestamp"`` or ``"bigint"``: the type of the table's timestamps; None without."""
    on_error: OnError = "dead-letter"
    """Action on rows on which an expression or a function of the user's throws."""
    connection: Connection | None = None
    """The topic that the table is read from, or one of those."""
    call: Call | None = field(default=None, repr=False)
    """The call that made it; None of a stream of events."""
    cache: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    """Its plan, made once, whatever reads it."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.key_type.names)

    @property
    def rest(self) -> tuple[str, ...]:
        """The row's columns that are not the key's."""
        return tuple(name for name in self.row_type.names if name not in self.key)

    @property
    def visible_names(self) -> list[str]:
        """The columns that expressions may name: the row's, and the key's that the row lacks."""
        names = self.row_type.names
        return [*names, *(name for name in self.key if name not in names)]

    @property
    def sources(self) -> list[SourceBound]:
        """List what is read by the table and by all that it is made of."""
        return [table.bound for table in sources_below(self)]

    def require_fitting(self) -> None:
        """Raise ``TopologyError`` if a snapshot below is to be read, and its files do not fit."""
        for source in self.sources:
            if source.misfit is not None:
                raise source.misfit

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files that the table is made of."""
        return tuple(chain.from_iterable(source.files for source in self.sources))

    @property
    def index_dirs(self) -> set[str]:
        """The folders in which the table's operators, and those below, keep their indexes.

        See ``Settings``.
        """
        needs = [table.bound for table in in_order(self) if hasattr(table.bound, "settings")]
        return {bound.settings.index_dir for bound in needs}

    @cached_property
    def scope(self) -> Scope:
        """The columns that expressions may name, to be analyzed over.

        The engine's own are not among them.
        """
        names = self.visible_names
        frame = self.visible.select(*map(quoted, names))
        row, key = arrow_schema("row", self.row_type), arrow_schema("key", self.key_type)
        schema = pa.schema([*row, *(field for field in key if field.name not in row.names)])
        return Scope(frame, tuple(names), f"table {self.name}", schema)

    @cached_property
    def visible(self) -> DataFrame:
        """An empty frame with the columns of a table's frame, to analyze expressions over."""
        require_running(self.spark)
        empty = self.spark.createDataFrame([], _internal(self.key_type, self.row_type))
        return with_visible(empty, self.key, self.row_type)


def refuse_same_name(name: str, nodes: Iterable[Node], kind: str) -> None:
    """Raise ``TopologyError`` if ``name`` already names something below the new operator.

    So it does if two sources there have one name: by its name a source is known in versions, in
    metrics and beside the checkpoint.  By the name of a materialized table, its rows are read and
    restored.  ``kind``: what errors call the operator.
    """
    sources: dict[str, Source] = {}
    keepers: dict[str, Node] = {}
    for node in in_order(*nodes):
        kept_as = node.kept_as
        if name in (node.name, kept_as):
            raise TopologyError(
                f"name: {name!r} already names an input of this {kind}; choose another"
            )
        if kept_as is not None and keepers.setdefault(kept_as, node) != node:
            raise TopologyError(
                f"name: the rows of two inputs of this {kind} are kept as {kept_as!r}; "
                "materialize one under another name"
            )
        if isinstance(node, Source) and (other := sources.setdefault(node.name, node)) != node:
            origins = dict.fromkeys([other.origin, node.origin])
            raise TopologyError(
                f"name: two sources of this {kind} are called {node.name!r} "
                f"({', and '.join(origins)}); give one another name="
            )


def made_of(
    tables: tuple[Planned, ...],
    node: Node,
    key_type: StructType,
    row_type: StructType,
    bound: Any,
    *,
    kind: str = "table",
) -> Planned:
    """The table that an operator makes of others; ``TopologyError`` if they have its name.

    It has the first table's ``on_error``, and the first timestamps and the first topic among all.
    """
    refuse_same_name(node.name, [table.node for table in tables], kind)
    first = tables[0]
    timestamps = [table.timestamps for table in tables if table.timestamps]
    connections = [table.connection for table in tables if table.connection]
    return Planned(
        node,
        key_type,
        row_type,
        first.spark,
        bound,
        tables,
        timestamps[0] if timestamps else None,
        first.on_error,
        connections[0] if connections else None,
    )


def called(bind: Callable[..., Planned], *tables: Planned, **options: Any) -> Planned:
    """The table that a call makes, which remembers the call.

    Raises ``TopologyError``.
    """
    call = Call(bind, tables, copied(options))
    with telling_files(*tables):
        return replace(bind(*tables, **call.options), call=call)


@contextlib.contextmanager
def telling_files(*tables: Planned) -> Iterator[None]:
    """Add files whose columns were learned to an error of a type.

    Other files may have been there at the first start.
    """
    try:
        yield
    except ColumnTypeError as error:
        sources = [source for source in sources_below(*tables) if source.bound.learned is not None]
        learned = {source.name: source.bound.files[0] for source in sources}
        if not learned:
            raise
        raise learned_otherwise(error, learned) from error


def learned_otherwise(error: ColumnTypeError, sources: Mapping[str, str]) -> TopologyError:
    """The error of a type that was learned; ``sources``: paths of tables of files, by name."""
    files = [f"{name} from {path}" for name, path in sources.items()]
    return TopologyError(
        f"{error}. The columns of {' and '.join(files)} were learned: give schema= with the types "
        "that most lines have; if a query has read these files before, give schema= as "
        '"fkjoin state columns CHECKPOINT" prints it'
    )


def sources_below(*tables: Planned) -> list[Planned]:
    """The tables that are read, of which the tables are made, each once."""
    return [source for source in in_order(*tables) if isinstance(source.bound, SourceBound)]


def rebuilt(table: Planned, other: Callable[[Planned], Planned]) -> Planned:
    """The table over inputs in whose place ``other`` ones come, from the sources up.

    ``other`` is called once for each.
    """

    @cache
    def again(current: Planned) -> Planned:
        inputs = tuple(map(again, current.inputs))
        same = all(map(operator.is_, inputs, current.inputs))
        return other(current if same else replace(current, inputs=inputs))

    return again(table)


def with_visible(frame: DataFrame, key: Iterable[str], row: StructType) -> DataFrame:
    """A table's frame with the row's columns, and the key's that the row lacks, by their names."""
    of_key = [F.col(quoted(KEY, name)) for name in key if name not in row.names]
    return frame.select("*", f"{ROW}.*", *of_key)


def _internal(key: StructType, row: StructType) -> StructType:
    version = StructType().add("v0", LongType())
    kind = StructType().add(KEY, key).add(ROW, row).add(DELETED, BooleanType())
    kind = kind.add(VERSION, version).add(SOURCE, BinaryType()).add(TS, LongType())
    return kind.add(PROBLEM, StringType())
