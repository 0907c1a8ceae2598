"""Lines of files that do not fit: dead letters with file and line, the same whichever way the lines are read.

A job whose files get such lines goes on, with the same checkpoint.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin.stages.counters import metrics_name
from tests.support.files import collected, gone_on, write
from tests.support.files import table as plain_table
from tests.support.queries import run, write_lines
from tests.support.sampling import EVERY
from tests.support.sessions import SPARK_4_0

pytestmark = pytest.mark.usefixtures("small_tables")

SCHEMA = "id string, n bigint, lsn bigint, inner struct<a: double, t: string>"
OBJECT = "not JSON that fits struct<id:string,n:bigint,lsn:bigint,inner:struct<a:double,t:string>>"
GOOD = '{"id":"a","n":1,"lsn":1}'
NO_TEXT = b'{"id":"j\xff","n":1,"lsn":1}'
BAD: dict[str, str | bytes] = {
    "another type": '{"id":"b","n":5.5,"lsn":1}',
    "cut off": '{"id":"c","n":1,"lsn"',
    "an array": '[{"id":"d","n":1,"lsn":1},{"id":"e","n":2,"lsn":1}]',
    "no JSON": "id=f",
    "two": '{"id":"g","lsn":1} {"id":"h","lsn":1}',
    "single quotes": "{'id':'i','lsn':1}",
    "no text": NO_TEXT,
}


def table(spark: SparkSession, folder: Path, **more: Any) -> Table:
    about: dict[str, Any] = {"key": "id", "version": "lsn", "schema": SCHEMA, "format": "json", **more}
    return Table.from_files(spark, folder, **about)


def letters(made: Table, checkpoint: Path) -> set[tuple[Any, ...]]:
    rows = collected(made.dead_letters, checkpoint)
    return {(row.table, Path(row.file).name, bytes(row.value), row.reason) for row in rows}


def encoded(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode()


def by_spark(made: Table) -> Table:
    """The table with its rows kept, from its frame: a condition that workers do not evaluate is in between."""
    found = made.filter("sqrt(length(id)) >= 0 or id is null").materialize("kept")
    assert found._plan.packed is not None
    assert "PackRead" not in found._plan.frame._jdf.queryExecution().analyzed().toString()
    return found


def by_workers(made: Table) -> Table:
    found = made.materialize("kept")
    assert "PackRead" in found._plan.frame._jdf.queryExecution().analyzed().toString()
    return found


def rows_and_counts(made: Table, checkpoint: Path) -> tuple[list[Any], dict[str, int]]:
    done = run(made.changes, checkpoint, metrics_name(made.name))
    counts = {name: done.count[name] for name in ("dead-letters", "null-key-dropped")}
    return sorted(tuple(row.asDict().values()) for row in done.rows), counts


def test_both_ways_leave_out_the_same_lines_and_say_why(spark: SparkSession, tmp_path: Path) -> None:
    """Lines are skipped without letters, if that is wanted."""
    no_key, no_version = '{"n":1}', '{"id":"k","n":1}'
    write(tmp_path / "in", "1.json", GOOD, "", " \t", *BAD.values())
    write(tmp_path / "in", "2.json", no_key, no_version, '{"id":"l","lsn":2,"more":[1]}')
    source = table(spark, tmp_path / "in")
    assert source._plan.undecoded is not None
    rows, counts = rows_and_counts(by_workers(source), tmp_path / "workers")
    lenient = by_spark(table(spark, tmp_path / "in", on_error="skip"))
    assert rows_and_counts(lenient, tmp_path / "spark") == (rows, counts)
    assert lenient.dead_letters is None
    assert [row[0] for row in rows] == ["a", "l"]
    assert counts == {"dead-letters": len(BAD) + 1, "null-key-dropped": 1}
    reasons = dict.fromkeys(map(encoded, BAD.values()), OBJECT) | {NO_TEXT: "not UTF-8"}
    wanted = {("in", "1.json", line, reason) for line, reason in reasons.items()}
    wanted.add(("in", "2.json", no_version.encode(), "no version: lsn is null"))
    assert letters(by_workers(source), tmp_path / "letters") == wanted


def test_a_line_that_does_not_fit_stops_a_query_that_is_told_to_fail(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark; of lines that workers read, there is a test of a checkpoint."""
    write(tmp_path / "in", "1.json", GOOD, BAD["another type"])
    strict = table(spark, tmp_path / "in", on_error="fail")
    assert strict.dead_letters is None
    words = r'table in: .*: not JSON that fits .*"n":5.5,"lsn":1}; with on_error="dead-letter"'
    with pytest.raises(StreamingQueryException, match=words):
        run(strict.changes, tmp_path / "strict")


