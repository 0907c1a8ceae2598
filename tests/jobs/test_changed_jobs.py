"""Job files that have changed since their checkpoint was begun: some go on with it, and the others are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fkjoin.errors import FkJoinError
from tests.support.job_files import PLAIN, job
from tests.support.queries import write_lines

COLUMNS = {
    'key = "id"\n': "id bigint, customer string, amount bigint, lsn bigint",
    'key = "customer"\n': "customer string, name string, lsn bigint",
}
JOB = PLAIN
for key, columns in COLUMNS.items():
    JOB = JOB.replace(key, f'{key}schema = "{columns}"\n')

REFUSED: dict[str, tuple[str, str, str]] = {
    "a join's name": ("joined", "all", "was made by another job: "),
    "the key": ('key = "id"', 'key = "customer"', r'table orders: key = \["id"\], the job now has \["customer"\]'),
    "a column's type": (
        "amount bigint",
        "amount double",
        "of store joined-rekey, column amount of orders was bigint and is now double; start",
    ),
    "rows in state": ("[joins.joined]", "[joins.joined]\nmaterialize = true", "of store joined-resolve, materialized was"),
}
"""By what changes: a text of the job file, what it becomes, and what the refusal says.

Facts that bind a job's checkpoint: the manifests in tests/golden/plans.
"""


def refusal(fkjoin_here: Callable[..., str], file: Path) -> str:
    try:
        return fkjoin_here("run", file, "--check")
    except FkJoinError as error:
        return str(error)


def changed(folder: Path, *changes: tuple[str, ...], more: str = "") -> Path:
    text = JOB + more
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
    write_lines(tmp_path / "orders", "1", [{"id": 1, "customer": "c", "amount": 5, "lsn": 1}])
    (tmp_path / "orders" / "bad.json").write_text("{\n")
    write_lines(tmp_path / "customers", "1", [{"customer": "c", "name": "Ada", "lsn": 1}])
    fkjoin_here("run", changed(tmp_path))
    said = {what: refusal(fkjoin_here, changed(tmp_path, change[:2])) for what, change in REFUSED.items()}
    assert {what: said[what] for what, (*_, says) in REFUSED.items() if not re.search(says, said[what])} == {}
    document = tmp_path / "checkpoint" / "fkjoin.json"
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
    write_lines(tmp_path / "orders", "2", [{"id": 2, "customer": "c", "amount": 6, "lsn": 2}])
    printed = fkjoin_here("run", changed(tmp_path, ('name = "orders"', 'name = "store"'), more=LATER))
    assert f"{tmp_path}/checkpoint was begun without joins-share-stages: so it continues" in printed
    assert json.loads(document.read_text())["job"]["rules"] == rules

    def written(name: str) -> list[int]:
        found = (tmp_path / name).glob("batch=*/*.parquet")
        return sorted(row["id"] for path in found for row in pq.read_table(path).to_pylist())

    assert written("out") == written("later") == [1, 2], "the sink that came later has all rows"
    files = (tmp_path / "dead" / "joined").glob("*.json")
    letters = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(letters) == 1, "also those from before there was such a section"
    document = tmp_path / "checkpoint" / "sink-later" / "fkjoin.json"
    whole = document.read_bytes()
    document.write_bytes(whole[:-9])
    write_lines(tmp_path / "orders", "3", [{"id": 3, "customer": "c", "amount": 7, "lsn": 3}])
    with pytest.raises(FkJoinError, match="sink-later/fkjoin.json is not JSON"):
        fkjoin_here("run", changed(tmp_path, more=LATER))
    assert written("out") == [1, 2], "the job is refused before its first query"
    document.write_bytes(whole)
    to_stdout = ('log = "{folder}/job.log"', 'log = "-"')
    skipping = ("[tables.customers]", 'on_error = "skip"\n[tables.customers]')
    (line,) = fkjoin_here("run", changed(tmp_path, to_stdout, skipping)).splitlines()
    assert json.loads(line)["query"] == "sink-out", "lines of JSON have standard output for themselves"
