"""Rows that a PostgreSQL table cannot have: each is named or set aside, and all others are written, exactly once."""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table
from fkjoin.errors import FkJoinError
from fkjoin.metrics import Metrics
from fkjoin.sinks.counts import last_events
from fkjoin.spark.dead_letters import OnError
from integration.machine import until
from integration.postgres import IDS, NUMBERS, batch, execute, gone, it_waits, select, sink
from tests.support.batch_ids import batch_id
from tests.support.queries import write_lines
from tests.support.sessions import small

NAMES = IDS.append(pa.field("name", pa.string()))


setting_aside = partial(sink, schema=NAMES, on_error="dead-letter")


def names(**rows: str | None) -> pa.Table:
    return pa.table({"id": pa.array(list(rows)), "name": pa.array(list(rows.values()), pa.string())})


def letters(dsn: str, columns: str = "batch, key->>'id', column_name, reason") -> list[tuple[Any, ...]]:
    return select(dsn, f"select {columns} from shop.fkjoin_dead_letters order by batch, key->>'id'")


DAYS, TIMES = pa.date32(), pa.timestamp("us", "UTC")
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
KINDS: list[tuple[str, pa.Array, pa.Array, str]] = [
    ("text", pa.array(["a"]), pa.array(["line\nb\0c"]), "PostgreSQL's texts cannot contain U+0000"),
    ("uuid", pa.array([UUID]), pa.array(["sad"]), 'invalid input syntax for type uuid: "sad"'),
    ("jsonb", pa.array(['{"a":1}']), pa.array(['{"a":"\\u0000"}']), "unsupported Unicode escape sequence: \\u0000 cannot"),
    ("jsonb", pa.array(["[]"]), pa.array(["[" * 100_000]), "stack depth limit exceeded"),
    ("shop.short", pa.array(["abc"]), pa.array(["abcd"]), "value too long for type character varying(3)"),
    ("shop.short check (x <> 'no')", pa.array(["abc"]), pa.array(["no"]), "violates check constraint"),
    ("shop.filled", pa.array(["abc"]), pa.array([""]), "value for domain shop.filled violates check constraint"),
    ("text not null", pa.array(["a"]), pa.array([None], pa.string()), "violates not-null constraint"),
    ("shop.there", pa.array(["a"]), pa.array([None], pa.string()), "domain shop.there does not allow null values"),
    ("date", pa.array([0], pa.int32()).cast(DAYS), pa.array([-(2**31)], pa.int32()).cast(DAYS), "date out of range"),
    ("timestamptz", pa.array([0], TIMES), pa.array([-(2**63)], TIMES), "timestamp out of range"),
]


@pytest.mark.parametrize(("kind", "good", "bad", "reason"), KINDS, ids=[f"{kind[0]}-{kind[3][:20]}" for kind in KINDS])
def test_a_row_that_the_table_cannot_have_stops_the_query_or_is_set_aside(
    dsn: str, monkeypatch: pytest.MonkeyPatch, kind: str, good: pa.Array, bad: pa.Array, reason: str
) -> None:
    """The error has key, column and the beginning of the value on one line, and the letter has the row.

    What is set aside is set aside once, and the batch's other rows are written.
    """
    if kind.startswith("shop.short"):  # prepare refuses such a table, since most texts do not go there
        monkeypatch.setattr("fkjoin.sinks.postgres_types.fits", lambda *given, **more: True)
    schema = IDS.append(pa.field("x", good.type)).append(pa.field("other", pa.string()))

    def rows(*values: pa.Array) -> pa.Table:
        ids = [f"k{place}" for place in range(len(values))]
        return pa.table({"id": ids, "x": pa.chunked_array(values), "other": ["SECRET"] * len(values)})

    stops = sink(dsn, schema, f"id text primary key, x {kind}, other text")
    with pytest.raises(FkJoinError) as caught:
        stops.apply(batch_id(0), rows(good, bad, good), gone())
    (line,) = str(caught.value).splitlines()
    assert line.startswith("a row cannot be in table shop.it: id = 'k1', column x = ")
    assert reason in line
    assert '; with on_error="dead-letter" such rows are set aside, or a view of the table replaces such values' in line
    assert len(line) < 600
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    assert select(dsn) == []

    sets_aside = setting_aside(dsn, schema=schema)
    for _ in range(2):
        sets_aside.apply(batch_id(0), rows(good, bad, good, bad), gone())
    assert select(dsn, "select id from shop.it order by id") == [("k0",), ("k2",)]
    found = letters(dsn)
    assert [row[:3] for row in found] == [(0, "k1", "x"), (0, "k3", "x")]
    assert all(reason in row[3] for row in found)
    assert json.loads(letters(dsn, "row::text")[0][0])["other"] == "SECRET"
    sets_aside.apply(batch_id(1), rows(good, good), gone("k2"))
    assert select(dsn, "select id from shop.it order by id") == [("k0",), ("k1",)]
    assert len(letters(dsn)) == 2


