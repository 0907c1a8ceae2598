"""Spark's Kafka connector: the release that is chosen is published, and packages that cannot be had are one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import fkjoin
from fkjoin.cli import doctor
from fkjoin.errors import SessionError
from fkjoin.sessions import connector
from fkjoin.sessions.connector import EXCLUDES, JARS, MODULE, PACKAGES, RELEASES, misfit, package, unresolved, with_connector
from tests.support.places import ROOT
from tests.support.sessions import short_lived

REPORT = """\
:: problems summary ::
:::: WARNINGS
\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/org/apache/spark/{name}-{version}.pom

\t\tmodule not found: org.apache.spark#{name};{version}

\t==== local-ivy-cache: tried

\t==== central: tried

\t  https://repo1.maven.org/maven2/org/apache/spark/{name}/{version}/{name}-{version}.pom

:::: ERRORS
\tServer access error at url http://127.0.0.1:9/{name}-{version}.pom (java.net.ConnectException: Connection refused)

:: USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.apache.spark#{name};{version}: not found]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
"""
"""The report of Spark's start, as far as it says something."""

SEARCHED = "(tried local-ivy-cache, central; not reached: repos.spark-packages.org, 127.0.0.1:9)"


@pytest.mark.parametrize(
    ("spark", "release"),
    [
        ("4.0.5", "4.0.0"),
        ("4.1.0", "4.1.1"),
        ("4.1.4", "4.1.1"),
        ("4.2.0", "4.2.0"),
        ("4.3.0", "4.2.0"),
        ("4.10.0.dev1", "4.2.0"),
    ],
)
def test_the_newest_release_is_chosen_that_is_not_of_a_later_minor_version(spark: str, release: str) -> None:
    assert package(spark) == f"{MODULE}:{release}"


def test_the_connector_is_added_to_packages_and_exclusions_that_are_given() -> None:
    chosen = with_connector({PACKAGES: "a:b:1", EXCLUDES: "c:d", "spark.x": 1})
    assert chosen[PACKAGES] == f"a:b:1,{package()}"
    assert chosen[EXCLUDES].startswith("c:d,org.apache.hadoop:")
    assert chosen["spark.x"] == 1


@pytest.mark.parametrize("given", [{PACKAGES: f"{MODULE}:4.0.0"}, {JARS: "/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar"}])
def test_a_connector_that_is_named_is_left_alone(given: dict[str, Any]) -> None:
    assert with_connector(given) == given


def test_a_connector_among_sparks_own_jars_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "spark_home", lambda: str(tmp_path))
    assert PACKAGES in with_connector({})
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    assert with_connector({}) == {}


@pytest.mark.parametrize("jar", ["spark-sql-kafka-0-10_2.13-{}.jar", "org.apache.spark_spark-sql-kafka-0-10_2.13-{}.jar"])
def test_a_connector_of_another_version_is_known(jar: str) -> None:
    assert [misfit(jar.format(release), "4.3.0") for release in ("4.0.0", "4.1.1", "4.2.0", "4.3.1")] == [
        True,
        True,
        False,
        False,
    ]
    assert not misfit("connector-of-a-vendor.jar", "4.3.0")


@pytest.mark.parametrize("jar", ["spark-sql-kafka-0-10_2.13-4.0.0.jar", None, "spark-sql-kafka-0-10_2.13-4.2.0.jar"])
def test_the_doctor_names_a_connector_of_another_version(jar: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "loaded_jar", lambda spark: jar)
    found = doctor._connector(SimpleNamespace(version="4.3.0"), wanted=True)  # type: ignore[arg-type]
    assert found.fine == (jar is not None and "4.2.0" in jar)
    if jar is not None and not found.fine:
        assert found.state == f"{jar} does not fit Spark 4.3.0"
    assert found.fine or f"--packages {MODULE}:4.2.0" in found.advice


@pytest.mark.parametrize("name", ["spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"])
def test_of_the_connector_the_release_that_is_published_is_named(name: str) -> None:
    assert unresolved(REPORT.format(name=name, version="4.3.0")) == (
        f"spark.jars.packages: org.apache.spark:{name}:4.3.0 cannot be had {SEARCHED}; write {package()}, or leave it out and "
        "start the session with fkjoin.session(kafka=True), in a job file kafka = true in [spark]"
    )


def test_of_other_packages_the_places_to_look_at_are_named() -> None:
    assert unresolved(REPORT.format(name="spark-avro_2.13", version="9.9.9")) == (
        f"spark.jars.packages: org.apache.spark:spark-avro_2.13:9.9.9 cannot be had {SEARCHED}; name releases that are "
        "published there, another repository in spark.jars.repositories, or jars in spark.jars"
    )


