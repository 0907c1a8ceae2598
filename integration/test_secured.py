"""Brokers that ask who one is: what reaches them for Spark's source and sink reaches them for the checks of topics."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Table, TopologyError
from fkjoin.jobs.job_file import tomllib
from fkjoin.kafka import Json
from fkjoin.sessions.settings import BUCKETS, INDEX_DIR, PARTITIONS
from integration.jobs import anew

from .broker import Record
from .conftest import DOCKER, prepared
from .jobs import document
from .secured import ALLOWED, PASSWORD, STORE_PASSWORD, SecuredBroker, quoted


@pytest.fixture(scope="module")
def secured(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    made = SecuredBroker(prepared(str(DOCKER / "kafka" / "build.sh")), tmp_path_factory.mktemp("secured"))
    made.start()
    yield made
    made.stop()
    made.login.close()


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    for name, value in ((PARTITIONS, "2"), (BUCKETS, "2"), (INDEX_DIR, str(tmp_path / "index"))):
        spark.conf.set(name, value)


WAYS = {
    "SASL/SCRAM": "SASL",
    "SASL/PLAIN": "SASL",
    "OAuth": "OAUTH",
    "mTLS with Java's stores": "MTLS",
    "mTLS with PEM files": "MTLS",
}
"""The ways in that docs/security.md has, and the listeners for them."""


def documented(way: str, broker: SecuredBroker, password: str = PASSWORD) -> dict[str, str]:
    """The options that docs/security.md has for it, with this broker's names and secrets."""
    page = (Path(__file__).parent.parent / "docs" / "security.md").read_text()
    title = way.replace("PLAIN", "SCRAM")
    options: dict[str, str] = tomllib.loads(page.split(f"### {title}\n", 1)[1].split("```toml\n", 1)[1].split("```", 1)[0])[
        "kafka"
    ]["options"]
    here = {
        "${KAFKA_PASSWORD}": quoted(password),
        "${STORE_PASSWORD}": STORE_PASSWORD,
        "/run/secrets/kafka": str(broker.folder),
        "https://login.example.com/token": broker.login.address,
    }
    if way == "SASL/PLAIN":
        here |= {"SCRAM-SHA-512": "PLAIN", "scram.ScramLoginModule": "plain.PlainLoginModule"}
    for before, after in here.items():
        options = {name: value.replace(before, after) for name, value in options.items()}
    return options


