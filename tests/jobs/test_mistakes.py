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
from fkjoin.jobs.job_file import read_job
from tests.support.commands import fkjoin
from tests.support.job_files import GOOD, job, write_rows
from tests.support.sessions import small


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with the tables of the job file."""
    small(spark, tmp_path, buckets=1)
    write_rows(tmp_path)
    return tmp_path


OF_JOB_FILES: dict[str, tuple[tuple[str, str], str]] = {
    "an unknown setting": (("trigger =", "triger ="), "triger: there is no such setting; did you mean 'trigger'?"),
    "a join of an unknown table": (
        ('right = "customers"', 'right = "custmers"'),
        "joins.joined.right: there is no table or join 'custmers'; did you mean 'customers'?",
    ),
    "a sink of an unknown table": (
        ('table = "joined"', 'table = "joind"'),
        "sinks.out.table: there is no table or join 'joind'; did you mean 'joined'?",
    ),
    "one folder for two sinks": (
        ("[kafka]", '[sinks.copy]\ntable = "orders"\npath = "{folder}/out/"\n[kafka]'),
        "sinks.copy.path: this is the folder of sinks.out, too; give each a folder of its own",
    ),
    "a sink in a table's folder": (
        ('path = "{folder}/out"', 'path = "{folder}/orders"'),
        "sinks.out.path: this is the folder of tables.orders, too; give each a folder of its own",
    ),
    "a sink among dead letters": (
        ("[kafka]", '[dead_letters]\npath = "{folder}/out"\n[kafka]'),
        "sinks.out.path: this is the folder of dead_letters, too; give each a folder of its own",
    ),
    "a sink in a folder of dead letters": (
        ("[kafka]", '[dead_letters]\npath = "{folder}"\n[sinks.two]\ntable = "joined"\npath = "{folder}/joined"\n[kafka]'),
        "sinks.two.path: this is the folder of dead_letters, too; give each a folder of its own",
    ),
    "tables made of themselves": (
        ('left = "orders"', 'left = "joined"'),
        "these read each other in a circle: joins.joined",
    ),
    "a topic without brokers": (
        ('[kafka]\nbootstrap_servers = "localhost:1"\n', '[dead_letters]\ntopic = "dead"\n'),
        'dead_letters: topics need a section [kafka] with bootstrap_servers = "host:port"',
    ),
}


@pytest.mark.parametrize("mistake", OF_JOB_FILES)
def test_each_mistake_in_a_job_file_is_found_without_spark(tmp_path: Path, mistake: str) -> None:
    change, says = OF_JOB_FILES[mistake]
    assert change[0] in GOOD
    with pytest.raises(FkJoinError) as found:
        read_job(job(tmp_path, GOOD.replace(*change, 1)))
    assert str(found.value) == f"{tmp_path}/job.toml: {says}"


PLAIN = GOOD.replace("deleted = \"op = 'd'\"\n", "")
OUT = 'table = "joined"\npath = "{folder}/out"'
CHECKED: dict[str, tuple[str, str]] = {
    "a database that is not there": (
        'table = "joined"\npostgres = "host=127.0.0.1 port=1"\ninto = "it"',
        'sinks.out: postgres it: connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused '
        "(tried once). Check its host and port, and start again when it answers",
    ),
    "a source kept in Delta": (
        'table = "orders"\npath = "{folder}/out"\nformat = "delta"',
        "sinks.out: orders: a source's changes come as they are read",
    ),
    "a folder in a file": (
        'table = "joined"\npath = "{folder}/job.toml"',
        "FOLDER/job.toml cannot be written to: FOLDER/job.toml is a file; make",
    ),
    "Spark's own sink in a file": (
        f'{OUT.replace("out", "job.toml")}\nformat = "json"',
        "FOLDER/job.toml cannot be written to: FOLDER/job.toml is a file; make",
    ),
    "a format of lists in csv": (
        f'{OUT}\nformat = "csv"',
        "sinks.out.format: csv cannot have these changes: The CSV datasource doesn't support the column `_left_version` of the "
        'type "ARRAY<BIGINT>"; choose one that can, such as json; or write a program, in which table.changes.drop(…) leaves',
    ),
    "an option of no use": (
        f'{OUT}\nformat = "json"\noptions = {{compression = "nope"}}',
        "sinks.out.options: json cannot be written with compression: The codec nope is not available. Available codecs are ",
    ),
    "a Delta table that cannot be opened": (
        f'{OUT}\nformat = "delta"',
        "Delta table FOLDER/out cannot be made for id string, m map<string,timestamp_ntz>: ",
    ),
}
MAP = "map('a', cast('2020-01-01' as timestamp_ntz)) as m"
"""A column that Delta tables of the package cannot have."""


LETTERS = '[dead_letters]\npath = "{folder}/job.toml"\n[kafka]'
A_FILE = "FOLDER/job.toml cannot be written to: FOLDER/job.toml is a file; make"
PLACES: dict[str, tuple[tuple[str, str], str]] = {
    "a checkpoint in a file": (("{folder}/checkpoint", "{folder}/job.toml"), A_FILE),
    "a log below a file": (("{folder}/job.log", "{folder}/job.toml/log"), A_FILE),
    "a log that is a folder": (("{folder}/job.log", "{folder}"), "log: FOLDER is no file that can be written to; name another"),
    "dead letters in a file": (("[kafka]", LETTERS), A_FILE.replace(" cannot", "/joined cannot", 1)),
    "a folder among those of the system": (
        ('"{folder}/out"', '"/proc/nothing/out"'),
        "/proc/nothing/out cannot be written to: ",
    ),
    "a format that is misspelt": (
        ('"{folder}/out"', '"{folder}/out"\nformat = "jsn"'),
        "sinks.out.format: Spark has no 'jsn'; did you mean 'json'? For a format of another package, name the package in",
    ),
    "an option that is no number": (
        ("[tables.customers]", 'options = {maxFilesPerTrigger = "x"}\n[tables.customers]'),
        "tables.orders.options: maxFilesPerTrigger is 'x': give a whole number from 1 on",
    ),
}
"""Places besides the sinks, which a run finds before it starts, too."""


def test_what_a_check_calls_fine_does_start(folder: Path, fkjoin_here: Callable[..., str]) -> None:
    """Nothing is made by a check, and what it finds is what the start would."""
    for sink, says in CHECKED.values():
        text = PLAIN.replace(OUT, sink)
        if "map<" in says:
            text = text.replace('"left.amount", "right.name"', f'"{MAP}"')
        with pytest.raises(FkJoinError) as found:
            fkjoin_here("run", "--check", job(folder, text))
        assert str(found.value).replace(str(folder), "FOLDER").startswith(says)
    for (old, new), says in PLACES.values():
        text = job(folder, PLAIN.replace(old, new, 1))
        for call in (["run", "--check"], ["run"]):
            with pytest.raises(FkJoinError) as found:
                fkjoin_here(*call, text)
            assert says in str(found.value).replace(str(folder), "FOLDER"), new
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for call in (["run", "--check"], ["run"]):
            with pytest.raises(
                FkJoinError, match=r"^--ui: 127.0.0.1:\d+ cannot be used \(Address already in use.*; choose another port$"
            ):
                fkjoin_here(*call, job(folder, PLAIN), "--ui", str(taken.getsockname()[1]))
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    claim = folder / "checkpoint" / f"{claim_files.CLAIM_FILE}.1"
    claim.parent.mkdir()
    claim.write_text(json.dumps({"host": socket.gethostname(), "process": os.getppid()}))
    for call in (["run", "--check"], ["run"]):
        with pytest.raises(FkJoinError, match=rf"checkpoint is in use by process {os.getppid()} on .*: stop that job first"):
            fkjoin_here(*call, job(folder, PLAIN))
    shutil.rmtree(claim.parent)
    kept = PLAIN.replace(OUT, 'table = "orders"\npath = "{folder}/kept"\nformat = "delta"')
    kept = kept.replace('key = "id"\n', 'key = "id"\nmaterialize = true\n', 1)
    assert "fine; 1 query: sink-out" in fkjoin_here("run", "--check", job(folder, kept))
    assert not (folder / "kept").exists()
    assert not (folder / "checkpoint").exists()
    assert " sink-out: 1 batch, 1 row read\n" in fkjoin_here("run", job(folder, kept))
    plain = PLAIN.replace(OUT, f'{OUT.replace("out", "lines")}\nformat = "json"\noptions = {{compression = "gzip"}}')
    plain = plain.replace("{folder}/checkpoint", "{folder}/of-lines")
    assert "fine; 1 query: sink-out" in fkjoin_here("run", "--check", job(folder, plain))
    assert not (folder / "lines").exists()
    fkjoin_here("run", job(folder, plain))
    assert list((folder / "lines").glob("*.json.gz"))
    assert DeltaTable(folder / "kept").to_pyarrow_table().to_pylist() == [{"id": "o1", "amount": 5, "customer": "c1"}]


def test_a_job_that_fails_says_so_in_four_lines_and_names_the_log(folder: Path, fkjoin_here: Callable[..., str]) -> None:
    text = PLAIN.replace('version = "lsn"\n', 'version = "lsn"\non_error = "fail"\n', 1)
    text = text.replace('extractor = "customer"', 'extractor = "cast(1 / (amount - 5) as string)"')
    with pytest.raises(QueryError) as found:
        fkjoin_here("run", job(folder, text))
    first, where, what, rest = str(found.value).splitlines()
    assert re.match(r"query sink-out failed: extractor of orders, key .*o1.*division by zero", first, re.IGNORECASE)
    assert where == f"where: batch 0 of checkpoint {folder}/checkpoint/sink-out"
    assert what.startswith('what to do: set such rows aside, with on_error="dead-letter"')
    assert rest == f"Spark's log, {folder}/spark.log, has the rest"
    with pytest.raises(FkJoinError) as refused:
        fkjoin_here("run", job(folder, PLAIN.replace('"{folder}/checkpoint"', '"s3a://bucket/ck"')))
    assert str(refused.value).startswith("s3a://bucket/ck cannot be opened: ClassNotFoundException: Class org.")


def test_without_java_a_job_says_so_in_a_line(tmp_path: Path) -> None:
    run = fkjoin("run", job(tmp_path, GOOD), "--spark-log", tmp_path / "spark.log", JAVA_HOME=str(tmp_path))
    assert run.returncode == 1
    assert run.stderr == (
        f"fkjoin: Java: there is none at JAVA_HOME, which is {tmp_path}, so that no session can start: install a JDK 17 or 21 "
        "(Debian: apt-get install openjdk-17-jdk-headless), or point JAVA_HOME to it\n"
    )
