"""Sinks and formats of other packages in job files: found by entry points, made with their settings, refused by name."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomllib
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

from fkjoin.jobs import installed
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import FormatSection, SinkSection
from tests.support.job_files import GOOD, job, run_queries
from tests.support.places import ROOT
from tests.support.queries import write_lines
from tests.support.sessions import small


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, modules: dict[str, str], **entry_points: dict[str, str]) -> None:
    """Have a package, called as the folder, of these modules and entry points, by name and by group below ``fkjoin``."""
    about = folder / f"{folder.name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n")
    lines = list[str]()
    for group, names in entry_points.items():
        lines += [f"[fkjoin.{group}]", *(f"{name} = {value}" for name, value in names.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)


MODULE = """
class Reads:
    def __init__(self, separator=",", *, columns):
        self.separator, self.columns = separator, columns

    def decode(self, data): ...


class Anything:
    place = "anything"

    def __init__(self, **settings):
        self.settings = settings

    def begin(self, table): ...


def throws(address):
    return [][int(address)]


def not_a_sink():
    return 7
"""
SINKS = {name: f"other:{name}" for name in ("Anything", "throws", "not_a_sink")} | {
    "lost": "nowhere.at_all:Sink",
    "module": "other",
}


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    formats = {"reads": "other:Reads", "none": "other:Anything"}
    install(monkeypatch, tmp_path / "packages", {"other": MODULE}, sinks=SINKS, formats=formats)


SINK_REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("anythin", {}, "kind: no installed package provides the sink 'anythin'; there are .*Anything, .*Name one of these, or"),
    ("lost", {}, "kind: the sink 'lost': nowhere.at_all:Sink cannot be imported: ModuleNotFoundError"),
    ("not_a_sink", {}, "kind: the sink 'not_a_sink' is of type int: let it inherit from fkjoin.sinks.TableSink"),
    ("module", {}, "kind: the sink 'module' is a module: let its entry point name a class"),
    ("throws", {"adress": 1}, r"settings.adress: the sink 'throws' has no such setting; did you mean 'address'\?"),
    ("throws", {}, "settings.address: the sink 'throws' needs it; give it a value"),
    ("throws", {"address": 1}, "settings: the sink 'throws' cannot be made: IndexError: .*other.py, line .*, in throws"),
]
FORMAT_REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("read", {}, "kind: no installed package provides the format 'read'; there are none, reads. Name one of these,"),
    ("none", {}, "kind: the format 'none' is of type Anything: give it decode"),
    ("reads", {"columns": "a int", "seperator": ";"}, r"settings.seperator: .*; did you mean 'separator'\?"),
    ("reads", {"separator": ";"}, "settings.columns: the format 'reads' needs it; give it a value"),
]


def test_the_way_out_that_is_named_is_one() -> None:
    for kind, settings, says in SINK_REFUSALS:
        with pytest.raises(JobError, match=f"^{says}"):
            installed.sink_of(kind, settings)
    installed.sink_of("Anything", {"address": 1})
    for kind, settings, says in FORMAT_REFUSALS:
        with pytest.raises(JobError, match=f"^{says}"):
            FormatSection(kind=kind, settings=settings).build("value")
    FormatSection(kind="reads", settings={"columns": "a int", "separator": ";"}).build("value")


SHOP = """
[sinks.shop]
table = "joined"
kind = "sqlite"
settings = {database = "{folder}/shop.db", into = "joined"}
"""


def test_editors_and_job_files_know_which_settings_there_are(tmp_path: Path) -> None:
    valid, wrong = Draft202012Validator(json_schema()).is_valid, GOOD + SHOP.replace("settings", "options")
    assert not valid(tomllib.loads(wrong))
    with pytest.raises(JobError, match="options: it is a setting of .*, and this sink writes to a sink of another"):
        read_job(job(tmp_path, wrong))
    assert valid(tomllib.loads(GOOD + SHOP))
    assert read_job(job(tmp_path, GOOD + SHOP)).sinks["shop"].settings["into"] == "joined"
    assert "shop.db" not in repr(SinkSection(table="t", kind="sqlite", settings={"database": "shop.db"}))


def test_a_job_writes_by_another_packages_sink(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(spark, tmp_path)
    text = (ROOT / "examples/sqlite/sqlite_sink.py").read_text()
    install(monkeypatch, tmp_path / "sqlite", {"sqlite_sink": text}, sinks={"sqlite": "sqlite_sink:Sqlite"})
    orders = [{"id": n, "customer": "c", "amount": n, "op": "u", "lsn": 1} for n in range(3)]
    write_lines(tmp_path / "orders", "1", orders)
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    with pytest.raises(JobError, match=r"sinks\.shop\.settings\.base: the sink 'sqlite' has no such setting"):
        Job(read_job(job(tmp_path, GOOD + SHOP.replace("database", "base"))), spark)
    made = Job(read_job(job(tmp_path, GOOD + SHOP)), spark)
    made.check()
    assert "sqlite joined" in made.describe()
    run_queries(made)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        assert db.execute("select * from joined order by id").fetchall() == [(n, n, "Ada") for n in range(3)]