@pytest.mark.parametrize("way", WAYS)
def test_each_documented_way_in_reads_writes_and_checks_topics(
    way: str, secured: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    name = re.sub(r"\W+", "-", way)
    secured.create(f"{name}-in", f"{name}-out", partitions=2)
    secured.send(f"{name}-in", [Record(b"a", document(n=1)), Record(b"b", document(n=2))])
    place, options = secured.places[WAYS[way]], documented(way, secured)
    spark._jvm.java.lang.System.setProperty(ALLOWED, secured.login.address)  # type: ignore[union-attr]

    def table(topic: str) -> Table:
        return Table.from_kafka(spark, topic, place, key="string", value=Json("n int"), options=options)

    with pytest.raises(TopologyError, match=f"no topic '{name}-im' at .*; did you mean '{name}-in'"):
        table(f"{name}-im")
    read = table(f"{name}-in")
    assert read._planned.connection is not None
    assert (read._planned.connection.partitions, read._planned.connection.topic_id is None) == (2, False)
    how: Any = {"checkpoint": tmp_path, "trigger": {"availableNow": True}, "options": options}
    with pytest.raises(TopologyError, match=f"no topic '{name}-pout' at .*; did you mean '{name}-out'"):
        read.to_kafka(f"{name}-pout", place, **how)
    read.to_kafka(f"{name}-out", place, **how).awaitTermination()
    assert {message.key(): json.loads(message.value() or b"") for message in secured.read(f"{name}-out")} == {
        b"a": {"n": 1},
        b"b": {"n": 2},
    }


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (
            "SASL/SCRAM",
            r"the brokers at localhost:\d+ refuse this client \(.*invalid credentials.*the options: kafka.sec",
        ),
        ("OAuth", "options: Java's Kafka client cannot be made .*: The response code 401"),
        ("mTLS with PEM files", r"localhost:\d+ .*the options.*kafka.security.protocol"),
    ],
)
def test_a_client_that_is_not_known_is_told_so(
    way: str, says: str, secured: SecuredBroker, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    options = documented(way, secured, password="canary-wrong")
    if way.startswith("mTLS"):
        options = {name: value for name, value in options.items() if "keystore" not in name}
    with pytest.raises(TopologyError, match=says) as refused:
        Table.from_kafka(spark, "any", secured.places[WAYS[way]], key="string", value="string", options=options)
    assert "\n" not in str(refused.value)
    assert "canary" not in "".join(traceback.format_exception(refused.value)) + "".join(capfd.readouterr())


def test_settings_that_java_cannot_read_are_told_without_their_secrets(secured: SecuredBroker, spark: SparkSession) -> None:
    options = documented("SASL/SCRAM", secured)
    for change, says in (
        ({"kafka.sasl.jaas.config": "ScramLoginModule canary"}, "JAAS"),
        ({"kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(quoted(PASSWORD), 'a"canary"b')}, "JAAS"),
        ({"kafka.ssl.truststore.location": "/nowhere/trust.jks"}, "/nowhere/trust.jks"),
        ({"kafka.ssl.truststore.password": "canary"}, "(password was incorrect|Password verification failed)"),
        ({"kafka.security.protocol": "SECRET"}, "security.protocol"),
    ):
        with pytest.raises(TopologyError, match=f"options: Java's Kafka client cannot .*{says}") as refused:
            Table.from_kafka(spark, "any", secured.places["SASL"], key="string", value="string", options={**options, **change})
        assert "canary" not in "".join(traceback.format_exception(refused.value))


def test_internal_topics_are_created_and_topics_made_anew_noticed_with_the_same_options(
    secured: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    secured.create("staged", "staged-out", partitions=2)
    secured.send("staged", [Record(b"a", document(n=1, k="x")), Record(b"b", document(n=2, k="x"))])
    place, options = secured.places["MTLS"], documented("mTLS with Java's stores", secured)

    def counts(deployment: Any = "fused", **more: Any) -> Table:
        of: Any = {"key": "string", "value": Json("n int, k string"), "options": options, **more}
        table = Table.from_kafka(spark, "staged", place, **of)
        return table.group_by("k", name="n", deployment=deployment, application="safe").count()

    once: Any = {"trigger": {"availableNow": True}, "options": options}
    staged = counts("staged")
    for stage in staged.stages:
        stage.start(tmp_path / "regroup", **once).awaitTermination()
    staged.to_kafka("staged-out", place, checkpoint=tmp_path / "aggregate", **once).awaitTermination()
    assert len(secured.admin.list_topics(timeout=10).topics["safe-n-repartition"].partitions) == 2
    assert json.loads(secured.table("staged-out")[b"x"]) == {"count": 2}

    def parquet(**more: Any) -> set[tuple[Any, ...]]:
        counts(**more).to_parquet(
            tmp_path / "out", checkpoint=tmp_path / "ck", trigger={"availableNow": True}
        ).awaitTermination()
        return {tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).select("k", "count", "_operation").collect()}

    assert parquet() == {("x", 2, "insert")}
    anew(secured, "staged", partitions=1)
    secured.send("staged", [Record(b"a", document(n=1, k="y")), Record(b"b", None)])
    with pytest.raises(FkJoinError, match="topic staged was deleted and created again"):
        parquet()
    assert parquet(on_new_topic="start-over") == {("x", 2, "insert"), ("x", None, "delete"), ("y", 1, "insert")}
