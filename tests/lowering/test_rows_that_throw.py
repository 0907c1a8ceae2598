"""Rows on which an expression or a function of the user's throws, at each operator: left out, counted, and in dead letters.

So is a row for which a function returns what is not of its type, or too few columns.
"""

from __future__ import annotations

import datetime
import json
import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, DoubleType, LongType, StringType, StructField, StructType

from fkjoin import Table, fk_join
from fkjoin import aggregates as agg
from fkjoin.sessions.settings import OPTIMIZE, PARTITIONS
from fkjoin.spark.dead_letters import OnError
from fkjoin.spark.returned import as_type
from fkjoin.testing import Driver
from tests.support.driven import feed_lines
from tests.support.plans.topologies import Sources
from tests.support.queries import run, write_lines
from tests.support.sessions import small

OPERATORS = "fmxjvg"
"""A column for each: of filter, map_values, extractor, joiner, of a view of the join, and of a group's key."""

ORDER = "id string, f bigint, m bigint, x bigint, j bigint, v bigint, g bigint"
CUSTOMER = "c bigint, rate bigint"
MOST = 2**63 - 1
"""One more does not fit."""


@pytest.fixture(autouse=True)
def settings(spark: SparkSession, tmp_path: Path) -> None:
    small(spark, tmp_path, buckets=1)
    spark.conf.set(PARTITIONS, "1")


class Way(NamedTuple):
    """A way to write expressions; ``more`` makes a column plus one."""

    more: Callable[[str], str | Column]
    extractor: Any = None
    joiner: Any = None

    def named(self, column: str, name: str) -> str | Column:
        made = self.more(column)
        return f"{made} as {name}" if isinstance(made, str) else made.alias(name)


def only_spark(column: str) -> str:
    """A column plus one, as workers cannot evaluate it."""
    return f"cast(cast({column} as string) as bigint) + 1"


def fitting(number: int) -> int:
    if number >= MOST:
        raise OverflowError(f"{number} is too much")
    return number + 1


def join(left, right):  # type: ignore[no-untyped-def]  # Spark warns of hints that are not its own
    return left.m1, fitting(left.j) + right.rate, left.v, left.g


WORKERS = Way(lambda column: f"{column} + 1")
TEXTS = Way(only_spark)
COLUMNS = Way(lambda column: F.expr(only_spark(column)))
FUNCTIONS = Way(
    only_spark,
    extractor=lambda key, row: fitting(row.x),
    joiner=F.udf(join, StructType([StructField(name, LongType()) for name in ("m1", "total", "v", "g")])),
)


def made(orders: Table, customers: Table, way: Way) -> tuple[Table, Table]:
    """A view of the join, and groups of it."""
    condition = way.more("f")
    some = orders.filter(f"{condition} > 0" if isinstance(condition, str) else condition > 0, name="some")
    mapped = some.map_values([way.named("m", "m1"), "x", "j", "v", "g"], name="mapped")
    total = f"{only_spark('left.j')} + right.rate" if way is not WORKERS else "left.j + 1 + right.rate"
    joiner = way.joiner or ["left.m1", f"{total} as total", "left.v", "left.g"]
    joined = fk_join(mapped, customers, way.extractor or way.more("x"), "inner", joiner, name="joined")
    view = joined.map_values(["m1", "total", way.named("v", "v1"), "g"], name="view")
    groups = view.group_by(way.named("g", "g1"), name="groups").agg(rows=agg.count(), sum=agg.sum("total"))
    return view, groups


def tables(spark: SparkSession, folder: Path, on_error: OnError, *, stream: bool = False) -> tuple[Table, Table]:
    sources, sides = Sources(spark, folder, {}), []
    for name, key, schema in (("orders", "id", ORDER), ("customers", "c", CUSTOMER)):
        if stream:
            frame = spark.readStream.schema(f"{schema}, lsn bigint, op string").json(str(sources.place(name)))
            about: Any = {"version": "lsn", "deleted": "op = 'd'", "on_error": on_error}
            sides.append(Table.from_stream(frame, key=key, name=name, **about))
        else:
            sides.append(sources.files(name, key, schema, on_error=on_error))
    return sides[0], sides[1]


