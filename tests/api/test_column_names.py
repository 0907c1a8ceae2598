"""Names of columns: any name works everywhere, and one that cannot be told apart is refused when the table is built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.csv import write_csv
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, fk_join, read_state
from fkjoin import aggregates as agg
from fkjoin.analysis.topics import _require_names
from fkjoin.codec.expressions import Part
from fkjoin.codec.json_read import read_objects
from fkjoin.codec.rows import RowCodec
from fkjoin.codec.vectors import Columns
from fkjoin.kafka import Debezium, Json
from fkjoin.kafka.formats import decode_key, key_reader, reader
from fkjoin.lowering.table_plan import TablePlan
from fkjoin.plan.nodes import fired
from fkjoin.plan.rules import JOINS_SHARE_STAGES
from fkjoin.sessions.settings import OPTIMIZE
from fkjoin.sinks import Delta, Kafka, Parquet
from fkjoin.sinks.batches import Batch, Write
from fkjoin.sinks.postgres import Postgres
from fkjoin.spark.names import named, quoted
from fkjoin.testing import Driver
from tests.support.queries import run, write_lines
from tests.support.sampling import sampled
from tests.support.sessions import small

NASTY = [
    *("a.b", "ti`ck", "Capital", "two words", " blank ahead", "duck 🦆", "Größe", "ключ"),
    *('double"quote', "single'quote", "[x]", ".dot", "per%cent", "{brace}", "colon: semi;", "(round), comma"),
    *("equals=", "sla/sh", "back\\slash", "select", "*", "a.*", "left", "key", "row", "value", "cls", "0 digit", "$dollar"),
    *("-", "`x`"),
]
KEY, FK, RIGHT = "the.`key` 🦆", "customer.no", "no.`of` customer"


def test_names_in_backticks_are_names_and_expressions_are_not() -> None:
    assert quoted("left", "a.b", "ti`ck") == "`left`.`a.b`.`ti``ck`"
    assert [named(given, NASTY) for given in ("a.b", "`a.b`", "`ti``ck`", "upper(`a.b`)", 3, "A.B")] == [
        *("a.b", "a.b", "ti`ck"),
        *(None, None, None),
    ]


def test_columns_of_a_topics_key_and_value_are_told_apart() -> None:
    _require_names(["id", "a.b"], ["id", "name"])
    for key, row, says in (
        (["ID"], ["id"], "key and value: two columns are called 'ID' and 'id'"),
        (["a", "A"], [], "key: two columns"),
        (["id"], ["b", "B"], "value: two columns"),
        (["id"], ["__fkjoin_ts"], r"value: names that begin .* read it from Json\(…, text=…\) with map_values"),
    ):
        with pytest.raises(TopologyError, match=says):
            _require_names(key, row)


def test_any_name_can_be_parsed_encoded_picked_and_evaluated() -> None:
    kind = pa.struct([(name, pa.struct([(name, pa.int64())])) for name in NASTY])
    row = {name: {name: place} for place, name in enumerate(NASTY)}
    rows = read_objects(pa.array([json.dumps(row), json.dumps(row, ensure_ascii=False), '{"a.b": 1']), kind).rows
    assert rows.to_pylist()[:2] == [row, row]
    codec = RowCodec(pa.schema(list(kind)))
    encoded = codec.encode(rows.flatten(), 3)
    picked = codec.pick(encoded, [(name, name) for name in NASTY])
    assert [column[0].as_py() for column in picked] == list(range(len(NASTY)))
    fields = [
        Part("GetStructField", pa.int64(), (Part("AttributeReference", kind[name].type, argument=name.lower()),), name)
        for name in NASTY
    ]
    visible = {field.name.lower(): column for field, column in zip(kind, rows.flatten(), strict=True)}
    made = Columns(tuple(zip(NASTY, fields, strict=True)))(visible, pa.array([False] * 3))
    assert made[0].as_py() == {name: place for place, name in enumerate(NASTY)}


@pytest.fixture
def settings(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    small(spark, tmp_path)
    yield
    spark.conf.set(OPTIMIZE, "true")


ORDER = {KEY: "o1", FK: "c1", **{name: f"{name}!" for name in NASTY}, "lsn.x": 1, "op`x": "u"}
CUSTOMER = {RIGHT: "c1", **{f"r{name}": place for place, name in enumerate(NASTY)}, "lsn.x": 1}


OF_ORDERS: dict[str, Any] = {"key": quoted(KEY), "version": ["lsn.x"], "deleted": "`op``x` = 'd'"}


def files(spark: SparkSession, folder: Path, kind: str) -> tuple[Table, Table]:
    """Orders and customers, as lines; ``json by Spark`` has an option that leaves them to Spark."""
    for name, key, row in (("orders", KEY, ORDER), ("customers", RIGHT, CUSTOMER)):
        write_lines(folder / name, "1", [row, {**row, key: "other"}])
    more: dict[str, Any] = {"options": {"mode": "PERMISSIVE"}} if kind == "json by Spark" else {}
    orders = Table.from_files(spark, folder / "orders", **OF_ORDERS, **more)
    customers = Table.from_files(spark, folder / "customers", key=RIGHT, version="`lsn.x`", name="customers", **more)
    assert (orders._plan.undecoded is None) == (kind != "json")
    return orders, customers


@dataclass
class Records:
    """A sink that has the records of a topic, as workers make them and as Spark does."""

    place: str = "records"
    found: list[list[Row]] = field(default_factory=list)

    def begin(self, table: TablePlan) -> Write:
        kafka = Kafka("topic", "broker", value=f"concat({quoted(KEY)}, ' ', `a.b`, ' ', `ti``ck`)")
        whole = Kafka("topic", "broker")

        def write(batch: Batch, query: str, number: int) -> None:
            for sink in (kafka, whole):
                packed = sink._packed(table)
                assert packed is not None
                self.found += [packed(batch.packed).collect(), sink._records(batch.results, batch.changes).collect()]

        return write


@pytest.mark.parametrize("kind", ["json", pytest.param("json by Spark", marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("settings")
def test_any_name_works_in_sources_views_joiners_sinks_and_state(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    orders, customers = files(spark, tmp_path, kind)
    assert (*orders.key, *customers.key) == (KEY, RIGHT)
    assert "lsn.x" not in orders._planned.rest + customers._planned.rest
    whole = joined(orders, customers)
    places = Parquet(tmp_path / "out"), Delta(tmp_path / "delta"), (records := Records())
    whole.materialize("kept").to(*places, checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
    wanted = {name: ORDER[name] for name in orders._planned.rest} | {"sum of": 'two words!double"quote!', "of right.": 1}
    for rows in (
        spark.read.parquet(str(tmp_path / "out")).collect(),
        DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist(),
        read_state(spark, tmp_path / "ck", "kept").collect(),
    ):
        assert sorted(row[KEY] for row in rows) == ["o1", "other"]
        assert [{name: row[name] for name in wanted} for row in rows] == [wanted, wanted]
    for by_workers, by_spark in zip(records.found[::2], records.found[1::2], strict=True):
        assert sorted(by_workers) == sorted(by_spark)
    assert json.loads(min(records.found[2]).value) == wanted


def joined(orders: Table, customers: Table) -> Table:
    seen = orders.filter("`a.b` = 'a.b!' and `ti``ck` is not null").map_values(
        ["*", 'concat(`two words`, `double"quote`) as `sum of`'], name="summed"
    )
    seen = seen.filter("`sum of` like 'two%'", name="seen")
    whole = fk_join(seen, customers, FK, joiner=["left.*", f"right.{quoted('rti`ck')} as `of right.`"], name="whole")
    assert whole._planned.rest == (*seen._planned.rest, "of right.")
    return whole


def after(table: Table) -> dict[Any, Any]:
    """The table of two orders and two customers, in memory."""
    driver = Driver(table)
    for name, row, key in (("orders", ORDER, KEY), ("customers", CUSTOMER, RIGHT)):
        if name in driver.inputs:
            for number in (row[key], "other"):
                driver.input(name).change(number, {column: row[column] for column in row if column not in ("lsn.x", key)})
    driver.run()
    return driver.table


@pytest.mark.faults
@pytest.mark.parametrize("optimize", sampled([True, False], [True]))
@pytest.mark.usefixtures("settings")
def test_any_name_works_in_operators(spark: SparkSession, tmp_path: Path, optimize: bool) -> None:
    """In joins in a row, aggregates, children, and in functions of users."""
    spark.conf.set(OPTIMIZE, str(optimize).lower())
    orders, customers = files(spark, tmp_path, "json")
    star = fk_join(joined(orders, customers), customers, FK, joiner=["left.*", "right.`r[x]` as `x.2`"], name="star")
    assert fired(star._plan.node, JOINS_SHARE_STAGES) == optimize
    groups = star.group_by(["`a.b`", "`of right.` as `two.words`"])
    summed = groups.agg(**{"how many": agg.count(), "`most`": agg.max("`[x]`"), "a.sum": agg.sum("`x.2`")})
    assert after(summed) == {
        ("a.b!", NASTY.index("ti`ck")): {"how many": 2, "`most`": "[x]!", "a.sum": 2 * NASTY.index("[x]")},
    }
    children = customers.with_children(orders, quoted(FK), column="the.`orders`")
    of_customer = dict(after(children)["c1"]["the.`orders`"])
    assert {key: order["sla/sh"] for key, order in of_customer.items()} == dict.fromkeys(("o1", "other"), "sla/sh!")

    def join(left: Any, right: Any) -> str:
        return f"{left['a.b']}{right['rti`ck']}"

    both = fk_join(orders, customers, lambda key, row: row[FK], joiner=join)
    listed = both.group_by(quoted(KEY)).aggregate(
        list, lambda key, row, them: [*them, row.value], _less, returns="array<string>"
    )
    assert after(listed) == {key: {"value": ["a.b!1"]} for key in ("o1", "other")}
    named = orders.group_by("`a.b`", value=["cls", "`sla/sh`"]).aggregate("", lambda key, row, all_: all_ + row["cls"], _less)
    assert after(named) == {"a.b!": {"value": "cls!cls!"}}
    reduced = orders.group_by("`a.b`", value=["cls", quoted(KEY)]).reduce(lambda before, row: row, lambda before, row: before)
    assert after(reduced)["a.b!"]["value"][KEY] == "other"


def _less(key: Any, value: Any, aggregate: Any) -> Any:
    return aggregate


@pytest.mark.usefixtures("settings")
def test_any_name_can_be_read_from_other_files(spark: SparkSession, tmp_path: Path) -> None:
    written = pa.Table.from_pylist([ORDER, {**ORDER, KEY: "other"}])
    for kind, write in (("csv", write_csv), ("parquet", pq.write_table)):
        (tmp_path / kind).mkdir()
        write(written, tmp_path / kind / f"1.{kind}")
    quotes = {"escape": '"', "ignoreLeadingWhiteSpace": "false"}
    of_csv = Table.from_files(spark, tmp_path / "csv", options=quotes, **OF_ORDERS)
    of_parquet = Table.from_files(spark, tmp_path / "parquet", **OF_ORDERS)
    columns = [quoted(name) for name in of_csv._planned.rest]
    rows = run(of_csv.changes.select(*columns).unionByName(of_parquet.changes.select(*columns)), tmp_path / "ck").rows
    assert [row.asDict() for row in rows] == [{name: ORDER[name] for name in of_csv._planned.rest}] * 4


def test_any_name_works_in_formats_of_topics_by_workers_and_by_spark(spark: SparkSession) -> None:
    ddl = ", ".join(f"{quoted(name)} string" for name in NASTY)
    row = {name: f"{name}!" for name in NASTY}
    text, debezium = Json(ddl, text="the `text`."), Debezium(ddl)
    for decode, read, message in (
        (text.decode, reader(text), row),
        (debezium.decode, reader(debezium), {"op": "c", "after": row}),
        (lambda column: decode_key(debezium, column), key_reader(debezium), {"payload": row}),
    ):
        data = json.dumps(message).encode()
        records = spark.createDataFrame([(data,)], "data binary")
        (by_spark,) = records.select(decode(F.col("data")).row.alias("row")).collect()
        assert read is not None
        assert by_spark.row.asDict() == read(pa.array([data])).rows[0].as_py() | row


LEFT = "id string, name string, a struct<x: int, y: string>, amount bigint, lsn bigint"
RIGHT_ROWS = "no string, x string, lsn bigint"


def table(spark: SparkSession, folder: Path, name: str, schema: str) -> Table:
    (folder / name).mkdir()
    about: Any = {"version": "lsn", "schema": schema, "format": "json", "name": name}
    return Table.from_files(spark, folder / name, key=schema.split()[0], **about)


def test_stars_are_written_out(spark: SparkSession, tmp_path: Path) -> None:
    left, right = table(spark, tmp_path, "t", LEFT), table(spark, tmp_path, "u", RIGHT_ROWS)
    joins = {
        "left.*": ("name", "a", "amount"),
        "*": ("left", "right"),
        "right.*": ("no", "x"),
        "left.a.*": ("x", "y"),
        "`left`.*": ("name", "a", "amount"),
    }
    for star, columns in joins.items():
        for given in (star, F.col(star)) if star != "*" else (star, F.expr("*")):
            made = fk_join(left, right, "a.y", joiner=[given])
            assert made._planned.rest == columns, star
    assert made.changes.columns[: 1 + len(columns)] == ["id", *columns]
    both = fk_join(left, right, "a.y", joiner=["left.*", "right.x as x2"])
    assert "left.name, left.a, left.amount, right.x as x2" in both.describe()
    assert left.map_values(["id", "name"])._planned.row_type.names == ["id", "name"]
    assert left.map_values([F.col("id"), F.col("name")])._planned.row_type.names == ["id", "name"]
    assert left.map_values(["*", "a.*"])._planned.rest == ("name", "a", "amount", "x", "y")
    assert left.group_by("a.*").count().key == ("x", "y")
    assert (
        left.group_by("id", "a.*").reduce(max, max)._planned.row_type.simpleString() == "struct<value:struct<x:int,y:string>>"
    )
    assert agg.count("*") == agg.count()


def test_a_struct_whose_name_begins_with_a_line_is_json_in_postgres_too(spark: SparkSession) -> None:
    changes = spark.createDataFrame([(["a"], [1])], "_tags array<string>, _version array<bigint>")
    sink = Postgres("it", "")
    sink._columns = ("_tags",)
    assert sink.as_taken(changes).collect() == [('["a"]',)]
