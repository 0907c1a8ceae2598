"""Mistakes while building, and the ways out that messages name; no query runs here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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

pytestmark = pytest.mark.usefixtures("small_tables")

AVRO = '{"type": "record", "name": "order", "fields": [{"name": "customer", "type": "string"}]}'

ORDERS = "id string, customer bigint, amount double, text string, at timestamp, lsn bigint, named struct<n: string, m: bigint>"
CUSTOMERS = "id bigint, name string, tags map<string,string>, lsn bigint, at bigint"


LINE = '{"id": "a", "lsn": 1}\n'


class Tables:
    """Tables of a folder that is empty, each made once in the module; and a folder of the test's own."""

    def __init__(self, spark: SparkSession, empty: Path) -> None:
        self.spark, self.empty, self.folder = spark, empty, empty
        self.known: dict[str, Table] = {}

    @property
    def orders(self) -> Table:
        return self.of("orders", ORDERS)

    @property
    def customers(self) -> Table:
        return self.of("customers", CUSTOMERS)

    def of(self, name: str, /, schema: str, **more: Any) -> Table:
        about: dict[str, Any] = {"key": "id", "version": "lsn", "format": "json", "name": name, "schema": schema, **more}
        if repr(about) not in self.known:
            self.known[repr(about)] = Table.from_files(self.spark, self.empty, **about)
        return self.known[repr(about)]

    def topic(self, table: Table, **more: Any) -> Physical:
        """The records of a topic, which no query reads."""
        return Kafka("orders", "127.0.0.1:1", **more).records(table._plan)

    def files(self, names: Iterable[str] = (), text: str = LINE, **more: Any) -> Table:
        for name in names:
            (self.folder / "in").mkdir(exist_ok=True)
            (self.folder / "in" / name).write_text(text)
        return Table.from_files(self.spark, self.folder / "in", **{"key": "id", "version": "lsn", **more})

    def by(self, key: str, name: str | None = None, **columns: Any) -> Table:
        return self.orders.group_by(key, name=name).agg(**columns)


Way = tuple[Callable[[Tables], Any], ...]
"""A call that is refused, and the call that its message advises."""

HEADER = "id,lsn,more\na,1,x\n"
TWICE = "id,more,lsn,more\na,x,1,y\n"
PLACES: dict[str, Any] = {"schema": "id string, a string, lsn bigint, b string", "options": {"enforceSchema": True}}
BOTH = ["1.csv", "2.json"]
ONLY_CSV: dict[str, Any] = {"format": "csv", "options": {"pathGlobFilter": "*.csv"}}
CORRUPT = "id string, lsn bigint, _corrupt_record string, t"


NOW: dict[str, Any] = {"trigger": {"availableNow": True}}


def one(row: Any) -> Any:
    return row


def both(key: Any, row: Any) -> Any:
    return [{"col": 1}]


def clicks(t: Tables) -> DataFrame:
    """A stream of events: customers and times."""
    return t.spark.readStream.format("rate").load().withColumnRenamed("value", "buyer")


def enriched(t: Tables, events: Any = None, **more: Any) -> Enriched:
    stream = clicks(t) if events is None else events
    return t.customers.enrich(stream, **{"on": "buyer", "name": "seen"} | more)


def written(t: Tables, table: Table | Enriched, *sinks: Any) -> None:
    """The table in a place of its own."""
    table.to(*sinks, checkpoint=t.folder / "ck", **NOW).awaitTermination()


def closing(t: Tables, key: Any = None, *, table: Table | None = None, **more: Any) -> Any:
    """Windows of ten minutes that close."""
    return (table or timed(t)).group_by(key or window("at", "10 minutes"), **{"emit": "on-close", "name": "windows", **more})


def timed(t: Tables, name: str = "timed", **more: Any) -> Table:
    """Orders with timestamps."""
    return t.of(name, ORDERS + ", sent timestamp", **{"timestamp": "sent", **more})


def kept(t: Tables, emit: Any = "on-change") -> Table:
    return timed(t).filter("amount > 0", name="kept", emit=emit)


def staged(t: Tables, topics: tuple[str, str] | None = None) -> Table:
    """A join, as it is with topics between its stages: a broker need not be there."""
    joined = timed(t).join(timed(t, "other"), "text", joiner=["left.at"], name="joined")
    planned: Any = joined._planned
    return Table._of(replace(planned, node=replace(planned.node, topics=topics)))


