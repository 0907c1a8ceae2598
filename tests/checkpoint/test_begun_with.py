"""The operators, the time zone and the columns of files that a checkpoint was begun with."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from fkjoin import FkJoinError, Table, TopologyError, cogroup, fk_join
from fkjoin.checkpoint import begun_with
from fkjoin.checkpoint.begun import DOCUMENT, Begun
from fkjoin.checkpoint.files import escaped, without_escapes
from fkjoin.events import Enriched
from fkjoin.files.folders import as_glob
from fkjoin.plan.physical import Physical, Union
from fkjoin.sessions.settings import TIME_ZONE
from fkjoin.sinks import Parquet
from fkjoin.spark.schemas import text
from tests.support.queries import write_lines
from tests.support.sessions import small

pytestmark = pytest.mark.usefixtures("small_tables")

BERLIN = "Europe/Berlin"


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Set the session's time zone until the end of the test."""
    before = spark.conf.get(TIME_ZONE)
    yield lambda name: spark.conf.set(TIME_ZONE, name)
    assert before is not None
    spark.conf.set(TIME_ZONE, before)


@pytest.fixture
def visit(tmp_path: Path) -> None:
    """One visit, in a file."""
    write_lines(tmp_path / "visits", "1", [{"id": "v1", "at": "2026-03-01 10:00:00", "n": 1}])


def start(table: Table, folder: Path) -> StreamingQuery:
    return table.to_parquet(folder / "out", checkpoint=folder / "ck", trigger="available-now")


def finish(table: Table, folder: Path) -> None:
    start(table, folder).awaitTermination()


def visits(spark: SparkSession, folder: Path) -> Table:
    schema = "id string, at timestamp, n bigint"
    return Table.from_files(spark, folder / "visits", key="id", version="n", schema=schema, name="visits", format="json")


OTHER_FACTS = [["visits", {"join": 5, "tables": ["orders"]}]]
LOST: dict[str, dict[str, Any]] = {
    "has no section zone": {"zone": None, "operators": None, "sources": None},
    "has no section operators": {"operators": None},
    "has no section sources": {"sources": None},
    "has operators of another shape (": {"operators": OTHER_FACTS},
    "has a zone that Spark does not know, 'Nowhere'": {"zone": "Nowhere"},
}


@pytest.mark.usefixtures("visit")
def test_a_checkpoint_whose_document_lost_something_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "ck", visits(spark, tmp_path).materialize("visits")

    def refused() -> str:
        with pytest.raises(FkJoinError) as error:
            start(table, tmp_path)
        assert re.search("restore (it|this file) from", str(error.value))
        return str(error.value)

    finish(table, tmp_path)
    file = checkpoint / DOCUMENT
    whole = file.read_bytes()
    for problem, changed in LOST.items():
        document = json.loads(whole) | changed
        kept = {name: value for name, value in document.items() if value is not None}
        file.write_bytes(json.dumps(kept).encode())
        assert f"{file} {problem}" in refused()
    file.write_bytes(whole[:-1])
    assert f"{file} is not JSON" in refused()
    file.unlink()
    assert f"{file} is missing (checkpoints of builds before 0.1.0 have none): " in refused()
    file.mkdir()
    assert f"{file} is a folder" in refused()
    file.rmdir()
    file.write_bytes(whole)
    metadata = checkpoint / "metadata"
    lost = metadata.rename(tmp_path / "metadata")
    assert f"{checkpoint} is damaged: its file metadata is lost; " in refused()
    assert file.read_bytes() == whole
    lost.rename(metadata)
    finish(table, tmp_path)


