"""Mistakes while building, each with the way out that its message names; no query runs here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, TopologyError, cogroup, fk_join, window
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from fkjoin.kafka import Debezium, Json, Registry
from fkjoin.plan.physical import Physical
from fkjoin.sinks import Delta, Kafka, Parquet
from fkjoin.spark.schemas import struct_type
from tests.support.own_sink import Sqlite

pytestmark = pytest.mark.usefixtures("own_rules")

AVRO = '{"type": "record", "name": "order", "fields": [{"name": "customer", "type": "string"}]}'

ORDERS = "id string, customer bigint, amount double, text string, at timestamp, lsn bigint, named struct<n: string, m: bigint>"
CUSTOMERS = "id bigint, name string, tags map<string,string>, lsn bigint, at bigint"


class Tables:
    """Tables of folders that are empty."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.orders = self.of("orders", ORDERS)
        self.customers = self.of("customers", CUSTOMERS)

    def of(self, name: str, schema: str, /, **more: Any) -> Table:
        (self.folder / name).mkdir(exist_ok=True)
        about: dict[str, Any] = {"key": "id", "version": "lsn", "format": "json", "name": name, "schema": schema, **more}
        return Table.from_files(self.spark, self.folder / name, **about)

    def topic(self, table: Table, **more: Any) -> Physical:
        """The records of a topic, which no query reads."""
        return Kafka("orders", "127.0.0.1:1", **more).records(table._plan)

    def files(self, *names: str, text: str = '{"id": "a", "lsn": 1}\n', **more: Any) -> Table:
        for name in names:
            (self.folder / "in").mkdir(exist_ok=True)
            (self.folder / "in" / name).write_text(text)
        return Table.from_files(self.spark, self.folder / "in", **{"key": "id", "version": "lsn", **more})

    def by(self, key: str, name: str | None = None, **columns: Any) -> Table:
        return self.orders.group_by(key, name=name).agg(**columns)


Way = tuple[Callable[[Tables], Any], Callable[[Tables], Any]]
"""A call that is refused, and the call that its message advises."""

HEADER = "id,lsn,more\na,1,x\n"
TWICE = "id,more,lsn,more\na,x,1,y\n"
PLACES: dict[str, Any] = {"schema": "id string, a string, lsn bigint, b string", "options": {"enforceSchema": True}}
CORRUPT = "id string, lsn bigint, _corrupt_record string, t"


NOW: dict[str, Any] = {"trigger": {"availableNow": True}}


def one(row: Any) -> Any:
    return row


def clicks(t: Tables) -> DataFrame:
    """A stream of events: customers and times."""
    return t.spark.readStream.format("rate").load().withColumnRenamed("value", "buyer")


def enriched(t: Tables) -> Enriched:
    return t.customers.enrich(clicks(t), on="buyer", name="seen")


def written(t: Tables, table: Table | Enriched, *sinks: Any) -> None:
    """The table in a place of its own."""
    table.to(*sinks, checkpoint=t.folder / "ck", **NOW).awaitTermination()


def closing(t: Tables, key: Any = None, *, table: Table | None = None, **more: Any) -> Any:
    """Windows of ten minutes that close."""
    key = window("at", "10 minutes") if key is None else key
    return (table or timed(t)).group_by(key, **{"emit": "on-close", "name": "windows", **more})


SLOWLY: dict[str, Any] = {"trigger": "1 minute 30 seconds"}


def windows_of(t: Tables, idle: str) -> Table:
    """A view of windows that close."""
    table: Table = closing(t, idle=idle).count().filter("count > 1", name="large")
    return table


def timed(t: Tables, name: str = "timed", **more: Any) -> Table:
    """Orders with timestamps."""
    return t.of(name, ORDERS + ", sent timestamp", **{"timestamp": "sent", **more})


def staged(t: Tables, topics: tuple[str, str] | None) -> Table:
    """A join, as it is with topics between its stages: a broker need not be there."""
    joined = timed(t).join(timed(t, "other"), "text", joiner=["left.at"], name="joined")
    planned: Any = joined._planned
    return Table._of(replace(planned, node=replace(planned.node, topics=topics)))