def test_the_last_good_row_of_the_key_stays_and_a_later_good_one_replaces_it(dsn: str) -> None:
    made = setting_aside(dsn)
    made.apply(batch_id(0), names(a="one", b="one"), gone())
    made.apply(batch_id(1), names(a="tw\0", b="two"), gone())
    assert select(dsn) == [("a", "one"), ("b", "two")]
    made.apply(batch_id(2), names(a="three"), gone())
    assert select(dsn) == [("a", "three"), ("b", "two")]
    assert letters(dsn, "query, target, batch, key->>'id', row::text") == [
        ("q", "shop.it", 1, "a", '{"id": "a", "name": "tw\\u0000"}')
    ]


def test_rows_that_are_left_out_are_counted_in_the_log_and_for_prometheus(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    before = _counted()
    with caplog.at_level(logging.WARNING, "fkjoin"):
        setting_aside(dsn, on_error="skip").apply(batch_id(0), names(a="one", b="\0", c="\0"), gone())
    assert select(dsn, "select id from shop.it") == [("a",)]
    (line,) = caplog.messages
    assert line.startswith("table shop.it: 2 rows of batch 0 are left out, not in the table; the first: id = 'b', column name")
    assert _counted() - before == 2
    setting_aside(dsn).apply(batch_id(1), names(d="\0"), gone())
    assert "1 rows of batch 1 are in fkjoin_dead_letters, not in the table" in caplog.messages[-1]
    assert _counted() - before == 3
    shown = [event.words[:8] for event in last_events() if event.target == "postgres shop.it"]
    assert shown[-3:] == ["id = 'b'", "id = 'c'", "id = 'd'"], "on the page"


def _counted() -> float:
    registry = CollectorRegistry()
    registry.register(Metrics())
    return registry.get_sample_value("fkjoin_sink_dead_letters_total", {"place": "postgres shop.it"}) or 0


def test_a_delete_of_a_key_that_the_table_cannot_have_has_nothing_to_delete(dsn: str) -> None:
    made = sink(dsn, NAMES)
    made.apply(batch_id(0), names(a="one", b="two"), gone())
    made.apply(batch_id(1), names(), gone("a", "b\0", "\0"))
    assert select(dsn) == [("b", "two")]


def test_a_key_that_is_too_long_for_its_index_is_set_aside(dsn: str) -> None:
    made = setting_aside(dsn)
    key = "".join(str(number) for number in range(100_000))
    made.apply(batch_id(0), names(**{"a": "one", key: "two"}), gone())
    assert select(dsn) == [("a", "one")]
    ((name, reason),) = letters(dsn, "column_name, reason")
    assert name is None
    assert reason.startswith("index row requires")


def test_a_check_of_two_columns_names_both(dsn: str) -> None:
    made = setting_aside(dsn, schema=NUMBERS, types="id text primary key, n bigint, check (n > length(id))")
    made.apply(batch_id(0), batch(a=1, b=2), gone())
    assert select(dsn) == [("b", 2)]
    assert letters(dsn)[0][:3] == (0, "a", "id, n")
    made = sink(dsn)
    with pytest.raises(FkJoinError, match="shop.it: id = 'a', column id = 'a', column n = 1: new row for relation"):
        made.apply(batch_id(1), batch(a=1), gone())


def test_what_breaks_a_constraint_with_other_rows_stops_the_query_whatever_on_error_says(dsn: str) -> None:
    made = setting_aside(dsn, schema=NUMBERS, types="id text primary key, n bigint unique")
    with pytest.raises(FkJoinError, match=r"it cannot be written to: duplicate key .*it_n_key.\. Fix that and start the"):
        made.apply(batch_id(0), batch(a=1, b=1), gone())
    assert select(dsn) == []
    execute(dsn, "alter table shop.it drop constraint it_n_key")
    made.apply(batch_id(0), batch(a=1, b=1), gone())
    assert select(dsn) == [("a", 1), ("b", 1)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.sampled_from(["good", "b\0d", "bad", None]), max_size=40))