class History:
    """Random changes; in some rows a column has a number to which one cannot be added.

    ``often``: rows change more than once in a batch.
    """

    def __init__(self, *, often: bool) -> None:
        rng, lsn = random.Random(7), 0
        self.good: dict[str, dict[str, dict[str, int] | None]] = {upto: {} for upto in ("fmxjv", "fmxjvg")}
        self.thrown: Counter[str] = Counter()
        self.batches: list[list[dict[str, Any]]] = []
        self.customers = [{"c": number, "rate": 10 * number, "lsn": 0, "op": "u"} for number in range(6)]
        for _ in range(2):
            lines = []
            keys = [f"o{number}" for number in range(40)]
            for key in rng.choices(keys, k=80) if often else rng.sample(keys, k=36):
                lsn += 1
                row = {name: rng.randrange(-2 if name == "f" else 0, 5) for name in OPERATORS}
                if rng.random() < 0.5:
                    row[rng.choice(OPERATORS)] = MOST
                gone = rng.random() < 0.1
                lines.append({"id": key, **row, "lsn": lsn, "op": "d" if gone else "u"})
                self._count(key, row, gone)
            self.batches.append(lines)

    def _count(self, key: str, row: dict[str, int], gone: bool) -> None:
        left = gone or row["f"] + 1 <= 0
        bad = next((name for name in OPERATORS if row[name] == MOST), None)
        if not gone and bad == "f":
            left = False
        if not left and bad is not None:
            self.thrown[bad] += 1
        for upto, rows in self.good.items():
            if left or bad is None or bad not in upto:
                rows[key] = None if left else row

    def view(self) -> dict[str, dict[str, Any]]:
        return {key: joined(row) for key, row in self.good["fmxjv"].items() if row is not None}

    def groups(self) -> dict[str, dict[str, Any]]:
        groups = defaultdict(list)
        for row in self.good["fmxjvg"].values():
            if row is not None:
                groups[row["g"] + 1].append(joined(row))
        return {str(g): {"rows": len(some), "sum": sum(row["total"] for row in some)} for g, some in groups.items()}


def joined(row: dict[str, int]) -> dict[str, Any]:
    return {"m1": row["m"] + 1, "total": row["j"] + 1 + 10 * (row["x"] + 1), "v1": row["v"] + 1, "g": row["g"]}


LEFT_OUT = [
    pytest.param(WORKERS, True, False, "skip", id="workers"),
    pytest.param(COLUMNS, False, True, "skip", id="columns-of-a-stream"),
    pytest.param(FUNCTIONS, True, True, "dead-letter", id="functions"),
]
"""Expressions of the last two are Spark's."""
STEPS = {"view": "fmxjv", "groups": "fmxjvg"}
"""Steps of each table's query that throw, whether or not a rule fuses them."""


def require_letters(history: History, letters: Sequence[Any]) -> None:
    """Require a letter of each row that threw, with what threw it."""
    thrown = history.thrown
    assert Counter(letter["table"] for letter in letters) == {
        "orders": thrown["f"],
        "some": thrown["m"],
        "mapped": thrown["x"],
        "joined": thrown["j"] + thrown["v"],
        "view": thrown["g"],
    }
    assert {letter["reason"] for letter in letters} == REASONS
    for letter in letters:
        assert str(MOST) in letter["value"].decode()
        assert json.loads(letter["key"])["id"].startswith("o")


