"""Mistakes in job files, and files that have changed since their checkpoint was begun.

Each is refused by name, and what a check calls fine does start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, QueryError
from fkjoin.checkpoint import claim_files
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.runner import _require_places
from tests.support.job_files import PLAIN, job, write_rows
from tests.support.queries import write_lines
from tests.support.sessions import small


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with the tables of the job file."""
    small(spark, tmp_path, buckets=1)
    write_rows(tmp_path)
    return tmp_path


SCHEMAS = {
    "orders": "id string, customer string, amount bigint, lsn bigint",
    "customers": "customer string, name string, lsn bigint",
}
TEXT = PLAIN
for name, schema in SCHEMAS.items():
    TEXT = TEXT.replace(f'/{name}"\n', f'/{name}"\nformat = "json"\nschema = "{schema}"\n')
OUT = 'table = "joined"\npath = "{folder}/out"'
A_FILE = "FOLDER/job.toml cannot be written to: FOLDER/job.toml is a file; make"
CHECKED = [
    (f'{OUT.replace("out", "job.toml")}\nformat = "json"', A_FILE),
    (
        f'{OUT}\nformat = "csv"',
        "sinks.out.format: csv cannot contain these changes: The CSV datasource doesn't support the column `_left_version` of "
        'the type "ARRAY<BIGINT>"; choose one that can, such as json; or write a program, in which table.changes.drop(…) ',
    ),
    (
        f'{OUT}\nformat = "json"\noptions = {{compression = "nope"}}',
        "sinks.out.options: json cannot be written with compression: The codec nope is not available. Available codecs are ",
    ),
]


LETTERS = '[dead_letters]\npath = "{folder}/job.toml"\n[kafka]'
PLACES = [
    (("{folder}/checkpoint", "{folder}/job.toml"), A_FILE),
    (("{folder}/job.log", "{folder}/job.toml/log"), A_FILE),
    (("{folder}/job.log", "{folder}"), "log: FOLDER cannot be written to; name another file"),
    (("[kafka]", LETTERS), A_FILE.replace(" cannot", "/joined cannot", 1)),
]
"""Places besides the sinks, which a run looks at as a check does."""
CHECK, RUN = ("run", "--check"), ("run",)
STARTS = [
    (CHECK, PLACES[-1]),
    (CHECK, (('"{folder}/out"', '"/proc/nothing/out"'), "/proc/nothing/out cannot be written to: ")),
    (
        RUN,
        (
            ('"{folder}/out"', '"{folder}/out"\nformat = "jsn"'),
            "sinks.out.format: Spark has no 'jsn'; did you mean 'json'? For a format of another package, name the package in",
        ),
    ),
]
"""Mistakes that a check finds as a run does, by the command that is to find them."""


def test_what_a_check_calls_fine_does_start(spark: SparkSession, folder: Path, fkjoin_here: Callable[..., str]) -> None:
    """Nothing is made by a check, and what it finds is what the start would."""

    def require_refused(call: Callable[[Path], object], text: str, says: str) -> None:
        with pytest.raises(FkJoinError) as refused:
            call(job(folder, text))
        assert says in str(refused.value).replace(str(folder), "FOLDER")

    for sink, says in CHECKED:
        require_refused(lambda file: Job(read_job(file), spark).check(), TEXT.replace(OUT, sink), says)
    for change, says in PLACES:
        require_refused(lambda file: _require_places(spark, read_job(file)), TEXT.replace(*change, 1), says)
    for command, (change, says) in STARTS:
        require_refused(partial(fkjoin_here, *command), TEXT.replace(*change, 1), says)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        says = r"^--ui: 127.0.0.1:\d+ cannot be used \(Address already .*; choose another port$"
        with pytest.raises(FkJoinError, match=says):
            fkjoin_here(*CHECK, job(folder, TEXT), "--ui", str(taken.getsockname()[1]))
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    claim = folder / "checkpoint" / f"{claim_files.CLAIM_FILE}.1"
    claim.parent.mkdir()
    claim.write_text(json.dumps({"host": socket.gethostname(), "process": os.getppid()}))
    for call in (CHECK, RUN):
        with pytest.raises(FkJoinError, match=rf"checkpoint is in use by process {os.getppid()} on .*: stop that job first"):
            fkjoin_here(*call, job(folder, TEXT))
    shutil.rmtree(claim.parent)
    kept = TEXT.replace(OUT, 'table = "orders"\npath = "{folder}/kept"\nformat = "delta"')
    kept = kept.replace('key = "id"\n', 'key = "id"\nmaterialize = true\n', 1)
    kept = kept.replace("[spark]\n", '[spark]\n"spark.fkjoin.buckets" = 1\n')
    kept += f'[sinks.lines]\n{OUT.replace("/out", "/lines")}\nformat = "json"\noptions = {{compression = "gzip"}}\n'
    assert "fine; 2 queries: sink-out, sink-lines" in fkjoin_here(*CHECK, job(folder, kept))
    assert [name for name in ("kept", "lines", "checkpoint") if (folder / name).exists()] == []
    assert " sink-out: 1 batch, 1 row read\n" in fkjoin_here(*RUN, job(folder, kept))
    assert list((folder / "lines").glob("*.json.gz"))
    assert "fine; 2 queries: sink-out, sink-lines" in fkjoin_here(*CHECK, job(folder, kept)), "once it has begun"
    assert DeltaTable(folder / "kept").to_pyarrow_table().to_pylist() == [{"id": "o1", "amount": 5, "customer": "c1"}]


