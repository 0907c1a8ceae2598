"""Plans of tables and jobs as text, with all that must not move.  It holds what tests of plans know of internals.

The plan that Spark has analyzed tells what a query reads, keeps and counts; no query runs.  It is the plan of the frames that
a table has for its readers, and of those that its sinks start with.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import utils
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from fkjoin import Table
from fkjoin.events import Enriched
from fkjoin.jobs.job import Job
from fkjoin.plan.base import in_order
from fkjoin.plan.rules import RULES
from fkjoin.sessions.settings import EXCLUDED, OPTIMIZE
from fkjoin.spark.identity import identity_text, read_identity
from fkjoin.spark.specs import StageSpec, StateSpec

STATEFUL, METRICS = "TransformWithStateInPySpark", "CollectMetrics"

_OF_ALL = ("buckets", "retention_ms", "index_dir")
"""Settings of the session, for all operators of a query."""
_ENVELOPES = "struct<bucket:int,payload:binary,counter:string,count:bigint>"
_OPTIONS = ("subscribe", "startingOffsets", "interval_ms")
"""The options of sources that are said; of files all but the path are."""


@contextmanager
def rules(spark: SparkSession, choice: str) -> Iterator[None]:
    """Set the rules for what is built meanwhile: ``all rules``, ``no rules``, or ``without RULE``."""
    rule = choice.removeprefix("without ")
    assert choice in ("all rules", "no rules") or rule in RULES
    spark.conf.set(OPTIMIZE, str(choice != "no rules").lower())
    spark.conf.set(EXCLUDED, rule if rule in RULES else "")
    try:
        yield
    finally:
        spark.conf.set(OPTIMIZE, "true")
        spark.conf.set(EXCLUDED, "")


@contextmanager
def quick() -> Iterator[None]:
    """PySpark does not tell the JVM meanwhile from which line each column comes, which takes a quarter of the time."""
    before = utils._enable_debugging_cache
    utils._enable_debugging_cache = False
    try:
        yield
    finally:
        utils._enable_debugging_cache = before


@dataclass
class Text:
    """Lines; a block that stood before is not repeated."""

    lines: list[str] = field(default_factory=list)
    known: dict[tuple[str, ...], str] = field(default_factory=dict)
    where: tuple[str, ...] = ()

    def add(self, line: str) -> None:
        self.lines.append("  " * len(self.where) + line)

    def block(self, title: str, lines: Iterable[str]) -> None:
        """Lines under a title, or where they stand already."""
        found = tuple(lines)
        place = ", ".join((*self.where, title))
        if len(found) > 1 and found in self.known:
            self.add(f"{title}: see {self.known[found]}")
            return
        self.known.setdefault(found, place)
        self.add(title if found else f"{title}: none")
        for line in found:
            self.add(f"  {line}")

    @contextmanager
    def under(self, title: str) -> Iterator[None]:
        self.add(title)
        self.where = (*self.where, title)
        yield
        self.where = self.where[:-1]


def has_verdicts(built: Table | Enriched | Job) -> bool:
    """Tell whether any of the optimizer's rules is for it."""
    return bool(_verdicts(built.tables.values() if isinstance(built, Job) else [built]))


def told(built: Table | Enriched | Job, text: Text, folder: Path, *, whole: bool) -> None:
    """Write down what a table or a job, built just now, comes to; ``whole``: of a table, more than its changes."""
    if isinstance(built, Job):
        _told_of_job(built, text)
        return
    text.block("describe()", built.describe().splitlines())
    text.block("rules", _verdicts([built]))
    frames = {"events": built.events} if isinstance(built, Enriched) else {"changes": built.changes}
    for stage in built.stages:
        frames[f"stage {stage.name}"] = stage.frame
    if whole:
        frames["to_parquet"] = started(lambda: built.to_parquet(folder / "out", checkpoint=folder / "checkpoint"))
        if (letters := built.dead_letters) is not None:
            frames["dead letters"] = letters
    for name, frame in frames.items():
        _told_of_query(name, frame, text)


def _told_of_job(job: Job, text: Text) -> None:
    text.block("describe()", job.describe().splitlines())
    text.block("rules", _verdicts(job.tables.values()))
    for query in job.queries():
        _told_of_query(query.name, started(query.start), text)


def _verdicts(tables: Iterable[Table | Enriched]) -> list[str]:
    nodes = in_order(*(table._plan.node for table in tables))
    return [f"{node.name}: {verdict}" for node in nodes for verdict in node.rules]


def _told_of_query(name: str, frame: DataFrame, text: Text) -> None:
    plan, columns = read_plan(frame), frame.schema.simpleString()
    text.add(f"query {name}: {'envelopes' if columns == _ENVELOPES else columns}")
    alone = Text(where=("query",))
    _told_of_plan(plan, alone)
    whole, here = tuple(alone.lines), ", ".join((*text.where, name))
    if whole in text.known:
        text.add(f"  as {text.known[whole]}")
        return
    text.known[whole] = here
    text.where = (*text.where, name)
    _told_of_plan(plan, text)
    text.where = text.where[:-1]


