"""``fk_join``: checks what it is given, and assembles the three operators on a streaming DataFrame."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.columns import arrow_schema, listed, schema_text, spark_schema
from fkjoin.emission import Emission, Emit, paced
from fkjoin.errors import TopologyError
from fkjoin.foreign_key import dead_frames, described, packed_sides, require_same_timestamps, require_table, with_foreign_key
from fkjoin.joiner import before_resolve, is_function, joined
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import InternalTopics, internal_topics, staged
from fkjoin.pruning import needed
from fkjoin.spark.json_lines import kind_at, plain_path
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import PackJoined, UnpackAnswers, UnpackResults
from fkjoin.spark.settings import bucket_count, prepare, validated
from fkjoin.stages import How
from fkjoin.stages.contribute import Fields, Place
from fkjoin.stateful import Answers, Deployment, counted, frame_of, refuse_same_name, stage, stage_spec
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
    that brought a newer version of either of its sides; ``periodic 10 seconds`` (``periodic``: a minute) sends a row's last
    result when such an interval is over, if it differs from what was sent last.

    ``validate``: check the stores' invariants after every batch, and stop with an ``InvariantError`` when one does not hold;
    every batch then reads all state.  By default what the setting ``spark.fkjoin.validate`` says, else no.

    The result has the left table's key.  Raises ``TopologyError`` that says which argument is wrong, and why.
    """
    require_table("left", left)
    require_table("right", right)
    if how not in get_args(How):
        raise TopologyError(f'how: {how!r} is not one of "inner", "left"')
    emission = Emission.of(emit)
    require_same_timestamps(left, right)
    spark = left.frame.sparkSession
    prepare(spark)
    rows = with_foreign_key(left, right, extractor)
    by = described(extractor, "key", "row")
    joining = None if joiner is None else described(joiner, "left", "right")
    label = name or f"{left.name}-{right.name}-{generated_name(left.name, right.name, by, how, joining)}"
    refuse_same_name(label, (left.node, right.node), "join")
    topics = _internal_topics(deployment, application, wire, label, left, right)
    through = None if topics is None else (topics.registration, topics.response)
    node = Join(label, left.node, right.node, how, by, joining, through, emit)

    buckets = bucket_count(spark)
    left_row, right_row = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    left_type, right_type = left.row_type, right.row_type
    left_row, right_row, keeps = needed(joiner, left_row, right_row, spark)
    if keeps is not None and keeps.fired:
        left_type, right_type = spark_schema(left_row), spark_schema(right_row)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    shared_log = left.node.log is not None and left.node.log == right.node.log

    bound_to = {
        "extractor": by,
        "joiner": joining,
        "key": schema_text(key),
        "foreign_key": schema_text(foreign_key),
        "left": schema_text(left_row),
        "right": schema_text(right_row),
    }
    kinds = {"key": left.key_type, "foreign_key": right.key_type, "left": left_type, "right": right_type}
    parts = left.node.parts, right.node.parts
    fused = deployment == "fused"
    before: tuple[StageName, ...] = ("rekey", "subscription") if fused else ()
    checked = validated(spark) if validate is None else validate

    def through_stage(
        rows: DataFrame, kind: StageName, materialized: str | None = None, row: DataType | None = None
    ) -> DataFrame:
        spec = stage_spec(
            spark,
            kind,
            label,
            {"how": how, "materialized": materialized, **bound_to},
            {**kinds, "parts": parts, "fused": fused, "result": row},
            validate=checked,
            how=how,
            shared_log=shared_log,
            right_parts=right.node.parts,
            in_order=fused,
            materialized=materialized is not None,
            every=emission.every,
            from_answers=sides.from_answers if kind == "rekey" else b"",
        )
        done = stage(rows, spec)
        if kind != "resolve":  # within a query the counters travel on to its last stage
            return done if fused else counted(done, f"{label}-{kind}", kind)
        return counted(done, label, *before, kind)

    schemas = key, foreign_key, left_row, right_row
    sides = packed_sides(left, right, rows, extractor, schemas, buckets, validate=checked)
    node = replace(node, rule=sides.rule, keeps=keeps)
    stages: tuple[StageQuery, ...] = ()
    if topics is None:
        answers = through_stage(through_stage(sides.left, "rekey").unionAll(sides.right), "subscription")
    else:
        answers, stages = staged(sides.left, sides.right, through_stage, label, buckets, topics)
    row_types: tuple[pa.Schema, ...] = (left_row, right_row)
    result: DataType = StructType([StructField("left", left_type), StructField("right", right_type)])
    fields = _fields(joiner, left, left_row, right_row)
    unresolved = Answers(label, answers, Fields(key, left_row, right_row, how), fields or {}, before)

    def early() -> DataFrame:
        return before_resolve(unresolved.counted, UnpackAnswers(left_row, right_row, how, key), joiner)

    if joiner is not None:
        rows_joined = joined(answers, UnpackAnswers(left_row, right_row, how), joiner)
        result = rows_joined.schema["row"].dataType
        row_types = (arrow_schema("joiner", result),)
        if clash := set(row_types[0].names) & set(left.key):
            raise TopologyError(f"joiner: column {min(clash)!r} is already there as the key; leave it out or give it an alias")
        answers = rows_joined.mapInArrow(PackJoined(row_types[0], buckets), ENVELOPE)
    dead = dead_frames(left, right, rows, extractor)
    timestamps = left.timestamps or right.timestamps
    stages = (*left.stages, *right.stages, *stages)

    def built(materialized: str | None) -> Table:
        about = {**kinds, "parts": parts, "result": result}
        results = paced(
            through_stage(answers, "resolve", materialized, result), label, emission, about, checked, joiner=joining
        )
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
            answers=None if fields is None else unresolved,
            early=early if fused else None,
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
