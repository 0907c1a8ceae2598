"""A checkpoint that is set back to a backup: each sink that remembers batches is set back with it, or the start is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, fk_join
from fkjoin.errors import FkJoinError
from fkjoin.sinks import Delta, Parquet
from tests.conftest import small
from tests.test_sinks import batch_join, delta, finished
from tests.test_spark_aggregates import History, tables
from tests.test_spark_engine import table_of

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}
SINKS: list[Any] = ["parquet", "delta"]


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)


def joined(spark: SparkSession, folder: Path) -> Table:
    return fk_join(*tables(spark, folder), "customer_id", joiner=["left.items", "right.region"], name="joined")


def run(spark: SparkSession, folder: Path, *kinds: str, **more: Any) -> None:
    """Work off what is there, into ``folder/parquet``, ``folder/delta`` or both."""
    table, about = joined(spark, folder), {"checkpoint": folder / "ck", "trigger": NOW, **more}
    made = {"parquet": Parquet, "delta": Delta}
    if len(kinds) > 1:
        finished(table.to(*(made[kind](folder / kind) for kind in kinds), **about))
    else:
        (kind,) = kinds
        finished(getattr(table, f"to_{kind}")(folder / kind, **about))


def there(spark: SparkSession, folder: Path, kind: str) -> dict[str, Any]:
    """The table that the sink has."""
    if kind == "delta":
        return delta(folder / kind)
    rows = spark.read.parquet(str(folder / kind)).orderBy("batch").collect()
    return {key: {"items": row["items"], "region": row.region} for (key,), row in table_of(rows, "order_id").items()}


class Backup:
    """A copy of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copy = folder, folder.with_name(f"{folder.name}-backup")
        shutil.copytree(folder, self.copy)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)


@pytest.mark.parametrize("kinds", [*([kind] for kind in SINKS), SINKS], ids=" and ".join)
def test_after_a_restore_a_sink_is_refused_or_set_back_and_then_is_the_batch_join(
    spark: SparkSession, tmp_path: Path, kinds: list[str]
) -> None:
    history = History(tmp_path)
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, *kinds)
    backup = Backup(tmp_path / "ck")
    for _ in range(2):
        history.write(60)
        run(spark, tmp_path, *kinds)
    backup.restore()
    history.write(60)
    for more in ({}, {"on_restore": "fail"}):
        says = rf"checkpoint: .*ck was set back: it is at batch 1, and {kinds[0]} .* has batch 3 .*on_restore=\"set-back\""
        with pytest.raises(FkJoinError, match=says):
            run(spark, tmp_path, *kinds, **more)
    for _ in range(2):  # the second is set back to nothing: it goes on
        run(spark, tmp_path, *kinds, on_restore="set-back")
        for kind in kinds:
            assert there(spark, tmp_path, kind) == batch_join(history)
        history.write(60)
