"""Mistakes in job files: each has a message, and what a check calls fine does start."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fkjoin import FkJoinError, QueryError
from fkjoin.checkpoint import claim_files
from tests.support.job_files import PLAIN, job, write_rows
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
    (
        'table = "orders"\npath = "{folder}/out"\nformat = "delta"',
        "sinks.out: orders: a batch of a source may contain several changes",
    ),
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
    (
        f'{OUT}\nformat = "delta"',
        "Delta table FOLDER/out cannot be made for id string, m map<string,timestamp_ntz>: ",
    ),
]
MAP = "map('a', cast('2020-01-01' as timestamp_ntz)) as m"
"""A column that Delta tables of the package cannot have."""


LETTERS = '[dead_letters]\npath = "{folder}/job.toml"\n[kafka]'
PLACES = [
    (("{folder}/checkpoint", "{folder}/job.toml"), A_FILE),
    (("{folder}/job.log", "{folder}"), "log: FOLDER cannot be written to; name another file"),
    (("[kafka]", LETTERS), A_FILE.replace(" cannot", "/joined cannot", 1)),
]
"""Places besides the sinks, which a run looks at as a check does."""
STARTS = [
    (('"{folder}/out"', '"/proc/nothing/out"'), "/proc/nothing/out cannot be written to: "),
    (
        ('"{folder}/out"', '"{folder}/out"\nformat = "jsn"'),
        "sinks.out.format: Spark has no 'jsn'; did you mean 'json'? For a format of another package, name the package in",
    ),
]
"""Mistakes that a run finds before it starts, too."""
CHECK, RUN = ("run", "--check"), ("run",)


def test_what_a_check_calls_fine_does_start(folder: Path, fkjoin_here: Callable[..., str]) -> None:
    """Nothing is made by a check, and what it finds is what the start would."""
    for sink, says in CHECKED:
        text = TEXT.replace(OUT, sink)
        if "map<" in says:
            text = text.replace('"left.amount", "right.name"', f'"{MAP}"')
        with pytest.raises(FkJoinError) as found:
            fkjoin_here("run", "--check", job(folder, text))
        assert str(found.value).replace(str(folder), "FOLDER").startswith(says)
    calls = [(CHECK, mistake) for mistake in (*PLACES, *STARTS)]
    for call, ((old, new), says) in (*calls, (RUN, STARTS[1])):
        with pytest.raises(FkJoinError) as found:
            fkjoin_here(*call, job(folder, TEXT.replace(old, new, 1)))
        assert says in str(found.value).replace(str(folder), "FOLDER"), new
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
    kept += f'[sinks.lines]\n{OUT.replace("/out", "/lines")}\nformat = "json"\noptions = {{compression = "gzip"}}\n'
    assert "fine; 2 queries: sink-out, sink-lines" in fkjoin_here(*CHECK, job(folder, kept))
    assert [name for name in ("kept", "lines", "checkpoint") if (folder / name).exists()] == []
    assert " sink-out: 1 batch, 1 row read\n" in fkjoin_here(*RUN, job(folder, kept))
    assert list((folder / "lines").glob("*.json.gz"))
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
