"""``fk_join``: checks what it is given, and assembles the three operators on a streaming DataFrame."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from fkjoin.analyzed import named_fields
from fkjoin.columns import arrow_schema, listed, schema_text, spark_schema
from fkjoin.emission import Emission, Emit, paced
from fkjoin.errors import TopologyError
from fkjoin.foreign_key import dead_frames, described, packed_sides, require_same_timestamps, require_table, with_foreign_key
from fkjoin.joiner import before_resolve, is_function, joined
from fkjoin.kafka.internal import StageQuery
from fkjoin.kafka.staged import InternalTopics, internal_topics, staged
from fkjoin.pruning import needed, read
from fkjoin.rows import Path
from fkjoin.spark.json_lines import kind_at
from fkjoin.spark.operator import ENVELOPE, StageName
from fkjoin.spark.packing import PackJoined
from fkjoin.spark.settings import bucket_count, prepare, validated
from fkjoin.spark.unpacking import UnpackAnswers, UnpackResults
from fkjoin.stages import How
from fkjoin.stages.contribute import Fields, Place
from fkjoin.star_join import Joins, begin, share, star_table
from fkjoin.stateful import Answers, Deployment, counted, frame_of, refuse_same_name, stage, stage_spec
from fkjoin.table import Extractor, Joiner, Table
from fkjoin.topology import Derived, Join, Node, Source, Verdict, generated_name, verdicts
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

    checked = validated(spark) if validate is None else validate
    whole = arrow_schema("left", left.row_type), arrow_schema("right", right.row_type)
    fields = _fields(joiner, left, *whole)
    obstacle = "the join is staged" if topics is not None else f"it is {emit}" if emission.every else None
    joins, shared = share(spark, left, right, extractor, how, fields, obstacle)
    dead = dead_frames(left, right, rows, extractor)
    if joins is not None:
        return star_table(joins, left, replace(node, rules=verdicts(shared)), emission, dead, validate=checked)

    buckets = bucket_count(spark)
    key, foreign_key = arrow_schema("left", left.key_type), arrow_schema("right", right.key_type)
    left_row, right_row, keeps = needed(joiner, *whole, spark)
    shared_log = left.node.log is not None and left.node.log == right.node.log
    parts = left.node.parts, right.node.parts
    fused = deployment == "fused"
    before: tuple[StageName, ...] = ("rekey", "subscription") if fused else ()
    about = {"key": left.key_type, "foreign_key": right.key_type, "parts": parts, "fused": fused}

    def through_stage(
        kept: tuple[pa.Schema, pa.Schema],
        from_answers: bytes,
        rows: DataFrame,
        kind: StageName,
        materialized: str | None = None,
        row: DataType | None = None,
    ) -> DataFrame:
        named = {"key": key, "foreign_key": foreign_key, "left": kept[0], "right": kept[1]}
        types = {side: spark_schema(schema) for side, schema in zip(("left", "right"), kept, strict=True)}
        spec = stage_spec(
            spark,
            kind,
            label,
            {
                "how": how,
                "materialized": materialized,
                "extractor": by,
                "joiner": joining,
                **{what: schema_text(schema) for what, schema in named.items()},
            },
            {**about, **types, "result": row},
            validate=checked,
            how=how,
            shared_log=shared_log,
            right_parts=right.node.parts,
            in_order=fused,
            materialized=materialized is not None,
            every=emission.every,
            from_answers=from_answers if kind == "rekey" else b"",
        )
        done = stage(rows, spec)
        if kind != "resolve":  # within a query the counters travel on to its last stage
            return done if fused else counted(done, f"{label}-{kind}", kind)
        return counted(done, label, *before, kind)

    def answering(*kept: pa.Schema) -> tuple[DataFrame, tuple[StageQuery, ...], tuple[Verdict, ...]]:
        """The answers with these rows, the queries that make them if they are others, and the rules of the left side."""
        sides = packed_sides(left, right, rows, extractor, (key, foreign_key, *kept), buckets, label, validate=checked)
        through = functools.partial(through_stage, kept, sides.from_answers)
        if topics is not None:
            return *staged(sides.left, sides.right, through, label, buckets, topics), sides.rules
        rekeyed = through(sides.left, "rekey")
        return through(rekeyed.unionAll(sides.right), "subscription"), (), sides.rules

    def narrowed(places: Iterable[Place], reader: str) -> tuple[Answers, Verdict]:
        left_less, right_less, verdict = read(places, unresolved.of, spark)
        if not verdict.fired:
            return unresolved, verdict
        envelopes, of = answering(left_less, right_less)[0], Fields(key, left_less, right_less, how)
        return Answers(f"{label}-answers-for-{reader}", envelopes, of, unresolved.fields, before), verdict

    answers, stages, rules = answering(left_row, right_row)
    node = replace(node, rules=(*verdicts(shared), *rules, *verdicts(keeps)))
    row_types: tuple[pa.Schema, ...] = (left_row, right_row)
    result: DataType = StructType([StructField("left", left.row_type), StructField("right", right.row_type)])
    of = Fields(key, left_row, right_row, how)
    unresolved = Answers(f"{label}-answers", answers, of, fields or {}, before, narrowed if fused else None)

    def early(paths: Sequence[Path] | None, reader: str) -> tuple[DataFrame, tuple[Verdict, ...]]:
        """Without a joiner rows are both rows, and a path in them one of left or right."""
        answers, less = unresolved, None
        if joiner is None and paths is not None:
            answers, less = unresolved.narrowed([(unresolved.fields[path[0]][0], path[1:]) for path in paths], reader)
        unpack = UnpackAnswers(answers.of.left, answers.of.right, how, key)
        return before_resolve(answers.counted, unpack, joiner), verdicts(less)

    if joiner is not None:
        rows_joined = joined(answers, UnpackAnswers(left_row, right_row, how), joiner)
        result = rows_joined.schema["row"].dataType
        row_types = (arrow_schema("joiner", result),)
        if clash := set(row_types[0].names) & set(left.key):
            raise TopologyError(f"joiner: column {min(clash)!r} is already there as the key; leave it out or give it an alias")
        answers = rows_joined.mapInArrow(PackJoined(row_types[0], buckets), ENVELOPE)
    timestamps = left.timestamps or right.timestamps
    stages = (*left.stages, *right.stages, *stages)

    alone: Joins | str = f"{label} makes more of the rows than fields of them"
    if obstacle is not None:
        alone = f"{label} is staged" if topics is not None else f"{label} is {emit}"
    elif fields is not None:
        alone = begin(left, right, rows, extractor, how, fields)

    def built(materialized: str | None) -> Table:
        resolved = through_stage((left_row, right_row), b"", answers, "resolve", materialized, result)
        results = paced(resolved, label, emission, {**about, "result": result}, checked, joiner=joining)
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
            star=None if materialized is not None else alone,
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
    named = named_fields(listed(joiner), rows, left.frame.sparkSession)
    for name, path in named or ():
        alone = len(named or ()) == 1 and pa.types.is_struct(kind_at(rows, path))  # it becomes the row itself
        if len(path) < 2 or alone or name in found:
            return None
        found[name] = ("left" if path[0] == "left" else "right", path[1:])
    return None if named is None else found


def _read_from_topic(node: Node) -> bool:
    """Whether the rows, and so their versions, are those of a topic."""
    return isinstance(node, Source) or (isinstance(node, Derived) and _read_from_topic(node.table))
