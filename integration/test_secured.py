"""Brokers that ask for credentials: options that reach them for Spark's source and sink do so for checks of topics.

Secrets stay where they were given.  Files and output of jobs: integration/test_example_job.py, tests/jobs/test_secrets.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from joserfc import jwt
from joserfc.jwk import RSAKey
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, Table, TopologyError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import _filled, read_job, tomllib
from fkjoin.kafka import Json
from fkjoin.kafka.admin import create_topics, delete_records, offset_ranges
from fkjoin.sinks import Kafka
from tests.support.places import ROOT
from tests.support.sessions import small

from .broker import Broker, Record
from .conftest import DOCKER, prepared
from .jobs import document, job_file
from .machine import JsonAnswers, answering, until

PASSWORD = 'pa"ss\\word;=,'
"""A password with all characters that JAAS writes otherwise."""
STORE_PASSWORD = "storepass"
INSIDE = "/secured"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The property of a JVM that says where Kafka may ask for tokens and keys."""

JAAS = """
sasl.KafkaServer {
  org.apache.kafka.common.security.plain.PlainLoginModule required user_app="PLAIN_PASSWORD";
  org.apache.kafka.common.security.scram.ScramLoginModule required;
};
oauth.KafkaServer {
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
};
"""
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_KEYS = f"file://{INSIDE}/keys.json"


class SecuredBroker(Broker):
    """A broker with ``places``: ``SASL`` (PLAIN, SCRAM) and ``OAUTH`` over TLS, and ``MTLS`` with certificates on both sides.

    ``PLAINTEXT`` is for the tests themselves.  ``login`` answers as a login service does.
    """

    def __init__(self, image: str, folder: Path) -> None:
        self.folder = folder
        make_stores(folder)
        self.login = Login(folder / "keys.json")
        (folder / "jaas.conf").write_text(JAAS.replace("PLAIN_PASSWORD", quoted(PASSWORD)))
        super().__init__(
            image,
            {"SASL": "SASL_SSL", "OAUTH": "SASL_SSL", "MTLS": "SSL"},
            LISTENER_NAME_SASL_SASL_ENABLED_MECHANISMS="PLAIN,SCRAM-SHA-512",
            LISTENER_NAME_OAUTH_SASL_ENABLED_MECHANISMS="OAUTHBEARER",
            LISTENER_NAME_OAUTH_OAUTHBEARER_SASL_SERVER_CALLBACK_HANDLER_CLASS=_VALIDATOR,
            SASL_OAUTHBEARER_JWKS_ENDPOINT_URL=_KEYS,
            SASL_OAUTHBEARER_EXPECTED_AUDIENCE="kafka",
            LISTENER_NAME_MTLS_SSL_CLIENT_AUTH="required",
            SSL_KEYSTORE_LOCATION=f"{INSIDE}/broker.p12",
            SSL_KEYSTORE_PASSWORD=STORE_PASSWORD,
            SSL_TRUSTSTORE_LOCATION=f"{INSIDE}/trust.jks",
            SSL_TRUSTSTORE_PASSWORD=STORE_PASSWORD,
        )
        java = f"-Djava.security.auth.login.config={INSIDE}/jaas.conf -D{ALLOWED}={_KEYS}"
        self._container = self._container.with_volume_mapping(str(folder), INSIDE, "ro").with_env("JDK_JAVA_OPTIONS", java)

    def start(self) -> None:
        super().start()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = self.admin.alter_user_scram_credentials([UserScramCredentialUpsertion("app", scram, PASSWORD.encode())])
        made["app"].result(30)


class Login:
    """A login service on localhost: gives a token to the client ``fkjoin`` that has the password."""

    def __init__(self, keys: Path) -> None:
        key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        right = base64.b64encode(f"fkjoin:{PASSWORD}".encode()).decode()
        given = self.given = list[str]()
        """The tokens."""

        class Handler(JsonAnswers, BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.body()
                now = int(time.time())
                claims = {"sub": "fkjoin", "aud": "kafka", "scope": "kafka", "iat": now, "exp": now + 600}
                token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)
                given.append(token)
                if self.headers["Authorization"] == f"Basic {right}":
                    self.answer({"access_token": token, "token_type": "Bearer", "expires_in": 600})
                else:
                    self.answer({}, 401)

        self._open = contextlib.ExitStack()
        self.address = f"http://localhost:{self._open.enter_context(answering(Handler))}/token"
        self.close = self._open.close


