"""Work on a checkpoint whose query is stopped: verify it, rebuild its indexes, spread it over other partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.checkpoint.damage import check_logs, damaged
from fkjoin.checkpoint.examine import PROBLEMS, Examine
from fkjoin.checkpoint.files import query_id
from fkjoin.checkpoint.saved import SavedState, SavedStore
from fkjoin.errors import FkJoinError, first_line
from fkjoin.sessions.abilities import RESCALE
from fkjoin.sessions.access import require_classic
from fkjoin.spark.buckets import spark_hash
from fkjoin.spark.index_home import index_home

SHOWN = 5
"""Number of keys that are named in a problem."""

_BY_COMMAND = "run fkjoin state on a machine that reaches the checkpoint; it starts a session of its own"


def verify(spark: SparkSession, checkpoint: str | Path, *, batch: int | None = None) -> list[str]:
    """Find what is wrong with the state after a committed batch; empty if nothing is.

    Every log is read and counted, every record decoded and looked for in its bucket, every bucket in its partition; and in a
    fused join there is one subscription for each live left row with a foreign key.
    """
    require_classic(spark, "verify", _BY_COMMAND)
    check_logs(spark, str(checkpoint))
    state = SavedState(spark, checkpoint, batch)
    try:
        found: dict[str, list[DataFrame]] = {}  # an operator may stand twice in a query, under one name
        for store in state.stores:
            found.setdefault(store.name, []).append(_examined(store).cache())
        problems = [line for name, frames in found.items() for frame in frames for line in _problems(name, frame)]
        for store in state.stores:
            problems += _in_wrong_partition(store)
        rekeyed = [s for s in state.stores if s.stage in ("rekey", "scatter") and s.identity[1].get("fused")]
        for join, stage in dict.fromkeys((str(store.identity[0]["join"]), store.stage) for store in rekeyed):
            for name in (f"{join}-subscription", f"{join}-children"):
                for left, right in zip(found[f"{join}-{stage}"], found.get(name, []), strict=False):
                    problems += _compared(name, left, right)
    except FkJoinError:
        raise
    except Exception as error:
        raise damaged(str(checkpoint), error) from error
    for frames in found.values():
        for frame in frames:
            frame.unpersist()
    return problems


def rebuild(spark: SparkSession, checkpoint: str | Path, index_dir: str) -> list[Path]:
    """Make the local indexes of all of the checkpoint's stores anew, on this machine; where they are."""
    require_classic(spark, "rebuild", _BY_COMMAND)
    state = SavedState(spark, checkpoint)
    query = query_id(spark, state.checkpoint)
    places = []
    for store in state.stores:
        facts, _ = store.identity
        place = index_home(index_dir, query, facts["join"], facts["stage"])
        store.on_buckets(Examine(store.name, "", store.buckets), PROBLEMS, index=str(place)).count()
        places.append(place)
    return places


def rescale(spark: SparkSession, checkpoint: str | Path, partitions: int) -> None:
    """Spread the state of a stopped query over so many partitions (by Spark's offline repartition); buckets stay what they are.

    The checkpoint gets one more batch, which holds the moved state; the query goes on from it.  Raises ``FkJoinError``.
    """
    require_classic(spark, "rescale", _BY_COMMAND)
    RESCALE.require(spark)
    state = SavedState(spark, checkpoint)
    buckets = min(store.buckets for store in state.stores)
    if partitions < 1 or any(store.buckets % partitions for store in state.stores):
        fitting = ", ".join(str(n) for n in range(1, buckets + 1) if all(s.buckets % n == 0 for s in state.stores))
        raise FkJoinError(
            f"partitions: {buckets} buckets cannot be spread evenly over {partitions}; choose one of {fitting} (how many "
            "buckets a checkpoint has is decided at its first start, by spark.fkjoin.buckets)"
        )
    if all(store.partitions == partitions for store in state.stores):
        raise FkJoinError(f"partitions: {checkpoint} has {partitions} already")
    try:
        spark._streamingCheckpointManager.repartition(str(checkpoint), partitions)
    except Exception as error:
        reason = first_line(error)
        raise FkJoinError(
            f"checkpoint {checkpoint} is not rescaled: {reason} (is its query stopped, and its last batch finished?)"
        ) from error


def _examined(store: SavedStore) -> DataFrame:
    rights = 0 if store.multi_join is None else len(store.multi_join.rights)
    return store.on_buckets(Examine(store.name, store.stage, store.buckets, rights, store.spread), PROBLEMS)


def _problems(name: str, frame: DataFrame) -> Iterator[str]:
    for row in frame.where("problem is not null").orderBy("bucket").collect():
        yield f"store {name}, bucket {row.bucket}: {row.problem}"


def _in_wrong_partition(store: SavedStore) -> Iterator[str]:
    for row in store.metas:
        if spark_hash(row.bucket) % store.partitions != row.partition_id:
            yield f"store {store.name}, bucket {row.bucket}: lies in partition {row.partition_id}, where no query looks for it"


def _compared(name: str, rekeyed: DataFrame, subscribed: DataFrame) -> Iterator[str]:
    """Find subscriptions that are missing, and those that should not be there."""
    wanted, found = (frame.where("combined is not null").select("combined") for frame in (rekeyed, subscribed))
    for says, some in (
        ("lacks the subscriptions of", wanted.exceptAll(found)),
        ("has subscriptions that no live left row stands behind:", found.exceptAll(wanted)),
    ):
        if count := some.count():
            first = [bytes(row[0]) for row in some.orderBy(F.col("combined")).limit(SHOWN).collect()]
            yield f"store {name} {says} {count} left rows, first {', '.join(map(_combined, first))}"


def _combined(data: bytes) -> str:
    size = int.from_bytes(data[:4], "big")
    return f"{data[4 + size :]!r} under {data[4 : 4 + size]!r}"
