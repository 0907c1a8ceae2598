"""``fk_join``: checks what it is given, and assembles the three operators on a streaming DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from fkjoin.columns import Expression, arrow_schema, listed, resolve_column, schema_text, text
from fkjoin.errors import TopologyError
from fkjoin.frame import DELETED, KEY, PROBLEM, RAW, ROW, SOURCE, TS, VERSION
from fkjoin.identity import identity_text
from fkjoin.joiner import is_function, joined
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import InternalTopics, internal_topics, staged
from fkjoin.spark.json_lines import PackLines, kind_at, plain_path
from fkjoin.spark.operator import ENVELOPE, StageName, StageSpec
from fkjoin.spark.packing import PackChanges, PackJoined, UnpackAnswers, UnpackResults
from fkjoin.spark.settings import bucket_count, index_dir, prepare, retention_ms, validated
from fkjoin.stages import How
from fkjoin.stages.contribute import Place
from fkjoin.stateful import Answers, Deployment, Emit, counted, frame_of, packing_columns, refuse_same_name, require_emit, stage
from fkjoin.table import Extractor, Joiner, Table
from fkjoin.topology import Derived, Join, Node, Source, generated_name
from fkjoin.wire import WIRES, Wire


def fk_join(
    left: Table,
    right: Table,
    extractor: Extractor,
    how: How = "inner",
    joiner: Joiner | None = None,
    name: str | None = None,
    *,
    deployment: Deployment = "fused",
    application: str | None = None,
    wire: Wire = "headers",
    emit: Emit = "on-change",
    validate: bool | None = None,
) -> Table:
    """The table of all left rows with the right row that their foreign key names, kept up to date (KIP-213).

    ``extractor``: the foreign key of a left row: column name or names, Column, SQL text, or a Python callable of (key,
    row) that returns it (a tuple for several columns).  Null, or a null in any of its columns: no foreign key.
    ``how``: ``inner``, or ``left`` to keep left rows without a right row.
    ``joiner``: what a joined row is made of.  None: both rows, as structs ``left`` and ``right``.  Columns or SQL texts over
    ``left.…`` and ``right.…``; or a callable of (left row, right row), which returns a Spark UDF's type, or what its return
    annotation (bool, int, float, str, or one of them or None) says, or anything that JSON can write, as one column ``value``.
    A joiner's null is "no result".
    ``name``: names state and metrics; generated from the rest if left out.

    ``deployment``: ``fused``, all stages in one query; or ``staged``, for tables read from topics: rekey and subscription are
    queries of their own (``Table.stages``, each to be started), connected with resolve by the topics
    ``APPLICATION-JOIN-subscription-registration`` and ``…-subscription-response``.  ``application``: by default the Spark
    application's name.  ``wire``: ``headers``, or ``wrapper`` for KIP-213's format without headers.

    ``emit``: ``on-change`` drops what leaves a joined row as it is (KIP-557); with ``on-update`` a row is sent in every batch
    that brought a newer version of either of its sides.

    ``validate``: check the stores' invariants after every batch, and stop with an ``InvariantError`` when one does not hold;
    every batch then reads all state.  By default what the setting ``spark.fkjoin.validate`` says, else no.

    The result has the left table's key.  Raises ``TopologyError`` that says which argument is wrong, and why.
    """
    for argument, table in (("left", left), ("right", right)):
        if not isinstance(table, Table):
            hint = "wrap it with Table.from_stream(df, key=…, version=…)" if isinstance(table, DataFrame) else "see Table"
            raise TopologyError(f"{argument}: a Table is needed, this is a {type(table).__name__}; {hint}")
    if how not in get_args(How):
        raise TopologyError(f'how: {how!r} is not one of "inner", "left"')
    require_emit(emit)
    if left.timestamps and right.timestamps and left.timestamps != right.timestamps:
        raise TopologyError(
            f"right: timestamps are {right.timestamps} here and {left.timestamps} in left; make both the same type"
        )
    spark = left.frame.sparkSession
    prepare(spark)
    rows = _with_foreign_key(left, right, extractor)
    described = _described(extractor, "key", "row")
    joining = None if joiner is None else _described(joiner, "left", "right")
    label = name or f"{left.name}-{right.name}-{generated_name(left.name, right.name, described, how, joining)}"
    refuse_same_name(label, (left.node, right.node), "join")
    topics = _internal_topics(deployment, application, wire, label, left, right)
    through = None if topics is None else (topics.registration, topics.response)
    node = Join(label, left.node, right.node, how, described, joining, through)

    buckets = bucket_count(spark)
    left_row, right_row = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    shared_log = left.node.log is not None and left.node.log == right.node.log

    bound_to = {
        "extractor": described,
        "joiner": joining,
        "key": schema_text(key),
        "foreign_key": schema_text(foreign_key),
        "left": schema_text(left_row),
        "right": schema_text(right_row),
    }
    kinds = {"key": left.key_type, "foreign_key": right.key_type, "left": left.row_type, "right": right.row_type}
    parts = left.node.parts, right.node.parts
    fused = deployment == "fused"
    checked = validated(spark) if validate is None else validate

    def through_stage(
        rows: DataFrame, kind: StageName, materialized: str | None = None, row: DataType | None = None
    ) -> DataFrame:
        facts = {"join": label, "stage": kind, "how": how, "buckets": buckets, "materialized": materialized, **bound_to}
        about = {name: json.loads(of.json()) for name, of in kinds.items()} | {"parts": parts, "fused": fused}
        about["result"] = None if row is None else json.loads(row.json())
        spec = StageSpec(
            kind,
            label,
            buckets,
            retention_ms(spark),
            index_dir(spark),
            identity_text(facts, about),
            checked,
            how,
            shared_log,
            right.node.parts,
            in_order=fused,
            materialized=materialized is not None,
            every=emit == "on-update",
        )
        done = stage(rows, spec)
        counted_here = kind == "resolve" or not fused  # within a query the counters travel on to its last stage
        return counted(done, label if kind == "resolve" else f"{label}-{kind}") if counted_here else done

    packed_left = _packed(left, rows, extractor, PackChanges(key, foreign_key, left_row, buckets, checked))
    without = right.frame.withColumn("foreign_key", F.lit(None))
    packed_right = _packed(right, without, None, PackChanges(foreign_key, None, right_row, buckets, checked))
    stages: tuple[StageQuery, ...] = ()
    if topics is None:
        answers = through_stage(through_stage(packed_left, "rekey").unionAll(packed_right), "subscription")
    else:
        answers, stages = staged(packed_left, packed_right, through_stage, label, buckets, topics)
    row_types: tuple[pa.Schema, ...] = (left_row, right_row)
    result: DataType = StructType([StructField("left", left.row_type), StructField("right", right.row_type)])
    unresolved = None
    if (fields := _fields(joiner, left, left_row, right_row)) is not None:
        unresolved = Answers(answers, key, left_row, right_row, how, fields)
    if joiner is not None:
        rows_joined = joined(answers, UnpackAnswers(left_row, right_row, how), joiner)
        result = rows_joined.schema["row"].dataType
        row_types = (arrow_schema("joiner", result),)
        if clash := set(row_types[0].names) & set(left.key):
            raise TopologyError(f"joiner: column {min(clash)!r} is already there as the key; leave it out or give it an alias")
        answers = rows_joined.mapInArrow(PackJoined(row_types[0], buckets), ENVELOPE)
    dead = left.dead + tuple(frame for frame in right.dead if all(frame is not known for known in left.dead))
    if left.on_error == "dead-letter" and is_function(extractor):
        thrown = F.when(F.col(f"{PROBLEM}_before").isNull(), F.col(PROBLEM))
        dead += (rows.withColumn(PROBLEM, thrown),)
    timestamps = left.timestamps or right.timestamps
    stages = (*left.stages, *right.stages, *stages)

    def built(materialized: str | None) -> Table:
        results = through_stage(answers, "resolve", materialized, result)
        unpack = UnpackResults(key, row_types, node.versions)
        frame = frame_of(results, unpack)
        made = replace(node, materialized=materialized)
        packed = (results, unpack)
        return Table(
            made,
            frame,
            left.key,
            timestamps,
            dead=dead,
            connection=left.connection or right.connection,
            packed=packed,
            answers=unresolved if materialized is None else None,
            stages=stages,
            materialized_as=built,
        )

    return built(None)


def _internal_topics(
    deployment: Deployment, application: str | None, wire: Wire, join: str, left: Table, right: Table
) -> InternalTopics | None:
    """The topics of a staged join; None for a fused one."""
    if deployment not in get_args(Deployment):
        raise TopologyError(f'deployment: {deployment!r} is not one of "fused", "staged"')
    if wire not in WIRES:
        raise TopologyError(f'wire: {wire!r} is not one of "headers", "wrapper"')
    if deployment == "fused":
        return None
    for argument, table in (("left", left), ("right", right)):
        if table.connection is None or not _read_from_topic(table.node):
            raise TopologyError(
                f"{argument}: the staged deployment joins tables read from topics (Table.from_kafka), {table.name} is none; "
                "write it to a topic first, or leave the deployment fused"
            )
    assert left.connection is not None
    assert right.connection is not None
    name = application or str(left.frame.sparkSession.sparkContext.appName)
    return internal_topics(name, join, left.connection, right.connection, wire)


def _fields(joiner: Joiner | None, left: Table, left_row: pa.Schema, right_row: pa.Schema) -> dict[str, Place] | None:
    """Where the columns of a joined row are to be had; None if they are more than fields of the inputs' rows."""
    found: dict[str, Place] = {name: ("key", (name,)) for name in left.key}
    if joiner is None:
        return found | {"left": ("left", ()), "right": ("right", ())}
    rows = pa.schema([("left", pa.struct(list(left_row))), ("right", pa.struct(list(right_row)))])
    if is_function(joiner):
        return None
    given = listed(joiner)
    for item in given:
        path = plain_path(item, rows)
        if path is None or len(path) < 2 or (len(given) == 1 and pa.types.is_struct(kind_at(rows, path))):
            return None  # one struct alone becomes the row itself
        found[path[-1]] = ("left" if path[0] == "left" else "right", path[1:])
    return found