def test_options_of_sparks_reader_are_sparks_and_other_lines_are_letters(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "1.json", GOOD, "/* two */ " + GOOD.replace('"a"', '"b"'), BAD["another type"], BAD["an array"])
    made = table(spark, tmp_path / "in", options={"allowComments": True})
    assert made._plan.undecoded is None
    narrow = made.map_values("id as it", name="narrow").materialize("narrow")
    rows, counts = rows_and_counts(narrow, tmp_path / "narrow")
    assert [row[0] for row in rows] == ["a", "b", "d", "e"], "an array of objects is so many rows, as Spark reads it"
    assert counts["dead-letters"] == 1, "whatever columns are read"
    ((name, file, value, reason),) = letters(made, tmp_path / "letters")
    assert (name, file, value, reason) == ("in", "1.json", b'{"id":"b","n":5.5,"lsn":1}', OBJECT)


CORRUPT: list[tuple[str, dict[str, str]]] = [("_corrupt_record", {}), ("bad", {"columnNameOfCorruptRecord": "bad"})]


@pytest.mark.nightly
@pytest.mark.parametrize(("column", "options"), CORRUPT)
def test_with_a_column_for_them_lines_that_do_not_fit_are_rows(
    spark: SparkSession, tmp_path: Path, column: str, options: dict[str, str]
) -> None:
    write(tmp_path / "in", "1.json", GOOD, BAD["another type"], BAD["cut off"])
    about: dict[str, Any] = {"schema": f"{SCHEMA}, {column} string", "version": "coalesce(lsn, 0)", "options": options}
    made = table(spark, tmp_path / "in", **about)
    whole = [(None, BAD["cut off"]), ("a", None), ("b", BAD["another type"])]
    found = {(row["id"], row[column]) for row in collected(made.changes, tmp_path / "source")}
    assert found == set(whole)
    kept = {(row["id"], row[column]) for row in collected(made.materialize("kept").changes, tmp_path / "kept")}
    assert kept == set(whole[1:]), "a row without a key is dropped"
    assert collected(made.dead_letters, tmp_path / "letters") == []


TIMES = ["timestamp", "timestamp_ntz", "date", "array<struct<at: timestamp>>"]


@pytest.mark.parametrize("kind", [*TIMES, *([] if SPARK_4_0 else ["time"])])
def test_times_that_sparks_json_reader_takes_for_seconds_are_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    write(tmp_path / "in", "1.json", GOOD)
    timed = f"{SCHEMA}, t {kind}"
    says = "Spark's JSON reader counts a number as seconds: take a bigint"
    ways: dict[str, dict[str, Any]] = {
        "column _corrupt_record": {"schema": f"{timed}, _corrupt_record string"},
        "option encoding": {"schema": timed, "options": {"encoding": "UTF-8"}},
    }
    for words, more in ways.items():
        words = rf"schema: column t\S* is .*, but with the {words}, {says}"
        with pytest.raises(TopologyError, match=words):
            table(spark, tmp_path / "in", **more)


def test_five_or_six_digits_of_csv_are_no_year(spark: SparkSession, tmp_path: Path) -> None:
    good, lines = ["2024-05-06"] * 3, ["0,1,2024-05-06,2024-05-06,2024-05-06"]
    for place, digits in product(range(3), ("169036", "16903", "1690366967048")):
        texts = [*good[:place], digits, *good[place + 1 :]]
        lines.append(f"{len(lines)},1,{','.join(texts)}")
    write(tmp_path / "in", "1.csv", "id,lsn,a,b,c", *lines)
    schema = "id string, lsn bigint, a timestamp, b timestamp_ntz, c date"
    made = table(spark, tmp_path / "in", format="csv", schema=schema)
    rows = collected(made.changes, tmp_path / "rows")
    assert [(row["id"], *(str(row[name])[:10] for name in "abc")) for row in rows] == [("0", *good)]