@pytest.mark.parametrize(("way", "optimized", "stream", "on_error"), LEFT_OUT)
def test_what_throws_is_left_out_and_the_last_good_row_stays(
    spark: SparkSession, tmp_path: Path, way: Way, optimized: bool, stream: bool, on_error: OnError
) -> None:
    """A join passes on a row's last change of a batch, so each row changes once a batch unless rules fuse the steps."""
    history = History(often=way is WORKERS and optimized)
    spark.conf.set(OPTIMIZE, str(optimized).lower())
    wanted = {"view": history.view(), "groups": history.groups()}
    view, groups = made(*tables(spark, tmp_path, on_error, stream=stream), way)
    for table in (view, groups) if way is WORKERS else (groups,):
        driver = Driver(table)
        feed_lines(driver, "customers", history.customers)
        for lines in history.batches:
            feed_lines(driver, "orders", lines)
            driver.run()
        assert {str(key): row for key, row in driver.table.items()} == wanted[table.name]
        assert driver.count["dead-letters"] == sum(history.thrown[step] for step in STEPS[table.name])
    if on_error == "dead-letter":
        require_letters(history, driver.dead_letters)


SAID = "a result that does not fit"


def cast_said(column: str) -> str:
    return f"(CAST(CAST({column} AS STRING) AS BIGINT) + CAST(1 AS BIGINT)): {SAID}"


REASONS = {
    f"filter: {only_spark('f')} > 0: {cast_said('f')}",
    f"map_values: {only_spark('m')} as m1: {cast_said('m')}",
    f"extractor: OverflowError: {MOST} is too much",
    f"joiner: OverflowError: {MOST} is too much",
    f"map_values: {only_spark('v')} as v1: {cast_said('v')}",
    f"group_by: {only_spark('g')} as g1: {cast_said('g')}",
}


WAY_OUT = 'with on_error="dead-letter" such rows are set aside'
RATES = [{"c": 2, "rate": 1, "lsn": 1, "op": "u"}]
STOPPED = [
    pytest.param(WORKERS, "j", "joiner of joined, key o1: ArithmeticError: overflow of int64", id="workers-joiner"),
    pytest.param(TEXTS, "m", f"map_values of some, key o1: {only_spark('m')} as m1: {cast_said('m')}", id="texts-map"),
    pytest.param(FUNCTIONS, "j", f"joiner of joined, key o1: OverflowError: {MOST}", id="function-joiner"),
]


@pytest.mark.parametrize(("way", "column", "said"), STOPPED)
def test_a_table_that_is_to_fail_names_operator_key_and_cause(
    spark: SparkSession, tmp_path: Path, way: Way, column: str, said: str
) -> None:
    view, groups = made(*tables(spark, tmp_path, "fail"), way)
    assert groups.dead_letters is None
    driver = Driver(view)
    feed_lines(driver, "orders", [dict.fromkeys(OPERATORS, 1) | {"id": "o1", "lsn": 1, "op": "u", column: MOST}])
    feed_lines(driver, "customers", RATES)
    with pytest.raises(Exception, match=re.escape(said)) as error:
        driver.run()
    assert WAY_OUT in str(error.value)