def _read_from_topic(node: Node) -> bool:
    """Whether the rows, and so their versions, are those of a topic."""
    return isinstance(node, Source) or (isinstance(node, Derived) and _read_from_topic(node.table))


def _packed(table: Table, rows: DataFrame, extractor: Extractor | None, pack: PackChanges) -> DataFrame:
    """The table's changes, with foreign keys if there is an extractor, packed; ``rows`` is the frame that has them."""
    if table.lines is not None:
        texts, lines = table.lines
        places = None if extractor is None else lines.foreign_key(listed(extractor))
        if extractor is None or places is not None:
            return texts.mapInArrow(PackLines(lines, places, pack), ENVELOPE)
    return rows.select(*packing_columns(), "foreign_key").mapInArrow(pack, ENVELOPE)


def _with_foreign_key(left: Table, right: Table, extractor: Extractor) -> DataFrame:
    """The left frame with a struct ``foreign_key``, null in deletes, of the right key's types; problems old and new."""
    wanted = right.key_type
    row = left.row_type.names
    names = [*row, *(name for name in left.key if name not in row)]
    visible = left.visible()
    problem = F.col(PROBLEM)
    if is_function(extractor):
        value = F.col(f"{KEY}.`{left.key[0]}`") if len(left.key) == 1 else F.col(KEY)
        members = [StructField(f"k{at}", field.dataType) for at, field in enumerate(wanted)]
        kind = StructType([*members, StructField("problem", StringType())])
        called = F.udf(_extracting(extractor, len(wanted), left.on_error != "fail"), kind)(problem, value, F.col(ROW))
        found = [called.getField(member.name) for member in members]
        problem = F.coalesce(problem, called.getField("problem"))
    else:
        given = listed(extractor)
        found = [resolve_column("extractor", item, visible, names, f"left table {left.name}") for item in given]
        _check_types(visible, given, found, left, right)
    foreign_key = F.when(~F.col(DELETED), F.struct(*[column.alias(f"k{at}") for at, column in enumerate(found)]))
    raw = [RAW] if RAW in left.frame.columns else []
    return visible.select(
        *(KEY, ROW, DELETED, VERSION, SOURCE, TS),
        problem.alias(PROBLEM),
        F.col(PROBLEM).alias(f"{PROBLEM}_before"),
        *raw,
        foreign_key.alias("foreign_key"),
    )