def test_a_start_that_ended_for_something_else_is_not_explained() -> None:
    assert unresolved('Exception in thread "main" java.lang.IllegalArgumentException: Invalid memory') is None


def start(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=short_lived(), cwd=ROOT, capture_output=True, text=True, check=False)


REFUSED = """
import sys
import fkjoin

settings = {"spark.jars.ivySettings": sys.argv[1], "spark.jars.packages": sys.argv[2]}
try:
    fkjoin.session("refused", "local[1]", settings)
except fkjoin.SessionError as error:
    sys.exit(str(error))
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (f"{MODULE}:9.9.9", f"{MODULE}:9.9.9 cannot be had (tried own); write {package()}, or leave"),
        ("org.apache.spark:9.9.9", "'org.apache.spark:9.9.9' is no package; write each as"),
    ],
)
def test_packages_that_cannot_be_had_are_one_line(tmp_path: Path, packages: str, says: str) -> None:
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="own"/>'
        f'<caches defaultCacheDir="{tmp_path}/cache"/>'
        f'<resolvers><ibiblio name="own" m2compatible="true" root="{tmp_path.as_uri()}/"/></resolvers></ivysettings>'
    )
    run = start(REFUSED, str(tmp_path / "ivy.xml"), packages)
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"spark.jars.packages: {says}")


CHOSEN = """
import sys
import fkjoin
from fkjoin import Table
from fkjoin.kafka import admin
from fkjoin.sessions import connector

admin._TIMEOUT_S = 1
spark = fkjoin.session("chosen", "local[1]", {"spark.ui.enabled": False, "spark.driver.host": "127.0.0.1"}, kafka=True)
print(connector.loaded_jar(spark))
try:
    Table.from_kafka(spark, "orders", "localhost:1", key="string", value="string")
except fkjoin.FkJoinError as error:
    print(error)
"""


@pytest.mark.spark
def test_a_session_with_kafka_has_the_connector_that_fits() -> None:
    run = start(CHOSEN)
    if run.returncode and "not reached: repo1.maven.org" in run.stderr:
        pytest.skip(f"the index of packages cannot be reached: {run.stderr.splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    jar, says = run.stdout.splitlines()
    assert jar.endswith(f"spark-sql-kafka-0-10_2.13-{package().rpartition(':')[2]}.jar")
    assert says.startswith("bootstrap_servers: no broker answers at localhost:1")
    assert "resolution report" not in run.stderr


def test_a_process_whose_jvm_lacks_the_connector_is_told_to_start_another(spark: SparkSession) -> None:
    with pytest.raises(SessionError, match="takes packages only when its JVM starts. Start a new process .*--packages org"):
        fkjoin.session(kafka=True)


PARTS = "sql", "token-provider"
PROBE = "org.slf4j", "slf4j-simple", "1.7.36"
"""A module that the index has for sure."""


@pytest.mark.spark
def test_the_index_has_each_release_with_the_module_of_tokens(tmp_path: Path) -> None:
    """Asked with the Ivy that PySpark ships, and nothing that was fetched before."""
    wanted = [
        PROBE,
        *(("org.apache.spark", f"spark-{part}-kafka-0-10_2.13", release) for release in RELEASES for part in PARTS),
    ]
    modules = [(f"conf{number}", *one) for number, one in enumerate(wanted)]
    (tmp_path / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir="{tmp_path}/cache"/>'
        '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
    )
    (tmp_path / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="fkjoin" module="connectors"/><configurations>'
        + "".join(f'<conf name="{conf}"/>' for conf, *_ in modules)
        + "</configurations><dependencies>"
        + "".join(
            f'<dependency org="{org}" name="{name}" rev="{release}" conf="{conf}->master" transitive="false"/>'
            for conf, org, name, release in modules
        )
        + "</dependencies></ivy-module>"
    )
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = ["java", "-jar", ivy, "-settings", tmp_path / "settings.xml", "-ivy", tmp_path / "ivy.xml"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said = run.stdout + run.stderr
    missing = [":".join(one) for one in wanted if f":: {one[0]}#{one[1]};{one[2]}: not found" in said]
    if ":".join(PROBE) in missing:
        pytest.skip(f"the index of packages cannot be reached: {said[-300:]}")
    assert missing == []
    assert said.count("found org.apache.spark#") == len(wanted) - 1, said


def test_documents_name_releases_that_are_chosen() -> None:
    texts = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    found = {
        (path.name, named)
        for path in texts
        for named in re.findall(r"spark-sql-kafka-0-10_2\.13:(\w[\w.]*\w)", path.read_text())
    }
    assert {named for name, named in found if name == "kafka.md"} == set(RELEASES)
    assert {named for _, named in found} == set(RELEASES)