def test_a_job_that_fails_says_so_in_four_lines_and_names_the_log(folder: Path, fkjoin_here: Callable[..., str]) -> None:
    text = TEXT.replace('version = "lsn"\n', 'version = "lsn"\non_error = "fail"\n', 1)
    text = text.replace('extractor = "customer"', 'extractor = "cast(1 / (amount - 5) as string)"')
    with pytest.raises(QueryError) as found:
        fkjoin_here("run", job(folder, text))
    first, where, what, rest = str(found.value).splitlines()
    assert re.match(r"query sink-out failed: extractor of orders, key .*o1.*division by zero", first, re.IGNORECASE)
    assert where == f"where: batch 0 of checkpoint {folder}/checkpoint/sink-out"
    assert what.startswith('what to do: set such rows aside, with on_error="dead-letter"')
    assert rest == f"Spark's log, {folder}/spark.log, has the rest"
    with pytest.raises(FkJoinError) as refused:
        fkjoin_here("run", job(folder, TEXT.replace('"{folder}/checkpoint"', '"s3a://bucket/ck"')))
    assert str(refused.value).startswith("s3a://bucket/ck cannot be opened: ClassNotFoundException: Class org.")


def refusal(fkjoin_here: Callable[..., str], file: Path) -> str:
    try:
        return fkjoin_here("run", file, "--check")
    except FkJoinError as error:
        return str(error)


def changed(folder: Path, *changes: tuple[str, ...], more: str = "") -> Path:
    text = TEXT + more
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return job(folder, text)


LATER = """
[dead_letters]
path = "{folder}/dead"
[sinks.later]
table = "joined"
path = "{folder}/later"
"""


def test_each_change_goes_on_or_is_refused_by_name(tmp_path: Path, fkjoin_here: Callable[..., str]) -> None:
    write_lines(tmp_path / "orders", "1", [{"id": "o1", "customer": "c", "amount": 5, "lsn": 1}])
    (tmp_path / "orders" / "bad.json").write_text("{\n")
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    (line,) = fkjoin_here("run", changed(tmp_path, ('log = "{folder}/job.log"', 'log = "-"'))).splitlines()
    assert json.loads(line)["query"] == "sink-out", "lines of JSON have standard output for themselves"
    says = r'key of orders was \["id"\] and is now \["customer"\]'
    assert re.search(says, refusal(fkjoin_here, changed(tmp_path, ('key = "id"', 'key = "customer"'))))
    document = tmp_path / "checkpoint" / "fkjoin.json"
    whole = document.read_bytes()
    with pytest.raises(FkJoinError, match="of store joined-resolve, materialized was"):
        fkjoin_here("run", changed(tmp_path, ("[joins.joined]", "[joins.joined]\nmaterialize = true")))
    assert document.read_bytes() == whole, "a run that is refused changes nothing"
    lost = document.rename(tmp_path / "lost.json")
    assert f"{document} is missing" in refusal(fkjoin_here, changed(tmp_path))
    shutil.copy(tmp_path / "checkpoint" / "sink-out" / "fkjoin.json", document)
    assert f"{document} has no section job" in refusal(fkjoin_here, changed(tmp_path))
    facts = json.loads(lost.read_text())
    rules = facts["job"]["rules"]
    assert "sinks-share-a-query" not in rules, "it moves no state, so that later sinks may share a query"
    rules.remove("joins-share-stages")  # as an older release has begun it
    rules.remove("stages-share-an-operator")  # with two buckets it is not missed
    document.write_text(json.dumps(facts))
    write_lines(tmp_path / "orders", "2", [{"id": "o2", "customer": "c", "amount": 6, "lsn": 2}])
    printed = fkjoin_here("run", changed(tmp_path, ('name = "orders"', 'name = "store"'), more=LATER))
    assert f"{tmp_path}/checkpoint was begun without joins-share-stages: so it continues" in printed
    assert json.loads(document.read_text())["job"]["rules"] == rules

    def written(name: str) -> list[str]:
        found = (tmp_path / name).glob("batch=*/*.parquet")
        return sorted(row["id"] for path in found for row in pq.read_table(path).to_pylist())

    assert written("out") == written("later") == ["o1", "o2"], "the sink that came later has all rows"
    files = (tmp_path / "dead" / "joined").glob("*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(letters) == 1, "also those from before there was such a section"
    document = tmp_path / "checkpoint" / "sink-later" / "fkjoin.json"
    whole = document.read_bytes()
    document.write_bytes(whole[:-9])
    write_lines(tmp_path / "orders", "3", [{"id": "o3", "customer": "c", "amount": 7, "lsn": 3}])
    with pytest.raises(FkJoinError, match="sink-later/fkjoin.json is not JSON"):
        fkjoin_here("run", changed(tmp_path, more=LATER))
    assert written("out") == ["o1", "o2"], "the job is refused before its first query"