WAYS: dict[str, Way] = {
    'emit: "on-close" is for windows; put fkjoin.window': (
        lambda t: closing(t, "customer").count(),
        lambda t: closing(t, [window("at", "10 minutes"), "customer"]).count(),
    ),
    'emit: "on-close" is for windows; give it to group_by': (
        lambda t: timed(t).filter("amount > 0", emit="on-close"),
        lambda t: closing(t).count(),
    ),
    "grace: it is for windows": (
        lambda t: timed(t).group_by("customer", grace="1 minute").count(),
        lambda t: closing(t, grace="1 minute").count(),
    ),
    "emit: a window is sent when it closes": (
        lambda t: closing(t, emit="on-change").count(),
        lambda t: closing(t, emit="on-close").count(),
    ),
    "deployment: windows close in one query": (
        lambda t: closing(t, deployment="staged", application="shop").count(),
        lambda t: closing(t, deployment="fused").count(),
    ),
    "key: the window's time text is string": (
        lambda t: closing(t, window("text", "10 minutes")).count(),
        lambda t: closing(t, window("cast(text as timestamp)", "10 minutes")).count(),
    ),
    "emit: kept is held back, and its rows would come late": (
        lambda t: closing(t, table=timed(t).filter("amount > 0", name="kept", emit="periodic")).count(),
        lambda t: closing(t, table=timed(t).filter("amount > 0", name="kept")).count(),
    ),
    "key: windows is of windows itself": (
        lambda t: closing(t, window("window_end", "1 hour"), table=closing(t).count(), name="hours").count(),
        lambda t: closing(t, window("at", "1 hour"), name="hours").count(),
    ),
    "key: joined is staged, and windows close in one query": (
        lambda t: closing(t, table=staged(t, ("to", "back"))).count(),
        lambda t: closing(t, table=staged(t, None)).count(),
    ),
    "key: the table timed has no timestamps": (
        lambda t: closing(t, table=timed(t, timestamp=None)).count(),
        lambda t: closing(t, table=timed(t, timestamp="sent")).count(),
    ),
    "key: there are two windows": (
        lambda t: closing(t, [window("at", "10 minutes"), window("sent", "10 minutes")]).count(),
        lambda t: closing(t).count(),
    ),
    "window: size and slide must be longer than nothing": (
        lambda t: window("at", "0 minutes"),
        lambda t: closing(t, window("at", "10 minutes")).count(),
    ),
    "slide: 1 hour is longer than the size": (
        lambda t: window("at", "10 minutes", "1 hour"),
        lambda t: closing(t, window("at", "1 hour", "1 hour")).count(),
    ),
    "slide: a row would be in more than 1000 windows": (
        lambda t: window("at", "1 hour", "1 second"),
        lambda t: closing(t, window("at", "1 hour", "1 minute")).count(),
    ),
    "grace: 'soon' is no interval": (
        lambda t: closing(t, grace="soon").count(),
        lambda t: closing(t, grace="10 seconds").count(),
    ),
    "ahead: -1 hour is less than nothing": (
        lambda t: closing(t, ahead="-1 hour").count(),
        lambda t: closing(t, ahead="1 hour").count(),
    ),
    "grace: -1 minute is less than nothing": (
        lambda t: closing(t, grace="-1 minute").count(),
        lambda t: closing(t, grace="2 minutes").count(),
    ),
    "idle: 10 ms is too short": (
        lambda t: closing(t, idle="10 ms").count(),
        lambda t: closing(t, idle="1 second").count(),
    ),
    "trigger: 1 minute 30 seconds is longer than the idle time of windows, 1 minute": (
        lambda t: windows_of(t, "1 minute").to_parquet(t.folder / "o", checkpoint=t.folder / "ck", **SLOWLY),
        lambda t: (windows_of(t, "1 minute")._when("15 seconds"), windows_of(t, "10 minutes")._when(**SLOWLY)),
    ),
    "adder: array(amount) is array<": (
        lambda t: t.orders.group_by("customer").aggregate(0, "array(amount)", "aggregate"),
        lambda t: t.orders.group_by("customer").aggregate([], "array(amount)", "aggregate", returns="array<double>"),
    ),
    "adder: an expression knows no windows": (
        lambda t: closing(t).aggregate(0.0, "aggregate + amount", "aggregate - amount"),
        lambda t: closing(t).agg(total=agg.sum("amount")),
    ),
    "materialize: windows is of windows": (
        lambda t: closing(t).count().materialize("windows"),
        lambda t: closing(t, table=timed(t).materialize("kept")).count(),
    ),
    "tables[0]: windows is of windows that close": (
        lambda t: cogroup(closing(t).count(), closing(t, name="others").agg(total=agg.sum("amount"))),
        lambda t: closing(t).count().join(closing(t, name="others").agg(total=agg.sum("amount"))),
    ),
    "sum: text is string, a number is needed": (
        lambda t: t.orders.group_by("customer").sum("text"),
        lambda t: t.orders.group_by("customer").sum("cast(text as decimal(20, 2))"),
    ),
    "max: named is struct": (
        lambda t: t.orders.group_by("customer").max("named"),
        lambda t: t.orders.group_by("customer").max("named.n"),
    ),
    "count_distinct: tags is map": (
        lambda t: t.customers.group_by("name").agg(n=agg.count_distinct("tags")),
        lambda t: t.customers.group_by("name").agg(n=agg.count_distinct("array_sort(map_entries(tags))")),
    ),
    "string_agg: amount is double, text or binary is needed": (
        lambda t: t.orders.group_by("customer").agg(all=agg.string_agg("amount")),
        lambda t: t.orders.group_by("customer").agg(all=agg.string_agg("cast(amount as string)")),
    ),
    "having: n is bigint, a boolean is needed": (
        lambda t: t.by("customer", having="n", n=agg.count()),
        lambda t: t.by("customer", having="n > 1", n=agg.count()),
    ),
    "having: only Spark can evaluate": (
        lambda t: t.by("customer", having="cast(n as string) like '1%'", n=agg.count()),
        lambda t: t.by("customer", n=agg.count()).filter("cast(n as string) like '1%'"),
    ),
    "column: customers has a column 'name' already": (
        lambda t: t.customers.with_children(t.orders, "customer", column="name"),
        lambda t: t.customers.with_children(t.orders, "customer", column="orders"),
    ),
    "tables[1]: customers is no aggregate": (
        lambda t: cogroup(t.by("customer", n=agg.count()), t.customers),
        lambda t: cogroup(t.by("customer as id", n=agg.count()), t.customers.group_by("id").agg(m=agg.count())),
    ),
    "tables[1]: sums is given twice": (
        lambda t: cogroup(t.by("customer", "sums", n=agg.count()), t.by("customer", "sums", m=agg.count())),
        lambda t: cogroup(t.by("customer", "sums", n=agg.count()), t.by("customer", "counts", m=agg.count())),
    ),
    "tables[1]: b is grouped by": (
        lambda t: cogroup(t.by("customer", "a", n=agg.count()), t.by("text", "b", m=agg.count())),
        lambda t: cogroup(t.by("customer", "a", n=agg.count()), t.by("cast(text as bigint) as customer", "b", m=agg.count())),
    ),
    "tables[1]: another table has the column 'n' too": (
        lambda t: cogroup(t.by("customer", "a", n=agg.count()), t.by("customer", "b", n=agg.count())),
        lambda t: cogroup(t.by("customer", "a", n=agg.count()), t.by("customer", "b", m=agg.count())),
    ),
    "extractor: named.* is 2 columns where one is needed": (
        lambda t: fk_join(t.orders, t.customers, "named.*"),
        lambda t: fk_join(t.orders, t.customers, "named.m"),
    ),
    "key: name at least one column of": (lambda t: t.of("b", ORDERS, key=[]), lambda t: t.of("b", ORDERS, key=["id"])),
    "key: id is string collate": (
        lambda t: t.of("b", "id string collate UTF8_LCASE, lsn bigint"),
        lambda t: t.of("b", "id string, lsn bigint"),
    ),
    "schema: ": (
        lambda t: t.files("1.csv", text=HEADER, schema="id string, lsn bigint, other string"),
        lambda t: t.files("1.csv", text=HEADER, schema="id string, lsn bigint, more string"),
    ),
    "path: file": (
        lambda t: t.files("1.csv", text=TWICE),
        lambda t: t.files("1.csv", text=TWICE, **PLACES),
    ),
    "condition: amount is double, a boolean is needed": (
        lambda t: t.orders.filter("amount"),
        lambda t: t.orders.filter("amount > 1"),
    ),
    "path: {in} has files of several kinds": (
        lambda t: t.files("1.csv", "2.json", text=HEADER),
        lambda t: t.files("1.csv", "2.json", text=HEADER, format="csv", options={"pathGlobFilter": "*.csv"}),
    ),
    "path: {in} does not exist; create the folder first": (
        lambda t: t.files(schema=ORDERS, format="json"),
        lambda t: ((t.folder / "in").mkdir(), t.files(schema=ORDERS, format="json")),
    ),
    "path: {in} cannot be read to learn its columns": (
        lambda t: ((t.folder / "in").mkdir(exist_ok=True), t.files(format="json")),
        lambda t: t.files(format="json", schema=ORDERS),
    ),
    "schema: column t is timestamp, and Spark's JSON reader": (
        lambda t: t.files("1.json", schema=f"{CORRUPT} timestamp"),
        lambda t: (
            t.files("1.json", schema=f"{CORRUPT} bigint").map_values(["timestamp_millis(t) as t"]),
            t.files("1.json", schema=f"{CORRUPT} string").map_values(["cast(t as timestamp) as t"]),
        ),
    ),
    "right: timestamps are bigint here and timestamp in left": (
        lambda t: fk_join(t.of("a", ORDERS, timestamp="at"), t.of("b", CUSTOMERS, timestamp="at"), "customer"),
        lambda t: fk_join(
            t.of("a", ORDERS, timestamp="at"), t.of("b", CUSTOMERS, timestamp="timestamp_millis(at)"), "customer"
        ),
    ),
    "extractor: 2 columns given, but the key": (
        lambda t: fk_join(t.orders, t.customers, ["customer", "amount"]),
        lambda t: fk_join(t.orders, t.customers, ["customer"]),
    ),
    "on: 2 columns given, but the key": (
        lambda t: t.orders.join(t.customers, on=["customer", "amount"]),
        lambda t: t.orders.join(t.customers, on=["customer"]),
    ),
    "right: the key of customers is id bigint, and that of": (
        lambda t: t.orders.join(t.customers),
        lambda t: (t.orders.join(t.customers, on="customer"), t.orders.rekey("customer", name="r").join(t.customers)),
    ),
    "right: the key of b is (id, customer), and that of orders is (customer, id): columns": (
        lambda t: t.of("orders", ORDERS, key=["customer", "id"]).join(t.of("b", ORDERS, key=["id", "customer"])),
        lambda t: t.of("orders", ORDERS, key=["customer", "id"]).join(t.of("b", ORDERS).rekey(["customer", "id"], name="r")),
    ),
    "right: orders is joined with itself, or another": (
        lambda t: t.orders.join(t.of("b", ORDERS, name="orders")),
        lambda t: t.orders.join(t.of("b", ORDERS, name="b")),
    ),
    "deployment: a join by primary key is one stage": (
        lambda t: t.orders.join(t.of("b", ORDERS), deployment="staged"),
        lambda t: t.orders.join(t.of("b", ORDERS)),
    ),
    "spread: a row has one partner by primary key; leave": (
        lambda t: t.orders.join(t.of("b", ORDERS), spread=2),
        lambda t: (t.orders.join(t.of("b", ORDERS)), t.orders.join(t.customers, on="customer", spread=2)),
    ),
    "spread: partitions of topics say where rows": (
        lambda t: fk_join(t.orders, t.customers, "customer", spread=2, deployment="staged"),
        lambda t: fk_join(t.orders, t.customers, "customer", spread=2, deployment="fused"),
    ),
    'how: "outer" is of joins by primary key': (
        lambda t: t.orders.join(t.customers, on="customer", how="outer"),
        lambda t: (t.orders.join(t.of("b", ORDERS), how="outer"), t.orders.join(t.customers, on="customer", how="left")),
    ),
    "agg: name each column": (
        lambda t: t.orders.group_by("customer").agg(),
        lambda t: t.orders.group_by("customer").agg(orders=agg.count()),
    ),
    "deployment: the staged deployment aggregates": (
        lambda t: t.orders.group_by("customer", deployment="staged").count(),
        lambda t: t.orders.group_by("customer", deployment="fused").count(),
    ),
    "left: the staged deployment joins tables read": (
        lambda t: fk_join(t.orders, t.customers, "customer", deployment="staged"),
        lambda t: fk_join(t.orders, t.customers, "customer", deployment="fused"),
    ),
    "name: two operators of one query count": (
        lambda t: t.by("customer", "by", n=agg.count()).group_by("n", name="by-regroup").count().changes,
        lambda t: t.by("customer", "by", n=agg.count()).group_by("n", name="counts").count().changes,
    ),
    "name: 'orders' already names an input": (
        lambda t: fk_join(t.orders, t.customers, "customer", name="orders"),
        lambda t: fk_join(t.orders, t.customers, "customer", name="joined"),
    ),
    "df: a batch DataFrame has no changes to follow": (
        lambda t: Table.from_stream(t.spark.range(3), key="id", version="id"),
        lambda t: Table.from_stream(t.spark.readStream.schema(ORDERS).json(f"{t.folder}/orders"), key="id", version="lsn"),
    ),
    "version: name the columns that order the": (
        lambda t: t.of("b", ORDERS, version=[]),
        lambda t: t.of("b", ORDERS, version=["lsn"]),
    ),
    "key: name at least one column or expression": (lambda t: t.orders.group_by([]), lambda t: t.orders.group_by(["customer"])),
    "agg: amount + 1 is not the plain name of a column": (
        lambda t: t.orders.group_by("customer", value="amount").sum("amount + 1"),
        lambda t: t.orders.group_by("customer", value="amount + 1 as amount").sum("amount"),
    ),
    "extractor: one(row) is called with (key, row); let it": (
        lambda t: fk_join(t.orders, t.customers, one),
        lambda t: fk_join(t.orders, t.customers, lambda key, row: row.customer),
    ),
    "name: two sources of this join are called 'it'": (
        lambda t: fk_join(t.of("it", ORDERS), t.of("customers", CUSTOMERS, name="it"), "customer"),
        lambda t: fk_join(t.of("it", ORDERS), t.of("customers", CUSTOMERS, name="others"), "customer"),
    ),
    "others[0]: orders is merged with itself, or another": (
        lambda t: t.orders.merge(t.of("b", ORDERS, name="orders")),
        lambda t: t.orders.merge(t.of("b", ORDERS, name="b")),
    ),
    "others[0]: the row of b is": (
        lambda t: t.customers.merge(t.of("b", CUSTOMERS.replace("name string", "name bigint"))),
        lambda t: t.customers.merge(
            t.of("b", CUSTOMERS.replace("name string", "name bigint")).map_values(
                ["id", "cast(name as string) as name", "tags", "at"]
            )
        ),
    ),
    "agg: column 'customer' is already there as the key": (
        lambda t: t.orders.group_by("customer").agg(customer=agg.count()),
        lambda t: t.orders.group_by("customer").agg(orders=agg.count()),
    ),
    "Json: the schema has a column 'whole' already": (
        lambda _: Json("id bigint, whole string", text="whole").reader(),
        lambda _: Json("id bigint, whole string", text="line").reader(),
    ),
    "Debezium: a key's column cannot be called 'payload'": (
        lambda _: Debezium("payload bigint").key_reader(),
        lambda _: Debezium("id bigint").key_reader(),
    ),
    "v: schema 'bigint' is not a list of columns": (
        lambda _: struct_type("bigint", "v"),
        lambda _: struct_type("id bigint, name string", "v"),
    ),
    "joiner: left table bare has no columns besides its key": (
        lambda t: fk_join(t.of("bare", "id bigint, lsn bigint"), t.customers, "id", joiner=["left.*"]),
        lambda t: fk_join(t.of("bare", "id bigint, lsn bigint"), t.customers, "id", joiner=["left.*", "right.name"]),
    ),
    "returns: give the aggregate's Spark type": (
        lambda t: t.orders.group_by("customer").aggregate([], max, max),
        lambda t: t.orders.group_by("customer").aggregate([], max, max, returns="array<string>"),
    ),
    "orders: a source's changes come as they are read": (
        lambda t: Delta(t.folder / "delta").begin(t.orders._plan),
        lambda t: Delta(t.folder / "delta").begin(t.orders.map_values(["text"]).materialize("orders")._plan),
    ),
    "named: '_version' is the name of a column that results": (
        lambda t: Delta(t.folder / "d").begin(
            t.orders.map_values(["text as _version"], name="named").materialize("named")._plan
        ),
        lambda t: Delta(t.folder / "d").begin(t.orders.map_values(["text as was"], name="named").materialize("named")._plan),
    ),
    "path: a table with the columns batch and fkjoin_batch": (
        lambda t: written(t, t.orders.map_values(["text as batch", "text as fkjoin_batch"]), Parquet(t.folder / "o")),
        lambda t: written(t, t.orders.map_values(["text as batch", "text as other"]), Parquet(t.folder / "o")),
    ),
    "path: {o} has the folder batch=0 already": (
        lambda t: (
            (t.folder / "o" / "batch=0").mkdir(parents=True, exist_ok=True),
            written(t, t.orders.map_values(["text as batch"]), Parquet(t.folder / "o")),
        ),
        lambda t: written(t, t.orders.map_values(["text as batch"]), Parquet(t.folder / "another")),
    ),
    "String writes one column of text or bytes": (
        lambda t: t.topic(t.orders, value="string"),
        lambda t: (t.topic(t.orders, value=Json("")), t.topic(t.orders, value=F.col("text"))),
    ),
    "value: Debezium is a format to read only": (
        lambda t: t.topic(t.orders, value=Debezium("id string")),
        lambda t: (t.topic(t.orders, value=Json("")), t.topic(t.orders.map_values(["text"]), value="string")),
    ),
    "rows: text is string, an array is needed": (
        lambda t: t.orders.flat_map("text", key=["id", "col"]),
        lambda t: t.orders.flat_map("split(text, ' ')", key=["id", "col"]),
    ),
    "returns: it is the type of what a function returns": (
        lambda t: t.orders.flat_map("array(customer)", key=["id", "col"], returns="col bigint"),
        lambda t: t.orders.flat_map("array(customer)", key=["id", "col"]),
    ),
    "returns: a function needs the columns of the rows": (
        lambda t: t.orders.flat_map(lambda key, row: [], key="sku"),
        lambda t: t.orders.flat_map(lambda key, row: [], key="sku", returns="sku string, n bigint"),
    ),
    "cols: id belongs to the key of orders": (
        lambda t: t.orders.drop("id"),
        lambda t: t.orders.rekey("customer").drop("id"),
    ),
    "positions: a row that sums up others, has": (
        lambda t: t.topic(t.orders.group_by("customer").count(), positions=True),
        lambda t: t.topic(t.orders.group_by("customer").count()),
    ),
    "Registry: to write, give write_schema= and subject=": (
        lambda t: t.topic(t.orders, value=Registry("avro", "id string", "http://127.0.0.1:1")),
        lambda t: t.topic(
            t.orders, value=Registry("avro", "id string", "http://127.0.0.1:1", write_schema=AVRO, subject="orders-value")
        ),
    ),
    "Registry: fkjoin reads Protobuf and does not write it; write with": (
        lambda t: t.topic(t.orders, value=Registry("protobuf", "id string", "http://127.0.0.1:1")),
        lambda t: t.topic(
            t.orders, value=Registry("avro", "id string", "http://127.0.0.1:1", write_schema=AVRO, subject="orders-value")
        ),
    ),
    "events: a batch DataFrame is no stream; read it": (
        lambda t: t.customers.enrich(t.spark.range(3), on="id"),
        lambda t: t.customers.enrich(t.spark.readStream.format("rate").load(), on="value"),
    ),
    "events: rows of this stream are not final when they come": (
        lambda t: t.customers.enrich(clicks(t).groupBy("buyer").count(), on="buyer"),
        lambda t: (
            Table.from_stream(clicks(t), key="timestamp", version="buyer + 1").group_by("buyer").count().join(t.customers)
        ),
    ),
    "events: 'name' is a column of the events and of table": (
        lambda t: t.customers.enrich(clicks(t).withColumn("name", F.lit("x")), on="buyer"),
        lambda t: (
            t.customers.enrich(clicks(t).withColumn("title", F.lit("x")), on="buyer"),
            t.customers.select("tags").enrich(clicks(t).withColumn("name", F.lit("x")), on="buyer"),
        ),
    ),
    "events_name: these events are called seen; leave it out": (
        lambda t: t.customers.select("name as other").enrich(enriched(t), on="buyer", events_name="clicks"),
        lambda t: t.customers.select("name as other").enrich(enriched(t), on="buyer"),
    ),
    "events: orders is a table, whose rows change": (
        lambda t: t.customers.enrich(t.orders, on="customer"),  # type: ignore[arg-type]
        lambda t: (
            t.orders.join(t.customers, on="customer"),
            t.customers.select("name").enrich(t.orders.changes, on="customer"),
        ),
    ),
    "key: events have no key that a Json could write": (
        lambda t: Kafka("seen", "127.0.0.1:1", key=Json("")).records(enriched(t)._plan),
        lambda t: Kafka("seen", "127.0.0.1:1", key="concat(buyer, name)").records(enriched(t)._plan),
    ),
    "seen: these are events, and": (
        lambda t: written(t, enriched(t), Sqlite(t.folder / "shop.db", "seen")),
        lambda t: Delta(t.folder / "events").begin(enriched(t)._plan),
    ),
    "path: {events} has events, and no changes of a table": (
        lambda t: (
            (t.folder / "events" / "batch=00000000-01234567").mkdir(parents=True),
            (t.folder / "events" / "_fkjoin.json").write_text('{"format": 1, "events": true}'),
            t.spark.range(1).write.mode("append").parquet(str(t.folder / "events" / "batch=00000000-01234567")),
            Table.from_fkjoin(t.spark, t.folder / "events"),
        ),
        lambda t: t.spark.read.parquet(str(t.folder / "events")),
    ),
    "sinks: name one at least": (
        lambda t: written(t, t.orders),
        lambda t: written(t, t.orders, Parquet(t.folder / "o")),
    ),
    "sinks: a str is none; give sinks of fkjoin": (
        lambda t: written(t, t.orders, "o"),
        lambda t: written(t, t.orders, Parquet(t.folder / "o")),
    ),
}


@pytest.mark.parametrize("beginning", WAYS)
def test_the_way_out_that_is_named_is_one(spark: SparkSession, tmp_path: Path, beginning: str) -> None:
    wrong, right = WAYS[beginning]
    tables = Tables(spark, tmp_path)
    with pytest.raises(TopologyError) as found:
        wrong(tables)
    places = {"events": str(tmp_path / "events"), "in": str(tmp_path / "in"), "o": f"file:{tmp_path / 'o'}"}
    assert str(found.value).startswith(re.sub(r"{(\w+)}", lambda place: places[place[1]], beginning))
    right(tables)