def _told_of_plan(plan: Plan, text: Text) -> None:
    for number, source in enumerate(plan.sources):
        text.add(f"source {number}: {source}")
    for settings in sorted({", ".join(_settings(operator.spec.state, _OF_ALL)) for operator in plan.operators}):
        text.add(f"of every operator: {settings}")
    for number, operator in enumerate(plan.operators):
        spec = operator.spec
        with text.under(f"operator {number}: {spec.name}"):
            text.add(f"reads {', '.join(operator.reads)}")
            own = _settings(spec, (one.name for one in fields(spec) if one.name != "state"))
            text.add(", ".join(own) or "all else as by default")
            facts, about = _identity(spec)
            text.block("bound to", facts)
            text.block("about", about)
    text.block("counters", [f"{name}: {', '.join(columns)}" for name, columns in plan.counters])


def _settings(spec: StageSpec | StateSpec, names: Iterable[str]) -> Iterator[str]:
    """Those that are not as they are by default; of what is more than a value, what it is."""
    of = {one.name: one for one in fields(spec)}
    for name in names:
        value = getattr(spec, name)
        if of[name].default is MISSING or value != of[name].default:
            yield f"{name}={type(value).__name__ if is_dataclass(value) else value}"


def _identity(spec: StageSpec) -> tuple[list[str], list[str]]:
    """Facts that bind a checkpoint, and facts kept for its readers, without those that say which stage it is."""
    state = spec.state
    facts, about = read_identity(state.identity.encode())
    assert identity_text(facts, about) == state.identity
    assert [facts.pop(name) for name in ("join", "stage", "buckets")] == [state.operator, spec.stage, state.buckets]
    return [f"{name} = {json.dumps(value)}" for name, value in sorted(facts.items())], [
        f"{name} = {_type(value)}" for name, value in sorted(about.items())
    ]


def _type(value: Any) -> str:
    """A type as people read it, and a digest of all that it says."""
    whole = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict) or value.get("type") != "struct":
        return whole
    return f"{StructType.fromJson(value).simpleString()} #{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


# Plans


@dataclass(frozen=True)
class Operator:
    """A stateful operator."""

    spec: StageSpec
    reads: tuple[str, ...]
    """The operators and sources that are next below it."""


@dataclass
class Plan:
    """The parts of an analyzed plan on which a checkpoint depends."""

    sources: list[str] = field(default_factory=list)
    """The sources, as Spark numbers them."""
    operators: list[Operator] = field(default_factory=list)
    """The stateful operators, as Spark numbers them: from the sink on, each before what it reads."""
    counters: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Names under which the progress has what is observed, and its columns."""


def read_plan(frame: DataFrame) -> Plan:
    """Read the analyzed plan of a streaming DataFrame."""
    plan, leaves = Plan(), list[Any]()
    spark = frame.sparkSession

    def visit(node: Any) -> list[str]:
        name = node.nodeName()
        if name == STATEFUL:
            number = len(plan.operators)
            plan.operators.append(Operator(_spec(spark, node), ()))
            plan.operators[number] = Operator(plan.operators[number].spec, tuple(visit(node.left())))
            return [f"operator {number}"]
        if name == METRICS:
            observed = (node.name(), tuple(re.findall(r" AS `?([\w-]+)`?#", node.metrics().mkString("\n"))))
            if observed not in plan.counters:
                plan.counters.append(observed)
        children = node.children()
        below = [one for at in range(children.size()) for one in visit(children.apply(at))]
        if not children.size() and node.isStreaming():
            place = next((at for at, leaf in enumerate(leaves) if leaf.equals(node)), len(leaves))
            if place == len(leaves):
                leaves.append(node)
                plan.sources.append(_source(node))
            below = [f"source {place}"]
        return list(dict.fromkeys(below))

    visit(frame._jdf.queryExecution().analyzed())
    return plan


def _spec(spark: SparkSession, node: Any) -> StageSpec:
    """The operator's, from the function that Spark's workers get."""
    tag: Any = spark.sparkContext._jvm.scala.reflect.ClassTag.Byte()  # type: ignore[union-attr]
    function, _ = CloudPickleSerializer().loads(bytes(node.functionExpr().func().command().toArray(tag)))
    (stage,) = function.__self__._stateful_processor._stages
    spec = stage.spec
    assert isinstance(spec, StageSpec)
    return spec


def _source(leaf: Any) -> str:
    """A source as text: its kind, its options, for files the path, and its columns."""
    if leaf.nodeName() == "StreamingRelation":
        of = leaf.dataSource()
        options = dict(one.split("=", 1) for one in of.options().mkString("\n").replace(" -> ", "=").split("\n") if one)
        said = f"{of.className()} {options.pop('path', '')}"
    else:
        options = {name: leaf.extraOptions().get(name) for name in _OPTIONS if leaf.extraOptions().get(name) is not None}
        said = leaf.sourceName()
    about = ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
    return f"{said} ({about}) {leaf.schema().catalogString()}".replace(" ()", "")


class _Started(Exception):  # noqa: N818  (nothing is wrong)
    """A query would start now."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame


def started(start: Callable[[], Any]) -> DataFrame:
    """The frame of the query that ``start`` starts; it does not run."""

    def instead(writer: DataStreamWriter, *_: Any, **__: Any) -> Any:
        raise _Started(writer._df)

    before = DataStreamWriter.start
    DataStreamWriter.start = instead  # type: ignore[method-assign]
    try:
        start()
    except _Started as found:
        return found.frame
    finally:
        DataStreamWriter.start = before  # type: ignore[method-assign]
    raise AssertionError("no query was started")
