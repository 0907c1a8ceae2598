"""Columns that a job file names: a message about a misspelt one names its setting, and the nearest column."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from tests.support.job_files import job
from tests.support.sessions import small

pytestmark = pytest.mark.spark

SHOP = """
name = "shop"
checkpoint = "{folder}/ck"
[tables.orders]
path = "{folder}/orders"
format = "json"
schema = "id string, customer STRING COMMENT 'a, b', at timestamp, lines array<struct<sku: string, n: int>>, lsn: bigint"
key = "id"
version = ["lsn"]
timestamp = "timestamp(at)"
[tables.customers]
path = "{folder}/customers"
format = "json"
schema = "cid string, name string, score decimal(10, 2), lsn bigint"
key = "cid"
version = "lsn"
[joins.joined]
left = "orders"
right = "customers"
extractor = "Customer"
joiner = ["left.lines", "right.name as who", "current_date as today"]
[joins.whole]
left = "orders"
right = "customers"
extractor = ["customer"]
[joins.again]
left = "whole"
right = "customers"
extractor = "left.customer"
[children.families]
left = "orders"
right = "customers"
extractor = "customer"
column = "orders"
[views.large]
of = "joined"
filter = "upper(who) > 'A'"
columns = ["who", "size(lines) as size"]
[aggregates.sums]
of = "large"
group_by = ["who as name"]
columns = {n = "count()", most = "max_by(size, who, 3)", all = "string_agg(who, ', ') within group (order by size desc)"}
[aggregates.windows]
of = "orders"
window = {time = "at", size = "1 hour"}
emit = "on-close"
columns = {n = "count(*)"}
[flat_maps.lines]
of = "orders"
rows = "lines"
key = ["id", "sku"]
[flat_maps.by_name]
of = "sums"
key = "name"
[merges.both]
of = ["customers", "others"]
[tables.others]
path = "{folder}/others"
format = "json"
schema = "cid string, name string, score decimal(10, 2), lsn bigint"
key = "cid"
version = "lsn"
[views.named]
of = "both"
columns = "score"
[sinks.out]
table = "again"
path = "{folder}/out"
"""

TYPOS: dict[str, tuple[str, str, str, str]] = {
    "key": ('key = "id"', 'key = "idd"', "tables.orders.key", "'id'"),
    "version": ('["lsn"]', '["lsm"]', "tables.orders.version", "'lsn'"),
    "foreign key": ('"Customer"', '"Custmer"', "joins.joined.extractor", "'customer'"),
    "joiner": ('"right.name as who"', '"right.nme as who"', "joins.joined.joiner", "right.nme"),
    "column of a joined row": ('"left.customer"', '"left.custmer"', "joins.again.extractor", "left.custmer"),
    "children": (
        'extractor = "customer"\ncolumn',
        'extractor = "customers"\ncolumn',
        "children.families.extractor",
        "'customer'",
    ),
    "view": ('["who",', '["whom",', "views.large.columns", "'who'"),
    "group": ('"who as name"', '"whom as name"', "aggregates.sums.group_by", "'who'"),
    "aggregate": ("max_by(size,", "max_by(siz,", "aggregates.sums.columns", "'size'"),
    "order": ("order by size", "order by siz", "aggregates.sums.columns", "'size'"),
    "no aggregate": ('"count()"', '"cnt()"', "aggregates.sums.columns.n", "'cnt()' is none of count(), "),
    "window": ('time = "at"', 'time = "att"', "aggregates.windows.window", "'at'"),
    "items": ('rows = "lines"', 'rows = "line"', "flat_maps.lines.rows", "'lines'"),
    "other key": ('key = "name"', 'key = "nam"', "flat_maps.by_name.key", "'name'"),
    "merge": ('columns = "score"', 'columns = "scor"', "views.named.columns", "'score'"),
}
"""What stands in the file, what in its place, the setting that the message begins with, and what it names."""


def built(spark: SparkSession, folder: Path, text: str) -> Job:
    for name in ("orders", "customers", "others"):
        (folder / name).mkdir(exist_ok=True)
    return Job(read_job(job(folder, text)), spark)


def test_a_misspelt_column_is_found_where_it_is_named(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path)
    built(spark, tmp_path, SHOP)
    others = []
    for before, after, setting, names in TYPOS.values():
        assert before in SHOP
        with pytest.raises(JobError) as refused:
            built(spark, tmp_path, SHOP.replace(before, after, 1))
        message = str(refused.value)
        beginning = message.removeprefix(f"{tmp_path}/job.toml: ")
        if not beginning.startswith(f"{setting}: ") or names not in message:
            others.append(message)
    assert others == []
