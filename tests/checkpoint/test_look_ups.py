"""``fkjoin state get`` reads files: it starts no Spark, neither to answer nor to refuse."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fkjoin import FkJoinError
from fkjoin.checkpoint.saved import saved_stores
from fkjoin.checkpoint.saved_files import _CONFIGURED as CONFIGURED
from fkjoin.checkpoint.saved_files import SavedFiles
from fkjoin.checkpoint.stores import with_stores
from fkjoin.checkpoint.upkeep import verify
from fkjoin.cli import state as state_cli
from fkjoin.state.segments import Meta
from tests.support import golden_operators
from tests.support.golden import CHECKPOINTS
from tests.support.saved_query import SavedQuery
from tests.support.sessions import SPARK_4_0

ORDERS = golden_operators.final(2)["orders"]
CHAIN = "checkpoint/chain"
KNOWN = [(key, order) for key, order in ORDERS.items() if order["customer"] in golden_operators.final(2)["customers"]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run ``fkjoin state …`` where a session that starts is a failure; errors come as they are."""

    def starts(*_: object, **__: object) -> None:
        pytest.fail("Spark starts")

    monkeypatch.setattr("fkjoin.sessions.settings.session", starts)
    for name in CONFIGURED:
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: CliRunner().invoke(state_cli.app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of checkpoints that Spark wrote."""
    place = tmp_path_factory.mktemp("saved")
    golden_operators.unpacked(CHECKPOINTS / "operators-1.tar.xz", place)
    return place


@pytest.fixture
def chain(folder: Path) -> Path:
    """The checkpoint of two joins."""
    return folder / "checkpoint" / "chain"


def test_a_key_is_looked_up_without_spark(command: Callable[..., Any], chain: Path) -> None:
    key, order = KNOWN[0]
    found = [json.loads(line) for line in command("get", key, chain, "--operator", "joined").stdout.splitlines()]
    assert [(entry["kind"], entry["foreign_key"]) for entry in found] == [
        (kind, order["customer"]) for kind in ("left", "right", "subscription")
    ]
    assert found[2]["row"]["amount"] == order["amount"]
    first = command("get", key, chain, "--operator", "joined", "--batch", "0").stdout
    of_first = golden_operators.final(1)["orders"].get(key)
    assert [json.loads(line)["foreign_key"] for line in first.splitlines()][:1] == [of_first and of_first["customer"]]
    assert command("get", 10_000, chain, "--operator", "joined").stdout == "no state for key 10000\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("get", "1", "nothing"), "^checkpoint FOLDER/nothing does not exist$"),
        (("get", "1", "checkpoint"), "^checkpoint .* has no committed batch; there are .*: chain,"),
        (("get", "1", CHAIN), "/chain has several operators; add .* joined, chain, seen$"),
        (("get", "1", CHAIN, "--operator", "joint"), "'joint'; add --operator with one of"),
        (("get", "o1", CHAIN, "--operator", "joined"), r"^key 'o1' is not id \(int32\): "),
        (("get", "[1, 2]", CHAIN, "--operator", "joined"), r"a JSON list is needed, of id"),
        (("get", "1", CHAIN, "--batch", "7"), "^batch: FOLDER/.*/chain has batches 0 to 1, not 7$"),
        (("export", "nothing", "out"), "does not exist$"),
        (("verify", "nothing"), "does not exist$"),
        (("rebuild", "nothing"), "does not exist$"),
        (("rescale", "nothing", "2"), "does not exist$"),
    ],
)
def test_what_files_tell_is_refused_before_spark_starts(
    command: Callable[..., Any], folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    whole = [str(folder / one) if re.match("nothing|checkpoint|out", one) else one for one in arguments]
    with pytest.raises(FkJoinError, match=says.replace("FOLDER", re.escape(str(folder)))):
        command(*whole)


def test_a_query_without_state_is_refused_before_spark_starts(command: Callable[..., Any], tmp_path: Path) -> None:
    query = SavedQuery(tmp_path)
    query.batch({("eu", 1): {"name": "n", "amount": 1.0, "tags": None, "seq": 1}})
    assert json.loads(command("get", '["eu", 1]', query.checkpoint).stdout)["row"]["name"] == "n"
    (query.checkpoint / "state").rename(tmp_path / "away")
    (query.checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(FkJoinError, match="^checkpoint .* has no state: its query has no stateful operator$"):
        command("get", '["eu", 1]', query.checkpoint)


def test_a_file_that_is_gone_is_damage_and_spark_is_not_asked(command: Callable[..., Any], chain: Path, tmp_path: Path) -> None:
    chain = Path(shutil.copytree(chain, tmp_path / "chain"))
    for file in [*chain.glob("state/*/*/*.changelog"), *chain.glob("state/*/*/*.zip")]:
        file.unlink()
    with pytest.raises(FkJoinError, match=f"^checkpoint {chain} is damaged, a file of its batch 1 is missing: restore it"):
        command("get", "1", chain, "--operator", "joined")


@pytest.mark.parametrize(
    ("place", "configured"),
    [("s3a://lake/ck", False), ("hdfs:///ck", False), ("abfss://c@lake.dfs.core.windows.net/ck", False), ("/nothing/ck", True)],
)
@pytest.mark.parametrize("arguments", [("get", "1"), ("ls",)])
def test_a_place_that_settings_lead_to_is_sparks_to_find(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, place: str, configured: bool, arguments: tuple[str, ...]
) -> None:
    """An endpoint may stand in Spark's settings alone, and a path may be on the file system that Hadoop's name."""
    if configured:
        monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    with pytest.raises(pytest.fail.Exception, match="Spark starts"):
        command(*arguments, place)


def test_a_damaged_log_is_named(command: Callable[..., Any], chain: Path, tmp_path: Path) -> None:
    chain = Path(shutil.copytree(chain, tmp_path / "chain"))
    newest = max((path.name for path in (chain / "state/0/_metadata/v2").iterdir() if path.name.isdigit()), key=int)
    for name in ("commits/1", "offsets/1", f"state/0/_metadata/v2/{newest}"):
        file = chain / name
        problem = f": {name} is damaged: .*; restore it"
        if file.with_name(f".{file.name}.crc").exists():
            problem = f" is damaged: {name} is not as it was written; restore it"
        whole = file.read_bytes()
        for damage in (b"", bytes(8), b'v1\n{"stateUni', b"v1\n\xff"):
            file.write_bytes(damage)
            with pytest.raises(FkJoinError, match=f"^checkpoint {chain}{problem}"):
                command("get", "1", chain, "--operator", "joined")
        file.write_bytes(whole)


def test_change_files_that_a_snapshot_makes_needless_may_go_at_any_moment(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = SavedQuery(tmp_path)
    keys: list[tuple[Any, ...]] = [("eu", number) for number in range(8)]
    query.batch({key: {"name": "n", "amount": 1.0, "tags": None, "seq": 1} for key in keys})
    for number in range(2, 6):
        query.batch({keys[0]: {"name": f"n{number}", "amount": 1.0, "tags": None, "seq": number}}, snapshot=number == 4)
    read = SavedFiles.read

    def cleaned(files: SavedFiles, name: str) -> bytes:
        if name.endswith(".changelog") and "/3_" in name:
            query.clean(2)
        return read(files, name)

    monkeypatch.setattr(SavedFiles, "read", cleaned)
    assert json.loads(command("get", '["eu", 0]', query.checkpoint).stdout)["row"]["name"] == "n5"


FIRST = json.dumps(KNOWN[0][0])
KINDS = [
    *(("chain", operator, FIRST) for operator in ("joined", "chain")),
    *(("groups", operator, "c1") for operator in ("both", "all")),
    *(("groups", operator, FIRST) for operator in ("sums", "book")),
    ("star", "star", FIRST),
    ("tags", "tags", "p1"),
    ("tags", "tags", FIRST),
    ("pairs", "pairs", FIRST),
    ("seen", "seen", "c1"),
    ("closed", "minutes", FIRST),
]


def test_each_kind_of_operator_tells_what_it_knows_of_a_key(command: Callable[..., Any], folder: Path) -> None:
    kinds = set()
    for query, operator, key in KINDS:
        lines = command("get", key, folder / "checkpoint" / query, "--operator", operator).stdout.splitlines()
        entries = [json.loads(line) for line in lines]
        assert {entry["store"].rpartition("-")[0] for entry in entries} == {operator}
        kinds |= {entry["kind"] for entry in entries}
    assert "outputs" in kinds, "of a flat map"


@pytest.mark.nightly
@pytest.mark.parametrize("query", dict.fromkeys(query for query, *_ in KINDS))
def test_files_have_what_spark_reads(spark: SparkSession, folder: Path, query: str) -> None:
    """Spark's own source of state has the same records of each store's logs."""
    if SPARK_4_0:
        pytest.skip("Spark's source of state does not read such checkpoints")
    checkpoint = folder / "checkpoint" / query
    assert verify(spark, checkpoint) == []
    stores = with_stores(SavedFiles.without_spark(checkpoint), None, list)
    facts = attrgetter("name", "identity_data")
    assert list(map(facts, stores)) == list(map(facts, saved_stores(spark, checkpoint)))
    for store in stores:
        source = spark.read.format("statestore").option("operatorId", store.operator)
        meta = source.option("stateVarName", "meta").load(str(checkpoint))
        segments = source.option("stateVarName", "log").load(str(checkpoint))
        metas = {row[0]: bytes(row[1]) for row in meta.select("key.bucket", "value.data").collect()}
        columns = ("key.bucket", "user_map_key.number", "user_map_value.data")
        saved = {(row[0], row[1]): bytes(row[2]) for row in segments.select(*columns).collect()}
        for partition in store.partitions:
            with partition.opened() as log:
                for bucket, data in log.metas().items():
                    assert metas.pop(bucket) == data
                    for number in range(Meta.decode(data).first, Meta.decode(data).next):
                        assert log.segment(bucket, number) == saved.pop((bucket, number))
        assert (metas, saved) == ({}, {})
