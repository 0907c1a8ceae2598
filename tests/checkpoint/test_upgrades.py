"""Checkpoints of each format open and go on; those of other jobs are refused, and it is said what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import Table
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS, VALIDATE
from fkjoin.spark.identity import difference, identity_text, read_identity
from fkjoin.spark.specs import STAGES
from tests.support import golden, golden_operators
from tests.support.golden import unpack
from tests.support.plans.probe import read_plan
from tests.support.queries import run
from tests.support.sessions import SPARK_4_0

GOLDEN = sorted(golden.CHECKPOINTS.glob("join-*.tar.gz"))
OPERATORS = sorted(golden.CHECKPOINTS.glob("operators-*.tar.xz"))


def test_a_fact_that_an_older_release_did_not_keep_is_no_difference() -> None:
    kept = identity_text({"join": "j", "stage": "rekey", "how": "left"}, {"parts": [1, 1]}).encode()
    now = identity_text({"join": "j", "stage": "rekey", "how": "left", "materialized": None}, {"parts": [1, 2]}).encode()
    assert difference(kept, now) is None
    assert read_identity(kept) == ({"join": "j", "stage": "rekey", "how": "left"}, {"parts": [1, 1]})
    other = identity_text({"join": "k", "stage": "rekey", "how": "left", "materialized": "m"}, {}).encode()
    wanted = 'of store k-rekey, join was "j" and is now "k"; materialized was null and is now "m"'
    assert difference(kept, other) == wanted


def test_of_columns_and_steps_those_that_differ_are_named() -> None:
    def identity(amount: str, bound: str) -> bytes:
        dear = {"steps": [["filter", "open"], ["filter", f"amount > {bound}"]]}
        facts = {"join": "j", "stage": "rekey", "left": ["id string", f"amount {amount}"], "tables": {"dear": dear}}
        return identity_text({**facts, "buckets": int(bound)}, {}).encode()

    assert difference(identity("int64", "2"), identity("double", "2")) == (
        'of store j-rekey, left was ["amount int64"] and is now ["amount double"]; '
        "if the tables are the same, a rule of the optimizer is not: set spark.fkjoin.optimizer.excludedRules"
    )
    assert difference(identity("int64", "2"), identity("int64", "3")) == (
        "of store j-rekey, spark.fkjoin.buckets was 2 and is now 3; "
        'steps of dear was [["filter", "amount > 2"]] and is now [["filter", "amount > 3"]]'
    )
    plain = [identity_text({"join": "j", "stage": "rekey", "tables": names}, {}).encode() for names in ({"a": {}}, {"b": {}})]
    assert difference(*plain) == 'of store j-rekey, tables was ["a"] and is now ["b"]'


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; every batch is validated."""
    if SPARK_4_0:
        pytest.skip("the checkpoints are of Spark 4.1 and newer, which 4.0 does not open")
    for name, value in ((PARTITIONS, "2"), (BUCKETS, "2"), (INDEX_DIR, str(tmp_path / "index")), (VALIDATE, "true")):
        spark.conf.set(name, value)
    yield tmp_path
    spark.conf.unset(VALIDATE)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_the_checkpoint_of_a_join_goes_on(spark: SparkSession, place: Path, path: Path) -> None:
    checkpoint = unpack(path, place)
    golden.write_half(place, 2)
    table = golden.batch_join(1)
    for row in run(golden.joined(spark, place).changes, checkpoint).rows:
        assert (row.id in table) == (row._operation != "insert")
        if row._operation == "delete":
            del table[row.id]
        else:
            table[row.id] = (row.left.customer, row.left.amount, row.right and row.right.name)
    assert table == golden.batch_join(2)


@pytest.fixture
def few(spark: SparkSession, place: Path) -> Path:
    """The folder, with the settings of checkpoints of every kind of operator."""
    for name, value in golden_operators.SETTINGS.items():
        spark.conf.set(f"spark.{name.replace('_', '.')}", str(value))
    return place


@pytest.mark.nightly
@pytest.mark.parametrize("path", OPERATORS, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_checkpoints_with_every_kind_of_operator_go_on(spark: SparkSession, few: Path, path: Path) -> None:
    for part in (1, 2):
        golden_operators.write_part(few, part)
    checkpoints, stages = golden_operators.unpacked(path, few), set[str]()
    golden_operators.write_part(few, 3)
    queries = {name: how for name, how in golden_operators.QUERIES.items() if (checkpoints / name).is_dir()}
    for name, (build, expected) in queries.items():
        table = build(golden_operators.Tables(spark, few), golden_operators.SHORT)
        sent = 1 if name == "star" else 2  # what the second part changed is held back
        before, after = (expected(golden_operators.final(parts)) for parts in (sent, 3))
        rows = run(table.changes, checkpoints / name).rows
        assert golden_operators.applied(rows, table.key[0], before) == after, name
        assert before != after
        stages |= require_as_numbered(spark, checkpoints / name, table)
    assert stages == set(STAGES), "one of each kind"


def require_as_numbered(spark: SparkSession, checkpoint: Path, table: Table) -> set[str]:
    """Compare the probe of the tests of plans with what Spark has written into a checkpoint; returns the stages in it."""
    plan, stores = read_plan(table.changes), saved_stores(spark, checkpoint)
    names = [operator.spec.name for operator in plan.operators]
    assert {store.operator: store.name for store in stores} == dict(enumerate(names))
    numbers = {int(folder.name) for folder in (checkpoint / "state").iterdir()}
    assert numbers == set(range(len(names)))
    for number, source in enumerate(plan.sources):
        read = (checkpoint / "sources" / str(number) / "0").read_text() if "fkjoin-clock" not in source else ""
        assert (re.findall(r"file://(\S*)/1\.json", read) or ["fkjoin-clock"])[0] in source
    return {store.stage for store in stores}


def test_a_changed_topology_is_refused_and_says_what_differs(spark: SparkSession, place: Path) -> None:
    checkpoint = unpack(GOLDEN[0], place)
    golden.write_half(place, 2)

    renamed = golden.joined(spark, place, name="renamed")
    with pytest.raises(Exception, match=r'of store renamed-\w+, join was "golden" and is now "renamed"; start this version'):
        run(renamed.changes, checkpoint)