def test_a_batch_that_has_begun_is_bound_to_its_sources(spark: SparkSession, tmp_path: Path) -> None:
    def plan(folder: str) -> Physical:
        (tmp_path / folder / "visits").mkdir(parents=True, exist_ok=True)
        return visits(spark, tmp_path / folder).materialize("visits")._plan.top

    begun, checkpoint = Begun(), tmp_path / "ck"
    for folder in ("wrong", "right"):
        begun_with.require_begun_with(begun, spark, str(checkpoint), plan(folder))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()
    begun_with.require_begun_with(begun, spark, str(checkpoint), plan("right"))
    says = r"has begun a batch that reads .*/right/visits, and the query now reads .*/wrong/visits; start this version"
    with pytest.raises(FkJoinError, match=says):
        begun_with.require_begun_with(begun, spark, str(checkpoint), plan("wrong"))


def test_a_source_is_known_by_its_path_however_spark_is_told_of_it() -> None:
    for path in ("/in/visits", "/in/visits/", "s3a://lake/[visits]*/b", "/in/2026"):
        for pattern in (as_glob(path), escaped(path)):
            assert without_escapes(pattern) == without_escapes(path)


@pytest.mark.usefixtures("visit")
def test_a_table_that_is_read_once_is_not_read_twice_later(spark: SparkSession, tmp_path: Path) -> None:
    def plan(*tables: Table) -> Physical:
        return fk_join(*tables, "at", name="joined")._plan.top

    def days() -> Table:
        return visits(spark, tmp_path).select("id", "id as at")

    begun, once = Begun(), days()
    begun_with.require_begun_with(begun, spark, str(tmp_path), plan(once, once))
    with pytest.raises(FkJoinError, match="it read 1 sources and snapshots and now reads 2, perhaps since a snapshot"):
        begun_with.require_begun_with(begun, spark, str(tmp_path), plan(days(), days()), written=lambda: "a sink")
    again = days()
    begun_with.require_begun_with(begun, spark, str(tmp_path), plan(again, again), written=lambda: "a sink")


KILLED = """
import os, signal, sys

import fkjoin
from fkjoin.checkpoint.begun import Begun

folder = sys.argv[1]
write = Begun.write


def killed(*begun):
    write(*begun)
    os.kill(os.getpid(), signal.SIGKILL)


Begun.write = killed
spark = fkjoin.session("killed", master="local[1]")
visits = fkjoin.Table.from_files(
    spark, f"{folder}/visits", key="id", version="n", schema="id string, at timestamp, n bigint", name="visits"
)
visits.materialize("visits").to_parquet(f"{folder}/out", checkpoint=f"{folder}/ck", trigger="available-now")
"""
"""A program that is killed after it has written the document."""


