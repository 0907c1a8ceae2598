"""The lines of ``fkjoin doctor`` about PySpark and pandas."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pandas
import pyspark
import pytest
from typer.testing import CliRunner

from fkjoin.cli import doctor
from fkjoin.cli.main import app
from fkjoin.errors import FkJoinError
from fkjoin.sessions.connector import MODULE


def test_known_faults_of_a_release_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old, late = ["SPARK-53870", "SPARK-58932"], ["SPARK-58932"]
    for release, faults in (("3.5.6", []), ("4.0.0", old), ("4.0.2", late), ("4.2.1.dev0", late), ("4.3.0", []), ("5.0.0", [])):
        monkeypatch.setattr(pyspark, "__version__", release)
        found = doctor._pyspark()
        assert (found.fine, found.state.split(";")[0]) == (release in {"4.0.2", "4.2.1.dev0", "4.3.0"}, release)
        assert [fault for fault in old if fault in found.state] == faults
        assert found.advice == 'pip install "pyspark>=4.0.2,<5"'


def test_pyspark_has_the_word_on_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> None:
        import warnings

        warnings.warn("some features may not work", FutureWarning, stacklevel=2)

    assert doctor._pandas().state.split(";")[0] == pandas.__version__
    monkeypatch.setattr(pandas, "__version__", "2.2.3")
    assert doctor._pandas() == ("pandas", True, "2.2.3", "")
    monkeypatch.setattr(pandas, "__version__", "1.5.3")
    found = doctor._pandas()
    assert (found.fine, found.advice) == (False, 'pip install "pandas>=2.2"')
    assert "1.5.3" in found.state
    monkeypatch.setattr(doctor, "require_minimum_pandas_version", warn)
    assert doctor._pandas() == ("pandas", True, "1.5.3; PySpark says: some features may not work", "")


OLD, NEW = (f"spark-sql-kafka-0-10_2.13-{release}.jar" for release in ("4.0.0", "4.2.0"))


@pytest.mark.parametrize(
    ("jar", "wanted", "fine", "state"),
    [
        (None, True, False, "is not in the session$"),
        (None, False, True, "is not in the session, and only topics need it: start the session"),
        (OLD, True, False, f"{OLD} does not fit Spark 4.3.0$"),
        (NEW, True, True, NEW),
    ],
)
def test_a_connector_is_missed_by_whoever_asks_for_brokers(
    monkeypatch: pytest.MonkeyPatch, jar: str | None, wanted: bool, fine: bool, state: str
) -> None:
    session: Any = SimpleNamespace(version="4.3.0")
    monkeypatch.setattr(doctor.connector, "loaded_jar", lambda _: jar)
    finding = doctor._connector(session, wanted=wanted)
    assert finding.fine == fine
    assert re.match(state, finding.state)
    assert fine or f"; spark-submit, and here: --packages {MODULE}:4.2.0" in finding.advice


@pytest.mark.parametrize(
    ("brokers", "given", "fetched"), [("b:9092", {}, True), ("", {}, False), ("b:9092", {"spark.jars": "x"}, False)]
)
def test_brokers_are_asked_through_the_connector_that_fits(
    monkeypatch: pytest.MonkeyPatch, brokers: str, given: dict[str, str], fetched: bool
) -> None:
    asked: list[bool] = []

    def session(*_: Any, kafka: bool) -> Any:
        asked.append(kafka)
        raise FkJoinError("no repository answers\nand more")

    monkeypatch.setattr(doctor, "session", session)
    (found,) = doctor._session("local[2]", brokers, given)
    assert (asked, found.fine, found.state) == ([fetched], False, "no repository answers")


def test_advice_about_a_section_of_a_job_file_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.Finding("Kafka connector", False, "is not in [spark]", "write kafka = true in [spark]")
    monkeypatch.setattr(doctor, "examine", lambda *_: [finding])
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == 1
    assert said.stdout == "bad Kafka connector: is not in [spark]\n    write kafka = true in [spark]\n"
