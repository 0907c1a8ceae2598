"""Spark's Kafka connector: the release that is chosen is published, and packages that cannot be had are one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession

import fkjoin
from fkjoin.errors import SessionError
from fkjoin.sessions import connector, settings
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


def test_the_newest_release_is_chosen_that_is_not_of_a_later_minor_version() -> None:
    chosen = {"4.0.5": "4.0.0", "4.1.0": "4.1.1", "4.1.4": "4.1.1", "4.3.0": "4.2.0", "4.10.0.dev1": "4.2.0"}
    assert {spark: package(spark) for spark in chosen} == {spark: f"{MODULE}:{release}" for spark, release in chosen.items()}


def test_the_connector_is_added_unless_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = with_connector({PACKAGES: "a:b:1", EXCLUDES: "c:d", "spark.x": 1})
    assert chosen[PACKAGES] == f"a:b:1,{package()}"
    assert chosen[EXCLUDES].startswith("c:d,org.apache.hadoop:")
    assert chosen["spark.x"] == 1
    for named in ({PACKAGES: f"{MODULE}:4.0.0"}, {JARS: "/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar"}):
        assert with_connector(named) == named
    monkeypatch.setattr(connector, "spark_home", lambda: str(tmp_path))
    (tmp_path / "jars").mkdir()
    assert PACKAGES in with_connector({})
    (tmp_path / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar").touch()
    assert with_connector({}) == {}


@pytest.mark.parametrize("jar", ["spark-sql-kafka-0-10_2.13-{}.jar", "org.apache.spark_spark-sql-kafka-0-10_2.13-{}.jar"])
def test_a_connector_of_another_version_is_known(jar: str) -> None:
    wrong = [release for release in ("4.0.0", "4.1.1", "4.2.0", "4.3.1") if misfit(jar.format(release), "4.3.0")]
    assert wrong == ["4.0.0", "4.1.1"]
    assert not misfit("connector-of-a-vendor.jar", "4.3.0")


WAY = f"write {package()}, or leave it out and start the session with fkjoin.session(kafka=True)"
WAY_OF_OTHERS = "name releases that are published there, another repository in spark.jars"


def test_of_packages_that_cannot_be_had_it_is_said_where_they_were_looked_for_and_what_to_write() -> None:
    for name, advice in (("spark-sql-kafka-0-10_2.13", WAY), ("spark-avro_2.13", WAY_OF_OTHERS)):
        problem = f"spark.jars.packages: org.apache.spark:{name}:9.9.9 cannot be downloaded {SEARCHED}"
        words = unresolved(REPORT.format(name=name, version="9.9.9"))
        assert str(words).startswith(f"{problem}; {advice}")
    assert unresolved('Exception in thread "main" java.lang.IllegalArgumentException: Invalid memory') is None
    wrong = "Provided Maven Coordinates must be in the form 'groupId:artifactId:version'. The coordinate provided is: a:b"
    assert str(unresolved(wrong)).startswith("spark.jars.packages: 'a:b' is not a package; write each as")


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
def test_packages_that_cannot_be_had_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="own"/>'
        f'<caches defaultCacheDir="{tmp_path}/cache"/>'
        f'<resolvers><ibiblio name="own" m2compatible="true" root="{tmp_path.as_uri()}/"/></resolvers></ivysettings>'
    )
    run = start(REFUSED, str(tmp_path / "ivy.xml"), f"{MODULE}:9.9.9")
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"spark.jars.packages: {MODULE}:9.9.9 cannot be downloaded (tried own); write {package()}, or leave")


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


def test_a_session_with_kafka_asks_for_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    monkeypatch.setattr(settings, "launch", asked.update)
    for module, name in ((settings, "_classic"), (connector, "require"), (settings.words, "drop_warnings")):
        monkeypatch.setattr(module, name, lambda *_: None)
    fkjoin.session(kafka=True)
    assert package() in asked[PACKAGES]


@pytest.mark.nightly
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


@pytest.mark.parametrize("release", RELEASES)
def test_the_index_has_each_release_with_the_module_of_tokens(release: str) -> None:
    for part in ("sql", "token-provider"):
        name = f"spark-{part}-kafka-0-10_2.13"
        place = f"https://repo1.maven.org/maven2/org/apache/spark/{name}/{release}/{name}-{release}.jar"
        try:
            with urlopen(Request(place, method="HEAD"), timeout=20) as found:
                assert found.status == 200
        except HTTPError:
            raise
        except OSError as error:
            pytest.skip(f"the index of packages cannot be reached: {error}")


def test_documents_name_releases_that_are_chosen() -> None:
    named = re.compile(r"spark-sql-kafka-0-10_2\.13:(\w[\w.]*\w)")
    pages = [path.read_text() for path in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md")]
    assert set(named.findall((ROOT / "docs" / "kafka.md").read_text())) == set(RELEASES)
    assert set(named.findall("".join(pages))) == set(RELEASES)