WAYS: dict[str, Way] = {
    'emit: "on-close" is for windows; give it to group_by': (
        lambda t: timed(t).filter("amount > 0", emit="on-close"),
        lambda t: closing(t).count(),
    ),
    "key: windows already aggregates by windows": (
        lambda t: closing(t, window("window_end", "1 hour"), table=closing(t).count(), name="hours").count(),
        lambda t: closing(t, window("at", "1 hour"), name="hours").count(),
    ),
    "adder: an expression cannot aggregate by windows": (
        lambda t: closing(t).aggregate(0.0, "aggregate + amount", "aggregate - amount"),
        lambda t: closing(t).agg(total=agg.sum("amount")),
    ),
    "materialize: windows aggregates by windows": (
        lambda t: closing(t).count().materialize("windows"),
        lambda t: closing(t, table=timed(t).materialize("kept")).count(),
    ),
    "tables[0]: windows aggregates by windows that close": (
        lambda t: cogroup(closing(t).count(), closing(t, name="others").agg(total=agg.sum("amount"))),
        lambda t: closing(t).count().join(closing(t, name="others").agg(total=agg.sum("amount"))),
    ),
    "count_distinct: tags is map": (
        lambda t: t.customers.group_by("name").agg(n=agg.count_distinct("tags")),
        lambda t: t.customers.group_by("name").agg(n=agg.count_distinct("array_sort(map_entries(tags))")),
    ),
    "having: only Spark can evaluate": (
        lambda t: t.by("customer", having="cast(n as string) like '1%'", n=agg.count()),
        lambda t: t.by("customer", n=agg.count()).filter("cast(n as string) like '1%'"),
    ),
    "path: {in} does not exist; create the folder first": (
        lambda t: t.files(schema=ORDERS, format="json"),
        lambda t: ((t.folder / "in").mkdir(), t.files(schema=ORDERS, format="json")),
    ),
    "path: {in} cannot be read to learn its columns": (
        lambda t: ((t.folder / "in").mkdir(exist_ok=True), t.files(format="json")),
        lambda t: t.files(format="json", schema=ORDERS),
    ),
    "schema: column t is timestamp, but with the ": (
        lambda t: t.files(["1.json"], schema=f"{CORRUPT} timestamp"),
        lambda t: (
            t.files(["1.json"], schema=f"{CORRUPT} bigint").map_values("timestamp_millis(t) as t"),
            t.files(["1.json"], schema=f"{CORRUPT} string").map_values("cast(t as timestamp) as t"),
        ),
    ),
    "right: timestamps are bigint here and timestamp in left": (
        lambda t: fk_join(t.of("a", ORDERS, timestamp="at"), t.of("b", CUSTOMERS, timestamp="at"), "customer"),
        lambda t: fk_join(
            t.of("a", ORDERS, timestamp="at"), t.of("b", CUSTOMERS, timestamp="timestamp_millis(at)"), "customer"
        ),
    ),
    "right: the key of customers is id bigint, and the key of": (
        lambda t: t.orders.join(t.customers),
        lambda t: (t.orders.join(t.customers, on="customer"), t.orders.rekey("customer", name="r").join(t.customers)),
    ),
    "right: the key of b is (id, customer), and the key of orders is (customer, id): columns": (
        lambda t: t.of("orders", ORDERS, key=["customer", "id"]).join(t.of("b", ORDERS, key=["id", "customer"])),
        lambda t: t.of("orders", ORDERS, key=["customer", "id"]).join(t.of("b", ORDERS).rekey(["customer", "id"], name="r")),
    ),
    "name: two operators of one query count": (
        lambda t: t.by("customer", "by", n=agg.count()).group_by("n", name="by-regroup").count().changes,
        lambda t: t.by("customer", "by", n=agg.count()).group_by("n", name="counts").count().changes,
    ),
    "agg: amount + 1 is not the plain name of a column": (
        lambda t: t.orders.group_by("customer", value="amount").sum("amount + 1"),
        lambda t: t.orders.group_by("customer", value="amount + 1 as amount").sum("amount"),
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
    "joiner: left table bare has no columns besides its key": (
        lambda t: fk_join(t.of("bare", "id bigint, lsn bigint"), t.customers, "id", joiner=["left.*"]),
        lambda t: fk_join(t.of("bare", "id bigint, lsn bigint"), t.customers, "id", joiner=["left.*", "right.name"]),
    ),
    "path: {o} already contains the folder batch=0": (
        lambda t: (
            (t.folder / "o" / "batch=0").mkdir(parents=True, exist_ok=True),
            written(t, t.orders.map_values(["text as batch"]), Parquet(t.folder / "o")),
        ),
        lambda t: written(t, t.orders.map_values(["text as batch"]), Parquet(t.folder / "another")),
    ),
    "events: this stream may still change its rows": (
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
    "seen: these are events, which have no key": (
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
}


def odd(t: Tables) -> Table:
    """A table with a column that has a collation, and a struct."""
    return t.of("odd", LCASE)


def join_by_key(t: Tables, right: str = "b", **more: Any) -> Table:
    return t.orders.join(t.of("b", ORDERS, name=right), **more)


def join_by_customer(t: Tables, right: str = "customers", **more: Any) -> Table:
    return fk_join(t.orders, t.of("c", CUSTOMERS, name=right), **{"extractor": "customer"} | more)


def summed(t: Tables, key: str = "customer", column: str = "m", **more: Any) -> Table:
    return t.orders.group_by(key, **{"name": "b"} | more).agg(**{column: agg.count()})


def aggregated(t: Tables, **more: Any) -> Table:
    usual: dict[str, Any] = {"initializer": [], "adder": max, "subtractor": "aggregate"}
    return t.orders.group_by("customer").aggregate(**usual | {"returns": "array<string>"} | more)


def kept_texts(t: Tables, column: str = "text") -> Table:
    return t.orders.map_values([column], name="kept").materialize("kept")


def with_arguments(call: Callable[[Tables, Any], Any], given: Any) -> Callable[[Tables], Any]:
    return lambda t: call(t, given)


MINUTES = window("at", "10 minutes")
STAGED = {"deployment": "staged", "application": "shop"}
LCASE = "id string, name string collate UTF8_LCASE, s struct<x: int, y: string>, lsn bigint"
Cases = dict[str, tuple[Any, ...]]
"""Arguments that are refused, and those that the message advises; … stands for words of it."""

ON_CLOSE: Cases = {
    'emit: "on-close" is for windows; put fkjoin.window': ({"key": "customer"}, {"key": [MINUTES, "customer"]}),
    "grace: this argument is only": ({"key": "customer", "emit": "on-change", "grace": "1 minute"}, {"grace": "1 minute"}),
    "emit: a window is sent once, when it closes": ({"emit": "on-change"}, {"emit": "on-close"}),
    "deployment: windows cannot be staged": (STAGED, {"deployment": "fused"}),
    "key: the window's time text is string": (
        {"key": window("text", "10 minutes")},
        {"key": window("cast(text as timestamp)", "10 minutes")},
    ),
    "key: only one window can be in a key": ({"key": [MINUTES, window("sent", "10 minutes")]}, {"key": [MINUTES]}),
    "grace: 'soon' is not an interval": ({"grace": "soon"}, {"grace": "10 seconds"}),
    "ahead: -1 hour is less than zero": ({"ahead": "-1 hour"}, {"ahead": "1 hour"}),
    "idle: 10 ms is too short": ({"idle": "10 ms"}, {"idle": "1 second"}),
}
WINDOWED: Cases = {
    "emit: kept sends its rows at intervals, and they": (lambda t: kept(t, "periodic"), kept),
    "key: joined is staged, and windows cannot read": (lambda t: staged(t, ("to", "back")), staged),
    "key: the table timed has no timestamps": (lambda t: timed(t, timestamp=None), timed),
}
WINDOWS: Cases = {
    "window: size and slide must be positive": (["0 minutes"], ["10 minutes"]),
    "slide: 1 hour is longer than the size": (["10 minutes", "1 hour"], ["1 hour", "1 hour"]),
    "slide: a row would be in more than 1000 windows": (["1 hour", "1 second"], ["1 hour", "1 minute"]),
}
FILES: Cases = {
    "schema: ": ({"schema": "id string, lsn int, no int"}, {"schema": "id string, lsn int, more int"}),
    "path: file": ({"text": TWICE}, {"text": TWICE, **PLACES}),
    "path: {in} has files of several kinds": ({"names": BOTH}, {"names": BOTH, **ONLY_CSV}),
}
SOURCES: Cases = {
    "key: name at least one column of": ({"key": []}, {"key": ["id"]}),
    "key: id is string collate": ({"schema": "id string collate UTF8_LCASE, lsn bigint"}, {}),
    "key: b has no column 'idd'; did you mean 'id'? It has: id, customer": ({"key": "idd"},),
    "key: a column name is needed, 3 is a int": ({"key": 3},),
    "version: name the columns that order the": ({"version": []}, {"version": ["lsn"]}),
    "version: text is string, whole numbers are needed": ({"version": "text"},),
    "version: at is timestamp, whole numbers are needed; cast it…unix_micros": ({"version": "at"},),
    "deleted: text is string, a boolean is needed": ({"deleted": "text"},),
    "deleted: in \"opp = 'd'\", …has no column 'opp'": ({"deleted": "opp = 'd'"},),
    "timestamp: text is string, a timestamp or bigint is needed": ({"timestamp": "text"},),
    "timestamp: a column name, SQL text or Column is needed": ({"timestamp": 3},),
    "on_error: 'ignore' is not one of fail, dead-letter, skip": ({"on_error": "ignore"},),
    "format: 'orc' is not one of json, parquet, csv": ({"format": "orc"},),
    "…names that begin like '__fkjoin_row'": ({"schema": f"{ORDERS}, __fkjoin_row int"},),
}
STREAMS: Cases = {
    "df: a batch DataFrame has no changes to follow": (lambda t: t.spark.range(3), clicks),
    "df: a streaming DataFrame is needed, this is a list": (lambda t: [1],),
    "df: a column has no name": (lambda t: clicks(t).withColumnRenamed("timestamp", ""),),
    "df: two columns are called 'v' and 'V', which Spark does not distinguish; rename": (
        lambda t: clicks(t).selectExpr("buyer", "buyer as v", "buyer as V"),
    ),
}
VIEWS: Cases = {
    "columns: two columns are called 'amount' and 'Amount'": (["*", "amount as Amount"],),
    "columns: column 'ID' is already there as the key": ("upper(id) as ID",),
    "row: s has the fields 'x' and 'X', which Spark does": ("named_struct('x', 1, 'X', 2) as s",),
}
AGGREGATES: Cases = {
    "sum: text is string, a number is needed": ({"n": agg.sum("text")}, {"n": agg.sum("cast(text as decimal(20, 2))")}),
    "max: named is struct": ({"n": agg.max("named")}, {"n": agg.max("named.n")}),
    "string_agg: amount is double, text or binary is needed": (
        {"n": agg.string_agg("amount")},
        {"n": agg.string_agg("cast(amount as string)")},
    ),
    "having: n is bigint, a boolean is needed: write a comparison": (
        {"having": "n", "n": agg.count()},
        {"having": "n > 1", "n": agg.count()},
    ),
    "having: in 'm > 2', the result has no column 'm'": ({"having": "m > 2", "n": agg.count()},),
    "agg: name each column": ({}, {"orders": agg.count()}),
    "agg: column 'customer' is already there as the key": ({"customer": agg.count()}, {"orders": agg.count()}),
    "agg: n must be one of avg, collect_list, collect_set, count,": ({"n": "amount"},),
}
GROUPS: Cases = {
    "deployment: a staged aggregate reads tables": ({"deployment": "staged"}, {"deployment": "fused"}),
    "key: name at least one column or expression": ({"key": []}, {"key": ["customer"]}),
    "key: two columns are called 'text'": ({"key": ["text", "text"]},),
}
FUNCTIONS: Cases = {
    "adder: array(amount) is array<": (
        {"initializer": 0, "adder": "array(amount)", "returns": None},
        {"adder": "array(amount)", "returns": "array<double>"},
    ),
    "returns: give the aggregate's Spark type": ({"returns": None}, {}),
    "returns: 'arry<x>' is not a Spark type": ({"returns": "arry<x>"},),
    "adder: 3 is not callable; give a function of (key, value,": ({"adder": 3},),
}
JOINS: Cases = {
    "name: two sources of this join are called": ({"right": "orders"}, {"right": "others"}),
    "extractor: named.* expands to 2 columns, and exactly one is needed": ({"extractor": "named.*"}, {"extractor": "named.m"}),
    "extractor: 2 columns given, but the key": ({"extractor": ["customer", "amount"]}, {"extractor": ["customer"]}),
    "extractor: one(row) must be callable with (key, row)": ({"extractor": one}, {"extractor": lambda key, row: row.customer}),
    "extractor: in 'upper(no)', left table orders has no": ({"extractor": "upper(no)"},),
    "extractor: a column name, SQL text": ({"extractor": 7},),
    "spread: a staged join distributes its rows": ({"spread": 2, "deployment": "staged"}, {"spread": 2}),
    "spread: 0 is not a number from 1 to …, the number of buckets; set": ({"spread": 0},),
    "left: a staged join reads topics": ({"deployment": "staged"}, {"deployment": "fused"}),
    'deployment: \'stage\' is not one of "fused", "staged"': ({"deployment": "stage"},),
    'how: "outer" is only for joins by primary key': ({"how": "outer"}, {"how": "left"}),
}
JOINERS: Cases = {
    "joiner: two columns are called 'name'; give": (["left.*", "right.*"],),
    "joiner: column 'ID' is already there as the key": ("upper(left.name) as ID",),
    "joiner: …expands to 2 columns, and exactly one is needed": ("inline(array(left.s))",),
}
JOINS_BY_KEY: Cases = {
    "right: orders is joined with itself, or another": ({"right": "orders"}, {}),
    "deployment: a join by primary key is one stage": ({"deployment": "staged"}, {}),
    "spread: a row has one partner by primary key; leave": ({"spread": 2}, {}),
    'how: \'banana\' is not one of "inner", "left", "outer"': ({"how": "banana"},),
    "on: left table orders has no column 'buyr'": ({"on": "buyr"},),
}
ORDERS_VALUE = {"write_schema": AVRO, "subject": "orders-value"}
TOPICS: Cases = {
    "String writes one column of text or bytes": ({"value": "string"}, {"value": Json("")}),
    "value: Debezium is a format to read only": ({"value": Debezium("id string")}, {"value": Json("")}),
    "Registry: to write, give write_schema= and subject=": (
        {"value": Registry("avro", "id string", "http://127.0.0.1:1")},
        {"value": Registry("avro", "id string", "http://127.0.0.1:1", **ORDERS_VALUE)},
    ),
    "Registry: fkjoin reads Protobuf and does not write it; write with": (
        {"value": Registry("protobuf", "id string", "http://127.0.0.1:1")},
        {"value": Registry("avro", "id string", "http://127.0.0.1:1", **ORDERS_VALUE)},
    ),
}
FLAT_MAPS: Cases = {
    "rows: text is string, an array is needed": ({"rows": "text"}, {"rows": "split(text, ' ')"}),
    "rows: one(row) must be callable with": ({"rows": one, "returns": "col int"},),
    "returns: it is the type of what a function returns": ({"returns": "col bigint"}, {}),
    "returns: a function needs the columns of the rows": ({"rows": both}, {"rows": both, "returns": "col bigint"}),
    "key: a row that orders makes has no column 'cl'; did you mean 'col'": ({"key": "cl"},),
}
COGROUPS: Cases = {
    "tables[1]: customers is not an aggregate": (lambda t: t.customers, summed),
    "tables[1]: sums is given twice": (lambda t: summed(t, name="sums"), summed),
    "tables[1]: b is grouped by": (lambda t: summed(t, "text"), lambda t: summed(t, "named.m as customer")),
    "tables[1]: another table has the column 'n' too": (lambda t: summed(t, column="n"), summed),
    "tables[1]: b is materialized…; materialize the cogroup": (lambda t: summed(t).materialize("x"),),
    "tables[1]: b has an emit of its own, and the cogroup": (lambda t: summed(t, emit="periodic"),),
    "tables[1]: a Table is needed, this is a int": (lambda t: 3,),
}
EVENTS: Cases = {
    "events: a streaming DataFrame is needed, this is a str": ({"events": "clicks"},),
    "on: events …has no column 'buyr'; did you mean 'buyer'": ({"on": "buyr"},),
    "on: timestamp of events …is timestamp, but key column id": ({"on": "timestamp"},),
    "on: 2 columns given, but the key of table customers has 1": ({"on": ["buyer", "buyer"]},),
    'how: \'outer\' is not one of "inner", "left"': ({"how": "outer"},),
    "on_error: 'stop' is not one of": ({"on_error": "stop"},),
    "name: 'customers' already names an input of this enrich": ({"name": "customers"},),
}
FILTERS: Cases = {"condition: amount is double, a boolean is needed: write a comparison": ("amount", "amount > 1")}
CHILDREN: Cases = {"column: customers has a column 'name' already": ("name", "orders")}
TEXTS: Cases = {"Json: the schema has a column 'whole' already": ("whole", "line")}
KEYS: Cases = {"Debezium: a key's column cannot be called 'payload'": ("payload bigint", "id bigint")}
SCHEMAS: Cases = {"v: schema 'bigint' is not a list of columns": ("bigint", "id bigint, name string")}
POSITIONS: Cases = {"positions: they are not available after an aggregate": (True, False)}
DROPPED: Cases = {"cols: id belongs to the key of orders": (lambda t: t.orders, lambda t: t.orders.rekey("customer"))}
PARQUET: Cases = {
    "path: a table with the columns batch and fkjoin_batch": (
        ["text as batch", "text as fkjoin_batch"],
        ["text as batch", "text as other"],
    ),
}
DELTA: Cases = {
    "b: a batch of a source may contain several changes": (lambda t: t.of("b", ORDERS), kept_texts),
    "kept: '_version' is the name of a column that results": (lambda t: kept_texts(t, "text as _version"), kept_texts),
}
STREAMED: Cases = {
    "events: a batch DataFrame is not a stream; read it": (lambda t: t.spark.range(3), clicks),
    "events: two columns are called": (lambda t: clicks(t).select("*", "buyer"),),
}
REFUSED: Cases = {
    "right: a Table is needed, this is a DataFrame; wrap it with Table.from_stream": (
        lambda t: fk_join(t.orders, clicks(t), "customer"),
    ),
    "right: seen are events, each sent once, not a table": (lambda t: t.orders.join(enriched(t)),),
    "right: a Table is needed, this is a str": (lambda t: t.orders.join("customers"),),
    "extractor: name of left table …cast(name as": (lambda t: fk_join(odd(t), t.orders, "name"),),
    "cogroup: 2 to 256 tables are needed, these are 1": (lambda t: cogroup(summed(t)),),
    "columns: name at least one column": (lambda t: t.orders.select(),),
    "columns: names and expressions": (lambda t: t.orders.with_columns(["1 as a"]),),
    "cols: table orders has no column 'colour'": (lambda t: t.orders.drop("colour"),),
    "key: column 'text' is already": (lambda t: t.orders.rekey("lower(text) as text"),),
    "key: name is string collate…cast(name as": (lambda t: odd(t).group_by("name").count(),),
    "agg: * expands to ": (lambda t: t.orders.group_by("id").sum("*"),),
    "agg: name each column, such as": (lambda t: t.orders.group_by("id").agg({"n": "sum"}),),
    "subtractor: 3 …a function of (aggregate,": (lambda t: t.orders.group_by("id").reduce(max, 3),),
    "adder: …UTF8_LCASE": (lambda t: odd(t).group_by("id").aggregate(0, "int(name = 'a')", "0"),),
    "k: a whole number from 1 to 100000 is needed, not 0": (lambda t: agg.max_by("a", "b", 0),),
    "delimiter: a text is needed, such as ', '": (lambda t: agg.string_agg("a", 3),),
}


CALLS: list[tuple[Cases, Callable[[Tables, Any], Any]]] = [
    (ON_CLOSE, lambda t, given: closing(t, **given).count()),
    (WINDOWED, lambda t, table: closing(t, table=table(t)).count()),
    (WINDOWS, lambda t, given: closing(t, window("at", *given)).count()),
    (FILES, lambda t, given: t.files(**{"names": ["1.csv"], "text": HEADER} | given)),
    (SOURCES, lambda t, given: t.of("b", **{"schema": ORDERS} | given)),
    (STREAMS, lambda t, frame: Table.from_stream(frame(t), key="buyer", version="buyer")),
    (VIEWS, lambda t, columns: t.orders.map_values(columns)),
    (AGGREGATES, lambda t, given: t.by("customer", **given)),
    (GROUPS, lambda t, given: t.orders.group_by(**{"key": "customer"} | given).count()),
    (FUNCTIONS, lambda t, given: aggregated(t, **given)),
    (JOINS, lambda t, given: join_by_customer(t, **given)),
    (JOINERS, lambda t, joiner: fk_join(odd(t), t.of("other", LCASE), "s.y", joiner=joiner)),
    (JOINS_BY_KEY, lambda t, given: join_by_key(t, **given)),
    (TOPICS, lambda t, given: t.topic(t.orders, **given)),
    (FLAT_MAPS, lambda t, given: t.orders.flat_map(**{"rows": "array(customer)", "key": ["id", "col"]} | given)),
    (COGROUPS, lambda t, table: cogroup(t.by("customer", "sums", n=agg.count()), table(t))),
    (EVENTS, lambda t, given: enriched(t, **given)),
    (FILTERS, lambda t, condition: t.orders.filter(condition)),
    (CHILDREN, lambda t, column: t.customers.with_children(t.orders, "customer", column=column)),
    (TEXTS, lambda _, text: Json("id bigint, whole string", text=text).reader()),
    (KEYS, lambda _, schema: Debezium(schema).key_reader()),
    (SCHEMAS, lambda _, schema: struct_type(schema, "v")),
    (POSITIONS, lambda t, positions: t.topic(summed(t), positions=positions)),
    (DROPPED, lambda t, table: table(t).drop("id")),
    (PARQUET, lambda t, columns: written(t, t.orders.map_values(columns), Parquet(t.folder / "o"))),
    (DELTA, lambda t, table: Delta(t.folder / "delta").begin(table(t)._plan)),
    (STREAMED, lambda t, events: enriched(t, events(t))),
    (REFUSED, lambda t, call: call(t)),
]
"""Calls, with the arguments that each refuses."""
for cases, call in CALLS:
    for says, arguments in cases.items():
        WAYS[says] = tuple(with_arguments(call, given) for given in arguments)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("beginning", WAYS)
def test_the_way_out_that_is_named_is_one(made: Tables, tmp_path: Path, beginning: str) -> None:
    wrong, *ways_out = WAYS[beginning]
    made.folder = tmp_path
    with pytest.raises(TopologyError) as refused:
        wrong(made)
    places = {"events": str(tmp_path / "events"), "in": str(tmp_path / "in"), "o": f"file:{tmp_path / 'o'}"}
    words = re.sub(r"{(\w+)}", lambda name: places[name[1]], beginning).split("…")
    assert re.match(".*".join(map(re.escape, words)), str(refused.value)), refused.value
    for right in ways_out:
        right(made)


OPERATORS: dict[str, Callable[..., Any]] = {
    "filter": lambda t, **more: t.orders.filter("true", **more),
    "fk_join": lambda t, **more: join_by_customer(t, **more),
    "join": lambda t, **more: join_by_key(t, **more),
    "group_by": lambda t, **more: t.orders.group_by("text", **more).count(),
    "flat_map": lambda t, **more: t.orders.flat_map("array(text)", key="col", **more),
}
"""Operators that have a name, and send their rows as ``emit`` says."""


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_name_and_the_emission_of_an_operator_are_checked(made: Tables, operator: str) -> None:
    with pytest.raises(TopologyError, match="^name: 'orders' already names an input"):
        OPERATORS[operator](made, name="orders")
    with pytest.raises(TopologyError, match="^emit: 'never' is not one of"):
        OPERATORS[operator](made, emit="never")


def test_rows_are_kept_under_one_name_each(made: Tables) -> None:
    orders, customers = made.orders.materialize("rows"), made.customers.materialize("rows")
    says = "the rows of two inputs of this .* are kept as 'rows'; materialize one under another"
    with pytest.raises(TopologyError, match=says):
        fk_join(orders, customers, "customer", name="joined")
    joined = fk_join(orders, made.customers.materialize("more"), "customer", name="joined")
    says = "^materialize: the rows of an input of joined are kept as 'rows'; choose another name"
    with pytest.raises(TopologyError, match=says):
        joined.materialize("rows")
    with pytest.raises(TopologyError, match="^name: 'more' already names an input"):
        joined.filter("true", name="more")
    joined.materialize("all").filter("true", name="rest").materialize("joined")
    counted = made.orders.group_by("customer", name="counted").count()
    with pytest.raises(TopologyError, match="the rows of an input of many are kept as 'counted'; choose another name"):
        counted.filter("count > 1", name="many").materialize("counted")