def quoted(text: str) -> str:
    """Escape a text for quotation marks in JAAS."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def make_stores(folder: Path) -> None:
    """Make a certificate for broker and one for client, as Java's stores and as PEM; ``trust`` has both."""

    password = ("-storepass", STORE_PASSWORD)

    def run(*command: str) -> None:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    for name, host in (("broker", "localhost"), ("client", "client")):
        key, certificate = ["-keyout", f"{name}.key"], ["-out", f"{name}.crt", "-days", "30", "-subj", f"/CN={host}"]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        run("openssl", "req", "-x509", "-nodes", *curve, *key, *certificate, "-addext", f"subjectAltName=DNS:{host}")
        pair = ["-inkey", f"{name}.key", "-in", f"{name}.crt", "-name", name]
        run("openssl", "pkcs12", "-export", *pair, "-out", f"{name}.p12", "-passout", f"pass:{STORE_PASSWORD}")
        trusted = ["-keystore", "trust.jks", "-storetype", "JKS", "-alias", name, "-file", f"{name}.crt"]
        run("keytool", "-importcert", "-noprompt", *trusted, *password)
    both = ["-srckeystore", "client.p12", "-srcstorepass", STORE_PASSWORD, "-destkeystore", "client.jks"]
    run("keytool", "-importkeystore", "-noprompt", *both, "-deststoretype", "JKS", *password)
    (folder / "client.pem").write_text((folder / "client.key").read_text() + (folder / "client.crt").read_text())
    (folder / "ca.pem").write_text((folder / "broker.crt").read_text())