def test_what_cannot_throw_costs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Such expressions stay as they are, and have no dead letters."""
    write_lines(tmp_path / "orders", "0", [{"id": "o1", "a": 1, "t": "x", "lsn": 1}])
    schema = "id string, a int, t string, lsn bigint"
    orders = Table.from_files(spark, tmp_path / "orders", key="id", version="lsn", schema=schema, format="json")
    some = orders.filter("a > 1 and t in ('x', 'y') or upper(t) is null or a between 1 and 3")
    made = some.map_values(["a", "cast(a as bigint) as b", "coalesce(t, '') || 'x' as c", "if(a > 1, t, id) as d"])
    assert made._plan.dead == orders._plan.dead
    rows = made._plan.on_spark(made._plan.rows)
    assert "tryeval" not in rows._jdf.queryExecution().analyzed().toString()
    assert len(made.filter("a + 1 > 2")._plan.dead) == len(orders._plan.dead) + 1


def test_letters_have_what_was_read(spark: SparkSession, tmp_path: Path) -> None:
    """Records of files whose version or deletion cannot be read, and of a stream with its nulls."""
    rows = [{"id": "a", "v": "1", "n": 1}, {"id": "a", "v": "two", "n": 2}, {"id": "b", "v": "3", "n": MOST}]
    write_lines(tmp_path / "rows", "0", rows)
    about: Any = {"schema": "id string, v string, n bigint", "format": "json", "name": "files"}
    files = Table.from_files(spark, tmp_path / "rows", key="id", version="cast(v as bigint)", deleted="n + 1 < 0", **about)
    assert [(row.id, row.n) for row in run(files.changes, tmp_path / "checkpoint").rows] == [("a", 1)]

    write_lines(tmp_path / "nulls", "0", [{"id": "a", "v": "two", "n": None}])
    frame = spark.readStream.schema("id string, v string, n bigint").json(str(tmp_path / "nulls"))
    stream = Table.from_stream(frame, key="id", version="cast(v as bigint)", name="stream")

    frames = [table.dead_letters for table in (files, stream)]
    assert all(frame is not None for frame in frames)
    assert frames[0].columns[-1] == "reason"
    together = frames[0].unionByName(frames[1], allowMissingColumns=True)
    letters = defaultdict(list)
    for row in run(together, tmp_path / "letters").rows:
        letters[row["table"]].append(row)
    assert {json.loads(row["value"])["v"] for row in letters["files"]} == {"two", "3"}
    assert {row["reason"].split(": ", 2)[2] for row in letters["files"]} == {
        "CAST(v AS BIGINT): a value that cannot be cast",
        "(n + CAST(1 AS BIGINT)): a result that does not fit",
    }
    assert [(row["key"], row["value"]) for row in letters["stream"]] == [(b'{"id":"a"}', b'{"id":"a","v":"two","n":null}')]


def test_results_stay_while_the_joiner_throws_on_the_right_row(spark: SparkSession, tmp_path: Path) -> None:
    """A left row that goes meanwhile is deleted; the right row's next good change reaches the others."""
    orders, customers = tables(spark, tmp_path, "skip")
    joined = fk_join(orders, customers, "x", joiner=["left.j + right.rate as total"], name="joined")
    driver = Driver(joined)
    here = {"c": 1, "op": "u"}
    one, two = ({"id": name, "x": 1, "j": 1, "op": "u"} for name in ("one", "two"))
    batches: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        ([one | {"lsn": 1}, two | {"lsn": 2}], [here | {"rate": 10, "lsn": 1}]),
        ([], [here | {"rate": MOST, "lsn": 2}]),
        ([one | {"lsn": 3, "op": "d"}, two | {"j": 5, "lsn": 4}], []),
        ([], [here | {"rate": 20, "lsn": 3}]),
    ]
    seen, counted = [], []
    for left, right in batches:
        feed_lines(driver, "orders", left)
        feed_lines(driver, "customers", right)
        changes = driver.run()
        seen.append(sorted((change.key, change.operation, change.row and change.row["total"]) for change in changes))
        counted.append(driver.count["dead-letters"])
    assert seen == [[("one", "insert", 11), ("two", "insert", 11)], [], [("one", "delete", None)], [("two", "update", 25)]]
    assert counted == [0, 2, 3, 3]