def test_all_rows_are_in_the_table_or_among_the_dead_letters(dsn: str, values: Sequence[str | None]) -> None:
    """Any rows are refused, for several reasons at the same time."""
    execute(dsn, "drop table if exists shop.it, shop.fkjoin_batches, shop.fkjoin_dead_letters")
    made = setting_aside(dsn, types="id text primary key, name text not null check (name <> 'bad')")
    rows = {f"{place:02}": value for place, value in enumerate(values)}
    made.apply(batch_id(0), names(**rows), gone())
    good = [key for key, value in rows.items() if value == "good"]
    assert [key for (key,) in select(dsn, "select id from shop.it order by id")] == good
    assert [(key, name) for _, key, name, _ in letters(dsn)] == [(key, "name") for key in rows if key not in good]


def test_a_database_in_another_encoding_has_what_that_has(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop database if exists latin")
        connection.execute("create database latin template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'")
    latin = psycopg.conninfo.make_conninfo(dsn, dbname="latin")
    execute(latin, "create schema shop")
    setting_aside(latin).apply(batch_id(0), names(a="é", b="€"), gone())
    latin = psycopg.conninfo.make_conninfo(latin, client_encoding="UTF8")
    assert select(latin) == [("a", "é")]
    assert letters(latin, "column_name, key->>'id'") == [("name", "b")]


def test_each_way_out_that_the_error_names(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """The first way goes on from the same checkpoint, and the error is one line of what the query says."""
    small(spark, tmp_path)
    write_lines(tmp_path / "rows", "0", [{"id": key, "name": name, "lsn": 1} for key, name in (("a", "one"), ("b", "t\0wo"))])
    table = Table.from_files(
        spark, tmp_path / "rows", key="id", version="lsn", schema="id string, name string, lsn bigint", format="json"
    )
    kept = table.materialize("kept")

    def write(table: Table, into: str, on_error: OnError = "fail") -> list[Any]:
        started = table.to_postgres(
            into, dsn, checkpoint=tmp_path / into, on_error=on_error, retry_s=5, trigger={"availableNow": True}
        )
        started.awaitTermination()
        return select(dsn, f"select id, name from {into} order by id")

    with pytest.raises(StreamingQueryException) as caught:
        write(kept, "shop.it")
    lines = str(caught.value).splitlines()
    assert "a row cannot be in table shop.it: id = 'b', column name = 't\\x00wo': PostgreSQL's texts" in lines[0]
    assert 'on_error="dead-letter" for the table, or a view of the table replaces such values' in lines[2]
    assert write(kept, "shop.it", "dead-letter") == [("a", "one")]
    assert letters(dsn)[0][:3] == (0, "b", "name")
    replaced = table.map_values(["replace(name, char(0), '') as name"], name="replaced")
    assert write(replaced, "shop.replaced") == [("a", "one"), ("b", "two")]


def test_a_table_that_is_restored_has_the_rows_of_the_state_that_it_can_have_and_each_letter_once(dsn: str) -> None:
    """A key whose row cannot be there has none, neither that of an earlier batch nor that of a later one."""
    made, good = setting_aside(dsn, types="id text primary key, name uuid"), UUID
    made.apply(batch_id(0), names(a=good, b=good, c=good, d=good), gone())
    made.apply(batch_id(1), names(b="bad", c="b\0d"), gone())
    made.apply(batch_id(2), names(b=good, c=good, d="bad", e=good), gone("a"))
    state = names(a=good, b="bad", c="b\0d", d=good)
    for _ in range(2):
        made.replace(batch_id(1), state)
        assert [row[0] for row in select(dsn, "select id from shop.it order by id")] == ["a", "d"]
        assert [row[:2] for row in letters(dsn)] == [(1, "b"), (1, "c")]
    made.apply(batch_id(2), names(b=good, d="bad"), gone())
    assert [row[0] for row in select(dsn, "select id from shop.it order by id")] == ["a", "b", "d"]
    assert [row[:2] for row in letters(dsn)] == [(1, "b"), (1, "c"), (2, "d")]


def test_an_attempt_that_is_still_at_work_is_waited_for_before_the_table_is_restored(dsn: str) -> None:
    made = setting_aside(dsn)
    made.apply(batch_id(0), names(a="1"), gone())
    with psycopg.connect(dsn) as other:
        other.execute("update shop.fkjoin_batches set batch = 1")
        other.execute("insert into shop.it values ('zombie', 'z')")
        going = threading.Thread(target=made.replace, args=(batch_id(0), names(a="1")))
        going.start()
        until("it waits", lambda: it_waits(dsn))
    going.join(30)
    assert select(dsn, "select id from shop.it") == [("a",)]