@pytest.mark.nightly
@pytest.mark.usefixtures("visit")
def test_a_process_that_is_killed_after_the_write_of_the_document_starts_again(spark: SparkSession, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "ck" / DOCUMENT).exists()
    finish(visits(spark, tmp_path).materialize("visits"), tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1
    assert len(Begun.of(spark, str(tmp_path / "ck")).operators or ()) == 1


@pytest.mark.usefixtures("visit")
def test_a_run_that_was_killed_early_starts_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its document counts for nothing, be it of another zone, of other operators, or broken."""
    table, document = visits(spark, tmp_path).materialize("visits"), tmp_path / "ck" / DOCUMENT
    of_another = Begun(zone=BERLIN, operators=[("joined", {})], sources=["text /in"], sinks=["parquet /out"]).data()
    for left in (of_another, b'{"vers'):

        def killed(*_: Any, left: bytes = left) -> None:
            document.parent.mkdir(exist_ok=True)
            document.write_bytes(left)
            raise KeyboardInterrupt

        with monkeypatch.context() as killing:
            killing.setattr(Begun, "write", killed)
            with pytest.raises(KeyboardInterrupt):
                start(table, tmp_path)
        assert document.read_bytes() == left
    finish(table, tmp_path)
    written = Begun.of(spark, str(tmp_path / "ck"))
    assert (written.zone, len(written.operators or ()), written.sinks) == (spark.conf.get(TIME_ZONE), 1, None)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1


def dear_and_customers(
    spark: SparkSession, folder: Path, *, amount: str = "bigint", version: str = "n", dear: str = "amount > 1"
) -> tuple[Table, Table]:
    """A view of orders, and customers."""
    of_orders, of_customers = f"customer string, amount {amount}, m bigint", "name string"
    orders, customers = (
        Table.from_files(spark, folder, schema=f"id string, n long, {columns}", name=name, key="id", version=by, format="json")
        for name, columns, by in (("orders", of_orders, version), ("customers", of_customers, "n"))
    )
    return orders.filter(dear, name="dear"), customers


def is_known(name: Column) -> Column:
    return name != "x"


OF = "customer"
OPERATORS: dict[str, Callable[[Table, Table], Table | Enriched]] = {
    "join": lambda o, c: fk_join(o, c, OF, name="joined"),
    "right table": lambda o, c: fk_join(c, o, "name", name="joined"),
    "several right tables": lambda o, c: fk_join(fk_join(o, c, OF, joiner=["left.*"], name="a"), c, OF, name="x"),
    "aggregate of a join": lambda o, c: fk_join(o, c, OF, name="a").group_by("right.name", name="x").sum("left.amount"),
    "cogroup": lambda o, c: cogroup(o.group_by("id", name="a").sum("amount"), c.group_by("id", name="b").count(), name="x"),
    "view": lambda o, _: o.filter("amount > 0", name="x"),
    "rekey": lambda o, _: o.rekey("customer", name="x"),
    "merge": lambda o, _: o.merge(o.filter("true", name="others"), name="x"),
    "children": lambda o, c: c.with_children(o, "customer", name="x"),
    "join by key": lambda o, c: o.join(c, name="x"),
    "two views of one name": lambda o, c: fk_join(c.filter("true", name="dear"), o, "name", name="joined"),
    "function of columns": lambda o, c: fk_join(o.filter(F.exists(F.array(OF), is_known), name="x"), c, OF, name="joined"),
    "enrich": lambda o, c: o.enrich(c.changes.select("name"), on="name", name="x"),
}
CHANGED = {
    "amount": ("double", r'was \["amount:? int64"\] and is now \["amount:? double"\]'),
    "version": ("m", r'version of orders was \["n"\] and is now \["m"\]'),
    "dear": ("amount > 2", r'steps( of [\w#]+)? was \[\["filter", "amount > 1"\]\] and is now \[\["filter", "amount > 2"\]\]'),
}
"""By what of the tables changes, what it becomes, and what the refusal says."""


@pytest.mark.usefixtures("visit")
def test_what_a_sink_reads_without_a_store_is_bound_too(spark: SparkSession, tmp_path: Path) -> None:
    finish(visits(spark, tmp_path), tmp_path)
    schema = "id string, at timestamp, n bigint"
    other = Table.from_files(spark, tmp_path / "visits", key="id", version="unix_micros(at)", schema=schema, name="visits")
    says = r'made by another job: version of visits was \["n"\] and is now \["unix_micros\(at\)"\]; start this version'
    for use in (lambda: start(other, tmp_path), lambda: other.restore(Parquet(tmp_path / "out"), checkpoint=tmp_path / "ck")):
        with pytest.raises(FkJoinError, match=says):
            use()


def test_a_column_that_no_store_keeps_may_come(spark: SparkSession, tmp_path: Path) -> None:
    def made(more: str) -> Physical:
        schema = f"id string, n long, customer string, note string{more}"
        orders = Table.from_files(spark, tmp_path, schema=schema, name="orders", key="id", version="n", format="json")
        less = orders.drop("note", name="less").with_columns({"big": "upper(customer)"}, name="big")
        _, customers = dear_and_customers(spark, tmp_path)
        return fk_join(less, customers, OF, joiner=["left.big", "right.name"], name="joined")._plan.top

    first, place = Begun(), str(tmp_path / "ck")
    begun_with.require_begun_with(first, spark, place, made(""))
    begun_with.require_begun_with(
        Begun.parsed(first.data(), "it"), spark, place, made(", later string"), written=lambda: "a sink"
    )


def test_variables_of_functions_are_numbered_and_columns_stay(spark: SparkSession) -> None:
    def written(one: str, other: str) -> str:
        function = F.exists("parts", lambda part: part > F.col(other))
        return text(function & (F.aggregate("parts", F.lit(0), lambda so_far, part: so_far + part) > F.col(one)))

    first, second = "x_900001", "x_900002"
    assert written(first, second) == written(first, second) != written(second, first)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_store_is_bound_to_the_tables_whose_rows_it_keeps(spark: SparkSession, tmp_path: Path, operator: str) -> None:
    """Their columns, and what they are made of as far as they have no store of their own."""
    make, place, first = OPERATORS[operator], str(tmp_path / "ck"), Begun()
    begun_with.require_begun_with(first, spark, place, make(*dear_and_customers(spark, tmp_path))._plan.top)
    again = make(*dear_and_customers(spark, tmp_path))._plan.top
    begun_with.require_begun_with(Begun.parsed(first.data(), "it"), spark, place, again, written=lambda: "a sink")
    for what, (value, says) in CHANGED.items():
        top = make(*dear_and_customers(spark, tmp_path, **{what: value}))._plan.top
        with pytest.raises(FkJoinError, match=rf"made by another job: of store [\w-]+, .*{says}.*, and a sink already"):
            begun_with.require_begun_with(Begun.parsed(first.data(), "it"), spark, place, top, written=lambda: "a sink")


def test_tables_that_change_places_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def joined(left: str, right: str, first: str, second: str) -> Physical:
        tables = {}
        for name in ("a", "b"):
            schema = "id string, n bigint"
            tables[name] = Table.from_files(spark, tmp_path, schema=schema, name=name, key="id", version="n", format="json")
        tables["v"] = tables[first].filter("id <> ''", name="v")
        tables["w"] = tables[second].filter("id <> ''", name="w")
        return fk_join(tables[left], tables[right], "id", name="joined")._plan.top

    begun, place = Begun(), str(tmp_path / "ck")
    begun_with.require_begun_with(begun, spark, place, joined("v", "w", "a", "b"))
    changed = {r'of was \["v", "w"\] and is now \["w", "v"\]': ("w", "v", "a", "b"), "of of v was": ("v", "w", "b", "a")}
    for says, sides in changed.items():
        with pytest.raises(FkJoinError, match=says):
            begun_with.require_begun_with(
                Begun.parsed(begun.data(), "it"), spark, place, joined(*sides), written=lambda: "a sink"
            )


def test_without_operators_the_time_zone_is_compared(spark: SparkSession, tmp_path: Path, zone: Callable[[str], None]) -> None:
    plan: Physical = Union(())
    place, first = str(tmp_path), Begun()
    zone(BERLIN)
    begun_with.require_begun_with(first, spark, place, plan)
    assert (first.zone, first.operators) == (BERLIN, [])
    begun_with.require_begun_with(first, spark, place, plan, written=lambda: "a sink")
    zone("UTC")
    with pytest.raises(FkJoinError, match="another instant, and a sink already contains a batch of that job; set") as refused:
        begun_with.require_begun_with(first, spark, place, plan, written=lambda: "a sink")
    way_out = re.search(r"; set (\S+) to (\S+), or start with a new checkpoint and an empty target$", str(refused.value))
    assert way_out is not None
    assert way_out.groups() == (TIME_ZONE, BERLIN)
    begun_with.require_begun_with(first, spark, place, plan)
    assert first.zone == "UTC"
    for name in ("Etc/UTC", "+00:00", "Z"):
        zone(name)
        begun_with.require_begun_with(replace(first), spark, place, plan, written=lambda: "a sink")
    zone("Europe/London")  # the same as UTC in winter
    with pytest.raises(FkJoinError, match="in the time zone UTC, and this session has Europe/London"):
        begun_with.require_begun_with(replace(first), spark, place, plan, written=lambda: "a sink")


Put = Callable[[str, str, dict[str, Any]], None]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Add a file of one line to a table's folder."""
    return lambda table, name, row: write_lines(tmp_path / table, name, [row])


def order(name: str, **more: Any) -> dict[str, Any]:
    return {"number": name, "customer": 1, "amount": 5, "open": True, "at": {"city": "Ulm"}, "lsn": 1, **more}


def tables(spark: SparkSession, folder: Path, **schemas: Any) -> tuple[Table, Table]:
    orders, customers = (
        Table.from_files(spark, folder / name, key=key, version="lsn", schema=schemas.get(name))
        for name, key in (("orders", "number"), ("customers", "id"))
    )
    return orders, customers


MISTYPED: dict[str, Callable[[Table, Table], Any]] = {
    "extractor: customer of left table orders is string": lambda o, c: fk_join(o, c, "customer"),
    "condition: open is string, a boolean is needed": lambda o, c: o.filter("open"),
    "sum: amount is string, a number is needed": lambda o, c: o.group_by("customer").sum("amount"),
    "columns: 'at.city' cannot be evaluated over table orders": lambda o, c: o.map_values("at.city"),
    "key: 'at.city' cannot be evaluated over table orders": lambda o, c: o.group_by("at.city").count(),
    "rows: 'array(at.city)' cannot be evaluated": lambda o, c: o.flat_map("array(at.city)", key="col"),
    "tables[1]: c is grouped by customer bigint, and ": lambda o, c: cogroup(
        o.group_by("customer").count(), c.group_by("id as customer", name="c").count("name")
    ),
}


def test_what_a_learned_type_is_refused_for_names_the_files(spark: SparkSession, tmp_path: Path, put: Put) -> None:
    put("orders", "1", order("o1"))
    put("orders", "2", order("o2", customer="x", amount="x", open="x", at="x"))
    put("customers", "1", {"id": 1, "name": "Ada", "lsn": 1})
    learned = tables(spark, tmp_path)
    known = learned[0]._planned.bound.learned
    given = tables(spark, tmp_path, orders=known, customers="id bigint, lsn bigint, name string")
    for message, build in MISTYPED.items():
        with pytest.raises(TopologyError) as raised:
            build(*learned)
        said = str(raised.value)
        assert said.startswith(message)
        assert f"orders from {tmp_path}/orders" in said
        assert said.endswith('give schema= as "fkjoin state columns CHECKPOINT" prints it')
        with pytest.raises(TopologyError) as plain:
            build(*given)
        assert "learned" not in str(plain.value)


MISFITS: Any = [{"customer": "abc"}, {"customer": 5.5}, {"lsn": "x"}, {"open": "x"}, {"at": 7}]


def test_columns_that_the_command_prints_lead_on(spark: SparkSession, tmp_path: Path, put: Put, state_command: Any) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    small(spark, tmp_path, validate=True)

    def go_on(**schemas: Any) -> None:
        orders, customers = tables(spark, tmp_path, **schemas)
        joined = fk_join(orders.filter("open"), customers, "customer", joiner=["left.at.city", "right.name"], name="joined")
        joined.to_parquet(out, checkpoint=checkpoint, trigger="available-now").awaitTermination()

    put("customers", "1", {"id": 1, "name": "Ada", "lsn": 1})
    put("orders", "1", order("o1", **{"a `name`": {"of a": 1}}))
    go_on()
    for number, changed in enumerate(MISFITS, 2):
        put("orders", f"{number}", order(f"bad{number}", **changed))
    put("orders", "9", order("o2"))
    put("customers", "2", {"id": "abc", "name": "Bob", "lsn": 2})
    with pytest.raises(TopologyError, match="give schema= as"):
        go_on()
    status, lines = state_command("columns", str(checkpoint))
    printed = dict(line.split(": ", 1) for line in lines)
    assert (status, sorted(printed)) == (0, ["customers", "orders"])
    with pytest.raises(TopologyError, match="customers from .* were learned"):
        go_on(orders=printed["orders"])
    go_on(**printed)
    assert sorted(row.number for row in spark.read.parquet(str(out)).collect()) == ["o1", "o2"]
    assert state_command("columns", str(tmp_path))[1] == [f"{tmp_path} keeps no columns of files"]