@pytest.fixture(scope="module")
def secured(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    made = SecuredBroker(prepared(str(DOCKER / "kafka" / "build.sh")), tmp_path_factory.mktemp("secured"))
    made.start()
    yield made
    made.stop()
    made.login.close()


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for small tables, and the secrets of the documents' examples."""
    small(spark, tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", quoted(PASSWORD))
    monkeypatch.setenv("STORE_PASSWORD", STORE_PASSWORD)


PAGE = (ROOT / "docs" / "security.md").read_text()
WAYS = {
    "SASL/SCRAM": "SASL",
    "SASL/PLAIN": "SASL",
    "OAuth": "OAUTH",
    "mTLS with Java's stores": "MTLS",
    "mTLS with PEM files": "MTLS",
    "mTLS with PEM texts": "MTLS",
}
"""The ways in that docs/security.md has, and the listeners for them."""


def section(way: str, broker: SecuredBroker) -> str:
    """The part of a job file that docs/security.md has for the way, for this broker; secrets are in the environment."""
    text = PAGE.split(f"### {way.replace('PLAIN', 'SCRAM')}\n", 1)[1].split("```toml\n", 1)[1].split("```", 1)[0]
    here = {"/run/secrets/kafka": str(broker.folder)}
    here["https://login.example.com/token"] = broker.login.address
    if way == "SASL/PLAIN":
        here |= {"SCRAM-SHA-512": "PLAIN", "scram.ScramLoginModule": "plain.PlainLoginModule"}
    for before, after in here.items():
        text = text.replace(before, after)
    return text


def documented(way: str, broker: SecuredBroker) -> dict[str, str]:
    """The options that docs/security.md has for the way, with this broker's names and secrets."""
    options: dict[str, str] = _filled(tomllib.loads(section(way, broker)), "")["kafka"]["options"]
    return options


def job_of(name: str, way: str, broker: SecuredBroker, folder: Path) -> Path:
    """The file of a job that logs in that way, with stages, two sinks in one query and dead letters."""
    more = f'trigger = "available-now"\n{section(way, broker)}{COUNTS}'
    job = job_file(name, folder, broker, {"read": "n int, k string"}, more)
    job.write_text(job.read_text().replace(broker.bootstrap, broker.places[WAYS[way]]))
    return job


@pytest.fixture
def require_unseen(
    secured: SecuredBroker, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Assert that no secret is in what was shown or printed, in Spark's plans, or in the test's files."""

    def require(*shown: str) -> None:
        key = (secured.folder / "client.key").read_text().splitlines()[1]
        # Pieces whose characters each text writes as they are.
        secrets = [*re.findall(r"[\w;=,]{6,}", PASSWORD), STORE_PASSWORD, key]
        secrets += [token[-40:] for token in secured.login.given]
        store = spark._jsparkSession.sharedState().statusStore()  # type: ignore[attr-defined]
        every = store.executionsList()
        plans = [every.apply(place).physicalPlanDescription() for place in range(every.size())]
        files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert any("offsets" in file.parts for file in files), "a checkpoint is among the files"
        text = "".join([*shown, *plans, *capfd.readouterr()])
        for secret in secrets:
            assert secret not in text
            assert [file for file, content in files.items() if secret.encode() in content] == []

    return require


COUNTS = """
[aggregates.counts]
of = "read"
group_by = "k"
columns = {n = "count()"}
deployment = "staged"
[sinks.out]
table = "counts"
topic = "{name}-out"
[sinks.more]
table = "counts"
topic = "{name}-more"
[dead_letters]
topic = "{name}-dead"
"""


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_each_documented_way_in(
    way: str, secured: SecuredBroker, spark: SparkSession, tmp_path: Path, fkjoin_here: Any, require_unseen: Any
) -> None:
    """A topic that was made anew is noticed, too; of Java's stores, JKS reads and PKCS 12 writes."""
    name = re.sub(r"\W+", "-", way)
    secured.create(*(f"{name}-{end}" for end in ("read", "out", "more", "dead")), partitions=2)
    secured.send(f"{name}-read", [Record(b"a", document(n=1)), Record(b"b", document(n=2))])
    place, options = secured.places[WAYS[way]], documented(way, secured)
    spark._jvm.java.lang.System.setProperty(ALLOWED, secured.login.address)  # type: ignore[union-attr]

    def table(topic: str) -> Table:
        return Table.from_kafka(spark, topic, place, key="string", value=Json("n int"), options=options)

    with pytest.raises(TopologyError, match=f"no topic '{name}-reed' at .*; did you mean '{name}-read'"):
        table(f"{name}-reed")
    read = table(f"{name}-read")
    writing = {option: value.replace("client.jks", "client.p12") for option, value in options.items()}
    how: Any = {"checkpoint": tmp_path / "ck", "trigger": "available-now", "options": writing}
    with pytest.raises(TopologyError, match=f"no topic '{name}-pout' at .*; did you mean '{name}-out'"):
        read.to_kafka(f"{name}-pout", place, **how)
    read.to_kafka(f"{name}-out", place, **how).awaitTermination()
    assert {key: json.loads(value) for key, value in secured.table(f"{name}-out").items()} == {b"a": {"n": 1}, b"b": {"n": 2}}
    checked = fkjoin_here("run", job_of(name, way, secured, tmp_path), "--check")
    create_topics(place, options, {f"{name}-internal": 2}, replication=-1, config={"retention.ms": "-1"})
    until("brokers know of it", lambda: f"{name}-internal" in secured.topics())
    assert offset_ranges(f"{name}-internal", place, options) == {0: range(0), 1: range(0)}
    ends = secured.ends(f"{name}-read")
    delete_records(f"{name}-read", place, options, ends)
    assert offset_ranges(f"{name}-read", place, options) == {part: range(end, end) for part, end in ends.items()}
    secured.anew(f"{name}-read", partitions=1)
    with pytest.raises(FkJoinError, match=f"topic {name}-read was deleted and created again"):
        table(f"{name}-read").to_kafka(f"{name}-out", place, **how)
    require_unseen(checked, read.describe())


def test_a_job_gives_its_options_to_every_query_and_shows_no_secret(
    secured: SecuredBroker,
    spark: SparkSession,
    tmp_path: Path,
    fkjoin_here: Callable[..., str],
    require_unseen: Callable[..., None],
) -> None:
    """Nor does a table, a sink or a description show one."""
    secured.create("job-read", "job-out", "job-more", "job-dead", partitions=1)
    secured.send("job-read", [Record(b"a", document(n=1, k="x")), Record(b"b", document(n=2, k="x")), Record(b"c", b"{")])
    job = job_of("job", "mTLS with PEM texts", secured, tmp_path)
    shown = [fkjoin_here("run", job)]
    for topic in ("job-out", "job-more"):
        assert {key: json.loads(value) for key, value in secured.table(topic).items()} == {b"x": {"n": 2}}
    assert len(secured.read("job-dead")) == 1
    spec, options = read_job(job), documented("mTLS with PEM texts", secured)
    counts = Job(spec, spark).tables["counts"]
    shown += [repr(spec), repr(counts), repr(counts._planned.call), repr(Kafka("out", "b:1", options=options))]
    shown += [counts.describe(form) for form in ("text", "json", "mermaid")]
    require_unseen(*shown)


UNKNOWN = {
    "SASL/SCRAM": r"the brokers at localhost:\d+ refuse this client \(.*invalid credentials.*the options: kafka.sec",
    "OAuth": "options: Java's Kafka client cannot be made .*: The response code 401",
    "mTLS with PEM files": r"localhost:\d+ .*the options.*kafka.security.protocol",
}


@pytest.mark.parametrize("way", UNKNOWN)
def test_an_unknown_client_is_told_so(
    way: str, secured: SecuredBroker, spark: SparkSession, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "canary-wrong")
    options = documented(way, secured)
    if way.startswith("mTLS"):
        options = {name: value for name, value in options.items() if "keystore" not in name}
    with pytest.raises(TopologyError, match=UNKNOWN[way]) as refused:
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


def test_the_documented_program_has_the_options_of_the_job_file(secured: SecuredBroker) -> None:
    names: dict[str, Any] = {}
    exec(PAGE.split("```python\n", 1)[1].split("orders = ", 1)[0].replace("/run/secrets/kafka", str(secured.folder)), names)
    assert names["options"] == documented("SASL/SCRAM", secured)