def test_columns_that_spark_evaluates_leave_out_the_row_that_throws(spark: SparkSession, tmp_path: Path) -> None:
    """A function of the user's in a column is called for the row; what it throws itself would stop the query.

    A part that stands twice is not evaluated before all else.  The stream's rows are never deleted, so Spark could tell that a
    condition on deletes always holds.
    """
    write_lines(tmp_path / "orders", "0", [{"id": "o1", "a": 1, "lsn": 1}, {"id": "o2", "a": MOST, "lsn": 2}])
    schema = "id string, a bigint, lsn bigint"
    files = Table.from_files(spark, tmp_path / "orders", key="id", version="lsn", schema=schema, name="files")
    called = files.map_values([(F.udf(lambda number: number, LongType())("a") + 1).alias("b")], name="called")
    frame = spark.readStream.schema(schema).json(str(tmp_path / "orders"))
    stream = Table.from_stream(frame, key="id", version="lsn", name="stream")
    twice = stream.map_values([f"{only_spark('a')} as b", f"({only_spark('a')}) * 2 as c"], name="twice")
    both = called.changes.unionByName(twice.changes, allowMissingColumns=True)
    rows = run(both, tmp_path / "checkpoint").rows
    assert sorted((row.id, row.b, row.c or 0) for row in rows) == [("o1", 2, 0), ("o1", 2, 4)]


def test_a_lambda_that_may_throw_is_analyzed_in_silence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would log an error, with Java's stack, of what is only asked: which part throws."""
    orders, _ = tables(spark, tmp_path, "dead-letter")
    loggers: list[str] = []
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, _: loggers.append(logger.name))
    mapped = orders.map_values("transform(array(m), x -> x + 1) as ms", name="mapped")
    assert mapped.dead_letters is not None
    assert [name for name in loggers if name.endswith("QueryContextLogger")] == []


PAIR = StructType().add("a", LongType()).add("b", StringType())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, LongType()),
        (3.0, LongType()),
        (np.int64(3), LongType()),
        (3, DoubleType()),
        (3, StringType()),
        (Decimal("1.5"), DecimalType(10, 2)),
        (datetime.date(2026, 1, 1), DateType()),
        ((1, None), PAIR),
        (None, PAIR),
    ],
)
def test_what_spark_takes_is_taken(value: Any, kind: DataType) -> None:
    assert as_type(value, kind) is value


def test_what_arrow_casts_is_cast() -> None:
    assert as_type(Decimal("1.5"), DoubleType()) == 1.5
    assert as_type("7", LongType()) == 7
    assert as_type(("7", "b"), PAIR) == (7, "b")


@pytest.mark.parametrize(
    ("value", "kind"),
    [("text", LongType()), (True, LongType()), (2**63, LongType()), ("soon", DateType()), ((1,), PAIR), (5, PAIR)],
)
def test_the_rest_is_told(value: Any, kind: DataType) -> None:
    with pytest.raises(TypeError, match=f"is not of type {kind.simpleString()}"):
        as_type(value, kind)


def test_rows_are_set_aside_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    sources = Sources(spark, tmp_path, {})
    left, right = sources.files("a", "id", "id string"), sources.files("b", "c, d", "c int, d string")
    returned = {
        "listed": [1, "x"],
        "nothing": None,
        "text": "xy",
        "short": (1,),
        "long": (1, "x", 2),
        "cast": ("text", "x"),
        "named": {"c": 1, "d": "x"},
    }

    def extractor(key: Any, row: Any) -> Any:
        return returned.get(key, (1, "x"))

    def joiner(left: Any, right: Any) -> int:
        return "text" if left["id"] == "joiner" else 7  # type: ignore[return-value]

    driver = Driver(fk_join(left, right, extractor, "inner", joiner, name="joined"))
    driver.input("b").change((1, "x"), {})
    for name in ("good", *returned, "joiner"):
        driver.input("a").change(name, {})
    driver.run()
    assert driver.table == {"good": {"value": 7}, "listed": {"value": 7}}
    reasons = {}
    for letter in driver.dead_letters:
        reasons[json.loads(letter["key"] or letter["value"])["id"]] = letter["reason"]
    assert reasons.pop("joiner") == "joiner: TypeError: 'text' is not of type bigint"
    assert reasons.keys() == {"text", "short", "long", "cast", "named"}
    assert all(reason.startswith("extractor: TypeError: ") for reason in reasons.values())