def _check_types(visible: DataFrame, given: list[Expression], found: list[Column], left: Table, right: Table) -> None:
    wanted = right.key_type
    if len(found) != len(wanted):
        raise TopologyError(
            f"extractor: {len(found)} column{'s' * (len(found) != 1)} given, but the key of right table {right.name} has "
            f"{len(wanted)} ({', '.join(wanted.names)}); give one for each, in that order"
        )
    types = [field.dataType for field in visible.select(*[c.alias(f"k{i}") for i, c in enumerate(found)]).schema]
    for item, kind, field in zip(given, types, wanted, strict=True):
        if kind.simpleString() != field.dataType.simpleString():
            raise TopologyError(
                f"extractor: {text(item)} of left table {left.name} is {kind.simpleString()}, but key column {field.name} of "
                f"right table {right.name} is {field.dataType.simpleString()}; cast one of them, for instance "
                f'extractor="cast({text(item)} as {field.dataType.simpleString()})"'
            )


def _extracting(extractor: Callable[[Any, Any], Any], columns: int, catch: bool) -> Callable[[Any, Any, Any], Any]:
    """The extractor, called for usable rows only; returns its columns and, with ``catch``, what it threw instead."""

    def extract(problem: Any, key: Any, row: Any) -> Any:
        if problem is not None or row is None:
            return None
        try:
            found = extractor(key, row)
            values = (None,) * columns if found is None else tuple(found) if columns > 1 else (found,)
        except Exception as error:
            if not catch:
                raise
            return (None,) * columns + (f"extractor: {type(error).__name__}: {error}",)
        return (*values, None)

    return extract


def _described(given: Extractor | Joiner, *arguments: str) -> str:
    """How an extractor or joiner reads in ``describe()``."""
    if is_function(given):
        return f"{getattr(given, '__name__', type(given).__name__)}({', '.join(arguments)})"
    return ", ".join(text(item) for item in listed(given))
