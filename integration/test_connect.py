"""Spark Connect: a server in a process of its own, and clients that know nothing of its JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.broker import Broker, Record
from integration.postgres import select
from tests.support.connect import Client, Server, client
from tests.support.orders import History, batch_join
from tests.support.sessions import SPARK_4_0
from tests.support.sinks import iceberg

pytest.importorskip("grpc")
if SPARK_4_0:
    pytest.skip("Spark Connect needs Spark 4.1 or newer", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, connector: str) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"), connector)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def shop(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client that most tests share."""
    with client(server.address, tmp_path_factory.mktemp("client")) as made:
        yield made


def history(folder: Path) -> History:
    for name in ("orders", "customers"):
        (folder / name).mkdir()
    made = History(folder)
    made.write(60)
    return made


@pytest.mark.nightly
def test_tables_and_files_are_the_batch_join_also_after_a_restart(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    given = {"table": "joined", "folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck"}
    shop("watched")
    for changes in (60, 0):
        places = {"parquet": f"{tmp_path}/parquet", "delta": f"{tmp_path}/delta", "iceberg": str(tmp_path)}
        shown = shop("write", **given, **places)
        assert " has ended; batch " in shown
        assert "\noperator  left-in " in shown
        assert shop("delta", path=f"{tmp_path}/delta", key="order_id") == batch_join(log)
        assert {row.pop("order_id"): row for row in iceberg(tmp_path, "shop.joined")} == batch_join(log)
        log.write(changes)
    assert len(list((tmp_path / "parquet").glob("batch=*"))) == 2
    watched = shop("watched")["joined"]
    assert watched["batches"] == 2
    assert watched["all_inputs"] == 120
    assert set(watched["state"]) >= {"joined"}


def test_aggregates_and_saved_state(shop: Client, tmp_path: Path) -> None:
    log = history(tmp_path)
    shop("write", table="by_region", folder=str(tmp_path), checkpoint=f"{tmp_path}/ck", delta=f"{tmp_path}/delta")
    found = shop("delta", path=f"{tmp_path}/delta", key="region")
    assert {(key,): tuple(row.values()) for key, row in found.items()} == log.by_region()
    placed = shop("state", checkpoint=f"{tmp_path}/ck", name="placed", key="order_id")
    assert {key: row["region"] for key, row in placed.items()} == {
        key: row["region"] for key, row in batch_join(log).items() if row["region"] is not None
    }
    job = {"folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck", "delta": f"{tmp_path}/delta"}
    said = shop("another_job", table="joined", **job)
    assert "/ck was made by another job: its operators were " in said
    assert " and are now joined-rekey, joined-subscription, joined-resolve, " in said, said
    assert "and this session has Asia/Tokyo: " in shop("another_job", table="by_region", zone="Asia/Tokyo", **job)


@pytest.mark.nightly
def test_rows_on_which_expressions_throw_are_left_out(shop: Client, tmp_path: Path) -> None:
    for length, rows in {"x": [("a", 5), ("b", 0)], "y": [("c", 50)]}.items():
        folder = tmp_path / "in" / f"length={length}"
        folder.mkdir(parents=True)
        lines = (json.dumps({"id": key, "n": n, "lsn": 1, "op": "u"}) for key, n in rows)
        (folder / "1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = shop("throwing", folder=str(tmp_path))
    assert found["rows"] == {"a": [20, "x"]}
    assert found["described"].endswith("Spark evaluates all expressions that are more than a name, workers evaluate none")
    assert found["letters"] == ["filter: 100 div n >= 10: it throws"]


def test_what_cannot_be_had_is_refused_by_name(shop: Client, server: Server, tmp_path: Path) -> None:
    said = shop("refused", folder=str(tmp_path), address=server.address)
    for name, text in {
        "relative": "path: ck",
        "master": "remote: sc://",
        "setting": "spark.driver.memory cannot be set in a session at",
        "job": "spark: spark.remote: jobs need a classic session",
        "kafka": "kafka: sc://",
        "job here": "spark: this process has Spark Connect, and jobs need a classic session",
        "kafka here": "kafka: the server has its own jars",
        "address": "remote: 'spark:15002' is no address of a server; write sc://HOST:PORT",
        "two": "remote: this process has a session at 127.0.0.1:",
    }.items():
        assert said.pop(name).startswith(text)
    assert {name: text.split(" needs a classic Spark session, ")[0] for name, text in said.items()} == {
        "adder": "adder as an expression",
        "preview": "preview",
        "window": 'emit="on-close"',
        "driver": "fkjoin.testing.Driver",
        "start-over": 'on_new_topic="start-over"',
        "staged": 'deployment="staged"',
        "staged aggregate": 'deployment="staged"',
        "verify": "verify",
        "rebuild": "rebuild",
        "rescale": "rescale",
    }
    shop("not_refused", folder=str(tmp_path))


def test_the_session_that_is_there_is_completed(shop: Client, server: Server) -> None:
    """A notebook or a task of a managed service has a session, whose address may be of another kind."""
    assert shop("session_here", address=server.address) == [True, True, True]


@pytest.mark.nightly
def test_topics_and_postgres(shop: Client, tmp_path: Path, broker: Broker, dsn: str) -> None:
    broker.create("it-orders", "it-customers", "it-joined", partitions=2)
    broker.send("it-customers", [Record(f"c{n}".encode(), json.dumps({"name": f"n{n}"}).encode()) for n in range(2)])
    orders = [Record(f"o{n}".encode(), json.dumps({"customer": f"c{n % 3}", "items": n}).encode()) for n in range(6)]
    broker.send("it-orders", [*orders, Record(b"o0", None)])
    shop("topics", brokers=broker.bootstrap, checkpoint=f"{tmp_path}/ck", dsn=dsn)
    wanted = {f"o{n}": {"items": n, "name": f"N{n % 3}"} for n in (1, 3, 4)}
    assert {key.decode(): json.loads(value) for key, value in broker.table("it-joined").items()} == wanted
    rows = select(dsn, "select key, items, name from shop.it")
    assert {key: {"items": items, "name": name} for key, items, name in rows} == wanted


@pytest.mark.nightly
def test_a_client_and_then_the_server_are_killed_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    """The first client is on another machine, and workers handle its files."""
    log = history(tmp_path)
    given = {"folder": str(tmp_path), "checkpoint": f"{tmp_path}/ck", "path": f"{tmp_path}/delta"}
    for end in ("client", "server", "none"):
        with client(server.address, tmp_path) as one:
            if end == "client":
                one("elsewhere")
            one("follow", **given)
            assert one("delta", path=given["path"], key="order_id") == batch_join(log)
            one.kill()  # its query goes on at the server, until another one of the checkpoint takes its place
        if end == "server":
            server.kill()
            server.start()
        log.write(40)