def test_streams_and_parquet_without_a_version_are_letters(spark: SparkSession, tmp_path: Path) -> None:
    rows, schema = [("a", 1, 1), ("b", 2, None), (None, 3, None)], "id string, n int, lsn bigint"
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "in"))
    about: dict[str, Any] = {"key": "id", "version": "lsn"}
    files = Table.from_files(spark, tmp_path / "in", **about)
    changes = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    stream = Table.from_stream(changes, name="it", **about)
    kept, counts = rows_and_counts(stream.materialize("kept"), tmp_path / "rows")
    assert [row[0] for row in kept] == ["a"]
    assert counts == {"dead-letters": 1, "null-key-dropped": 1}
    both = fk_join(files, stream, "id").dead_letters
    assert both is not None
    assert both.columns == ["table", "file", "value", "key", "reason"], "by name, from whatever"
    reason = "no version: lsn is null"
    letters = {row.table: row for row in collected(both, tmp_path / "letters")}
    assert letters["in"].file.endswith(".parquet")
    assert json.loads(letters["in"].value) == {"id": "b", "n": 2}
    assert (letters["it"].reason, letters["it"].key) == (reason, b'{"id":"b"}')
    strict = Table.from_stream(changes, name="it", on_error="fail", **about)
    with pytest.raises(StreamingQueryException, match=f'table it: {reason}: {{"id":"b"}}: '):
        run(strict.changes, tmp_path / "strict")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "t"]), inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(st.sampled_from(["id", "n", "lsn", "inner", "more"]), values, max_size=5).map(json.dumps)
some = st.dictionaries(st.sampled_from(["n", "inner"]), values, max_size=2)
keyed = st.builds(lambda key, lsn, more: json.dumps({"id": key, "lsn": lsn, **more}), st.text("ab"), st.integers(0, 9), some)
cut = st.builds(lambda line, at: line[: at % (len(line) + 1)], objects, st.integers(0, 99))
known = st.sampled_from([encoded(line) for line in (*BAD.values(), GOOD, "", " ")])
anything = st.one_of(keyed.map(str.encode), objects.map(str.encode), cut.map(str.encode), known, st.binary(max_size=6))


@settings(max_examples=20 if EVERY else 1, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lines=st.lists(anything, min_size=30, max_size=90, unique=True))
def test_whatever_lines_there_are_both_ways_give_the_same(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    write(folder / "in", "1.json", *(line.replace(b"\n", b"").replace(b"\r", b"") for line in lines))
    source = table(spark, folder / "in")
    workers = rows_and_counts(by_workers(source), folder / "workers")
    assert str(rows_and_counts(by_spark(source), folder / "spark")) == str(workers)


# In the order of learned columns, which is by name.
ORDERS = "at bigint, customer bigint, gone boolean, lsn bigint, number string"


def test_what_becomes_of_lines_that_do_not_fit_does_not_bind_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    row = {"number": "o1", "customer": 1, "lsn": 2, "at": 6, "gone": False}

    def run(on_error: str) -> list[tuple[Any, ...]]:
        orders = plain_table(spark, tmp_path / "orders", key="number", schema=ORDERS, on_error=on_error)
        return gone_on(orders, tmp_path, "number")

    write_lines(tmp_path / "orders", "1", [row])
    assert run("fail") == [("o1",)]
    write_lines(tmp_path / "orders", "2", [{**row, "number": "o2", "lsn": "x"}, {**row, "number": "o3"}])
    with pytest.raises(StreamingQueryException, match='set such lines aside, with on_error="dead-letter"'):
        run("fail")
    assert run("dead-letter") == [("o1",), ("o3",)]


def test_an_expression_is_the_way_out_for_a_new_job(spark: SparkSession, tmp_path: Path) -> None:
    row = {"customer": "1", "lsn": "2024-01-01", "at": "2024-01-01", "gone": "c"}
    stray = {"number": "a stray number", **row, "lsn": 5, "at": 5}
    write_lines(tmp_path / "orders", "2", [{"number": "o1", **row}, {"number": "o2", **row}, stray])
    write_lines(tmp_path / "customers", "1", [{"id": 1, "lsn": 1, "name": "Ada"}])
    schema = "id bigint, lsn bigint, name string"
    customers = plain_table(spark, tmp_path / "customers", schema=schema)
    ways = {
        "version": "unix_micros(to_timestamp(lsn))",
        "timestamp": "to_timestamp(at)",
        "deleted": "gone = 'd'",
    }
    about: dict[str, Any] = {"key": "number", **ways}
    for name, plain in {"version": "lsn", "timestamp": "at", "deleted": "gone"}.items():
        with pytest.raises(TopologyError, match=f"^{name}: {plain} is string"):
            plain_table(spark, tmp_path / "orders", **{**about, name: plain})
    orders = plain_table(spark, tmp_path / "orders", **about)
    with pytest.raises(TopologyError, match="^extractor: customer of left table orders is string"):
        fk_join(orders, customers, "customer", how="left")
    joined = fk_join(orders, customers, "cast(customer as bigint)", how="left", name="joined")
    assert joined.key == ("number",)
    rows = collected(orders.changes, tmp_path / "rows")
    assert [row.number for row in rows] == ["o1", "o2"]
