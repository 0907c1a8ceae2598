"""Topologies of every shape, small, as users write them: what ``test_plans`` pins the plans of."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fkjoin import Table, cogroup, fk_join
from fkjoin import aggregates as agg
from fkjoin.events import Enriched
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_sections import JobSection
from fkjoin.plan import rules

LONG = "periodic 2 hours"

ORDER = "order_id string, customer_id string, product struct<id: string, n: bigint>, shop string, amount double"
SIDES = {
    "orders": ("order_id", ORDER),
    "customers": ("customer_id", "customer_id string, name string, region string"),
    "products": ("id", "id string, title string, price double, maker string"),
    "shops": ("shop", "shop string, town string"),
    "regions": ("region", "region string, boss string"),
    "returns": ("order_id", ORDER),
    "lines": ("order_id, line", "order_id string, line int, seller string, country string, n bigint"),
    "sellers": ("seller, country", "seller string, country string, name string"),
}


class Sources:
    """Tables of each kind of source, under a folder, each made once.

    ``read``: those of files, by name, which are the same whatever rules the session has.
    """

    def __init__(self, spark: SparkSession, folder: Path, read: dict[str, Table]) -> None:
        self.spark, self.folder, self.read = spark, folder, read

    def place(self, name: str) -> Path:
        """A folder that is there."""
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def files(self, name: str, key: str, schema: str, **more: Any) -> Table:
        """JSON lines with a known schema; the folder is empty."""
        if name not in self.read:
            about: dict[str, Any] = {"version": "lsn", "deleted": "op = 'd'", "format": "json", "name": name} | more
            folder = self.place(name)
            about |= {"key": key.split(", "), "schema": f"{schema}, lsn bigint, op string"}
            self.read[name] = Table.from_files(self.spark, folder, **about)
        return self.read[name]

    def __getattr__(self, name: str) -> Table:
        """A table of ``SIDES``."""
        return self.files(name, *SIDES[name])

    @cached_property
    def joined(self) -> Table:
        """Both rows of orders and customers."""
        return fk_join(self.orders, self.customers, "customer_id", name="joined")


Built = Table | Enriched | Job


Build = Callable[[Sources], Built]
"""A topology: each function of sources alone in this module."""


@dataclass(frozen=True)
class Topology:
    """The builder of a topology, and the rules without which its plan is pinned, too, one by one."""

    build: Build
    without: tuple[str, ...]


WITHOUT: dict[str, tuple[str, ...]] = {}


def without(*rules: str) -> Callable[[Build], Build]:
    """Have a topology's plan be pinned without these rules, too."""

    def noted(build: Build) -> Build:
        WITHOUT[build.__name__] = rules
        return build

    return noted


# Sources


def source_of_json_that_is_learned(of: Sources) -> Table:
    place = of.place("learned")
    (place / "1.json").write_text('{"id": 1, "to": "a", "at": "x", "lsn": 1, "gone": false}\n')
    return Table.from_files(of.spark, place, key="id", version="lsn", deleted="gone", timestamp="lsn", on_error="skip")


def source_of_csv(of: Sources) -> Table:
    place = of.place("csv")
    (place / "1.csv").write_text("id,n,lsn\n1,2,3\n")
    return Table.from_files(of.spark, place, key="id", version="lsn")


def source_of_parquet_in_folders(of: Sources) -> Table:
    place = of.place("parquet/country=de")
    pq.write_table(pa.table({"id": [1], "part": ["a"], "n": [1.5], "major": [1], "minor": [2]}), place / "1.parquet")
    return Table.from_files(of.spark, of.folder / "parquet", key=["country", "id"], version=["major", "minor"], on_error="fail")


def source_of_a_stream_without_a_name(of: Sources) -> Table:
    return rates(of)


def rates(of: Sources, **more: Any) -> Table:
    frame = of.spark.readStream.format("rate").load()
    frame = frame.selectExpr("value as id", "value % 3 as other", "timestamp as at", "cast(value as string) as text")
    return Table.from_stream(frame, key="id", version=F.col("id") + 1, deleted="id % 7 = 0", timestamp="at", **more)


def source_that_fkjoin_wrote(of: Sources) -> Table:
    place = of.place("written/batch=0-0123abcd")
    rows = {"id": ["a"], "n": [1], "_operation": ["insert"], "_version": [[1]]}
    times = pa.array([0], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(rows | {"_timestamp": times}), place / "part-0.parquet")
    says = {"format": 1, "table": "written", "key": ["id"], "timestamps": "_timestamp", "source": False}
    (place.parent / "_fkjoin.json").write_text(json.dumps(says))
    return Table.from_fkjoin(of.spark, of.folder / "written")


# Views


def view_that_workers_cannot_evaluate(of: Sources) -> Table:
    columns = ["regexp_replace(shop, 'a+', 'b') as shop", "amount"]
    return of.orders.map_values(columns, name="shown", emit="on-update").filter("amount > 1")


def join_of_a_table_that_begins_with_a_snapshot(of: Sources) -> Table:
    place = of.place("customers-snapshot")
    texts = {name: ["x"] for name in ("customer_id", "name", "region", "op")}
    pq.write_table(pa.table(texts), place / "1.parquet")
    begun = of.customers.with_snapshot(place)
    return fk_join(of.orders, begun.filter("name is not null"), "customer_id", name="begun")


def periodic_view(of: Sources) -> Table:
    return of.orders.filter("amount > 1", name="large", emit=LONG).materialize("kept")


# Joins


def join(of: Sources) -> Table:
    return fk_join(of.orders, of.customers, "customer_id")


@without(rules.JOIN_KEEPS_WHAT_IT_NEEDS, rules.RESOLVE_MAKES_ROWS)
def left_join_by_an_expression_with_fields(of: Sources) -> Table:
    return fk_join(of.orders, of.customers, "upper(customer_id)", "left", ["left.amount", "right.name"])


@without(rules.JOIN_KEEPS_WHAT_IT_NEEDS, rules.RESOLVE_MAKES_ROWS)
def join_with_expressions(of: Sources) -> Table:
    joiner = ["left.amount * 2 as twice", "concat(left.shop, right.name) as both", F.upper("right.region").alias("region")]
    return fk_join(of.orders, of.customers, F.col("customer_id"), joiner=joiner, name="joined", emit="on-update")


def join_left_to_spark(of: Sources) -> Table:
    joiner = "regexp_replace(left.shop, 'a+', right.name) as shown"
    return fk_join(of.orders, of.customers, "customer_id", "left", joiner, "joined")


def bought_by(key: Any, row: Any) -> Any:
    return row["customer_id"]


def greeting(left: Any, right: Any) -> str:
    return f"{left['shop']} {right['name']}"


def join_with_functions(of: Sources) -> Table:
    return fk_join(of.orders, of.customers, bought_by, joiner=greeting)


def join_that_fails(of: Sources) -> Table:
    orders = of.files("strict", "order_id", ORDER, on_error="fail")
    return fk_join(orders, of.customers, "trim(customer_id)", "left", ["left.amount + 1 as more", "right.name"], "joined")


def join_with_composite_keys(of: Sources) -> Table:
    return fk_join(of.lines, of.sellers, ["seller", "country"], "left", ["left.n", "right.name"])


def join_with_itself(of: Sources) -> Table:
    return fk_join(of.products, of.products, "maker", "left", name="made-by")


def join_of_one_log_with_times(of: Sources) -> Table:
    about = {"log": "shop", "timestamp": "lsn"}
    orders = of.files("orders-of-log", "order_id", ORDER, **about)
    customers = of.files("customers-of-log", *SIDES["customers"], **about)
    return fk_join(orders, customers, "customer_id", name="joined")


def join_of_a_stream_and_csv(of: Sources) -> Table:
    place = of.place("others")
    about: Any = {"key": "other", "version": "lsn", "format": "csv"}
    kind = "other bigint, name string, lsn bigint"
    others = Table.from_files(of.spark, place, schema=kind, **about)
    return fk_join(rates(of, name="rates", on_error="skip"), others, "other", name="joined")


def join_of_materialized_views(of: Sources) -> Table:
    large = of.orders.filter("amount > 1", name="large").materialize("large")
    return fk_join(large, of.customers.materialize("all-customers"), "customer_id", name="joined").materialize("joined-rows")


def periodic_join(of: Sources) -> Table:
    how: Any = {"joiner": ["left.amount", "right.name"], "name": "joined", "emit": LONG}
    return fk_join(of.orders, of.customers, "customer_id", **how).materialize("rows")


# Joins of joins


@without(rules.JOINS_SHARE_STAGES, rules.JOIN_KEEPS_WHAT_IT_NEEDS)
def star(of: Sources) -> Table:
    joiner = ["left.left.amount", "left.right.name", "right.title"]
    return fk_join(of.joined, of.products, "left.product.id", "left", joiner, "star")


@without(rules.JOINS_SHARE_STAGES)
def star_of_four_with_one_twice(of: Sources) -> Table:
    first = fk_join(of.orders, of.customers, "customer_id", "left")
    second = fk_join(first, of.products, "left.product.id")
    third = fk_join(second, of.shops, "left.left.shop", "left")
    return fk_join(third, of.shops, ["left.left.left.customer_id"], emit=LONG)


@without(rules.ANSWERS_KEEP_WHAT_IS_READ)
def star_that_is_read_in_part(of: Sources) -> Table:
    both = fk_join(of.joined, of.products, "left.product.id", name="star")
    return fk_join(both, of.regions, "left.right.region", joiner=["left.left.left.amount", "right.boss"], name="bossed")


def star_materialized_and_read_on(of: Sources) -> Table:
    both = fk_join(of.joined, of.products, "left.product.id", name="star").materialize("star-rows")
    return fk_join(both, of.shops, "left.left.shop", name="shopped").filter("right.town is not null", name="seen")


def join_of_a_materialized_join(of: Sources) -> Table:
    return fk_join(of.joined.materialize("kept"), of.products, "left.product.id", name="priced")


@without(rules.JOIN_READS_ANSWERS, rules.ANSWERS_KEEP_WHAT_IS_READ)
def chain(of: Sources) -> Table:
    joiner = ["left.left.amount", "left.left.shop", "right.boss"]
    return fk_join(of.joined, of.regions, "right.region", "left", joiner, "chain")


@without(rules.JOIN_READS_ANSWERS)
def chain_of_rows_that_spark_makes(of: Sources) -> Table:
    joiner = ["left.shop", "concat(right.region, '') as region"]
    joined = fk_join(of.orders, of.customers, "customer_id", joiner=joiner, name="joined")
    return fk_join(joined, of.regions, bought_in, name="chain")


def bought_in(key: Any, row: Any) -> Any:
    return row["region"]


@without(rules.JOIN_READS_ANSWERS, rules.ANSWERS_KEEP_WHAT_IS_READ)
def chain_through_views(of: Sources) -> Table:
    seen = of.joined.filter("left.amount > 1").map_values(["left.amount", "upper(right.region) as region"], name="seen")
    return fk_join(seen, of.regions, "region", joiner=["left.amount * 2 as twice", "right.boss"], name="chain")


@without(rules.JOIN_READS_ANSWERS, rules.JOINS_SHARE_STAGES)
def three_in_a_row_of_both_kinds(of: Sources) -> Table:
    first = fk_join(of.orders, of.customers, "customer_id", "left", ["left.product", "left.shop", "right.region"])
    second = fk_join(first, of.regions, "region", "left", ["left.product", "left.shop", "right.boss"])
    return fk_join(second, of.shops, "shop", "left", ["left.product", "left.boss", "right.town"])


def join_whose_right_side_is_a_join(of: Sources) -> Table:
    return fk_join(of.lines, of.joined, "order_id", "left", name="lines-of-orders")


def join_of_a_periodic_join(of: Sources) -> Table:
    held = fk_join(of.orders, of.customers, "customer_id", name="held", emit=LONG)
    return fk_join(held, of.regions, "right.region", name="chain")


def join_with_an_aggregate_of_itself(of: Sources) -> Table:
    counted = of.joined.group_by("right.region", name="counted").count()
    return fk_join(of.joined, counted, "right.region", joiner=["left.left.amount", "right.count"], name="compared")


# Aggregates


@without(rules.WORKERS_EVALUATE_STEPS)
def aggregates_of_each_kind(of: Sources) -> Table:
    grouped = of.orders.group_by(["customer_id", "upper(shop) as shop"], name="sums")
    wanted = {"rows": agg.count(), "known": agg.count("amount"), "total": agg.sum("amount"), "units": agg.sum("product.n")}
    return grouped.agg(**wanted, mean=agg.avg("amount"), least=agg.min("product.id"), most=agg.max("amount * 2"))


def aggregate_of_members(of: Sources) -> Table:
    columns = {"all": agg.collect_list("amount"), "ids": agg.string_agg("product.id", ", ", order_by="amount", descending=True)}
    least = agg.min_by("product.id", "amount", 3)
    members = of.orders.group_by("customer_id", name="members")
    return members.agg(**columns, least=least, having="ids is null or customer_id <> ids")


def aggregate_without_a_name(of: Sources) -> Table:
    return of.customers.group_by("region", value=["name"], emit="on-update").count()


@without(rules.AGGREGATE_READS_ANSWERS, rules.ANSWERS_KEEP_WHAT_IS_READ)
def aggregate_of_a_join(of: Sources) -> Table:
    return of.joined.group_by("right.region", name="sums").agg(orders=agg.count(), total=agg.sum("left.amount"))


@without(rules.AGGREGATE_READS_ANSWERS)
def aggregate_of_a_view_of_a_join(of: Sources) -> Table:
    joined = fk_join(of.orders, of.customers, "customer_id", joiner=["left.amount * 2 as twice", "right.region"], name="joined")
    return joined.filter("twice > 1", name="large").group_by("region", "twice", name="sums").sum("twice")


@without(rules.ANSWERS_KEEP_WHAT_IS_READ)
def aggregate_of_a_star(of: Sources) -> Table:
    both = fk_join(of.joined, of.products, "left.product.id", name="star")
    return both.group_by("right.title", name="sold").agg(total=agg.sum("left.left.amount"))


def aggregate_of_an_aggregate(of: Sources) -> Table:
    by_customer = of.orders.group_by("customer_id", name="by-customer").agg(orders=agg.count())
    return by_customer.group_by("orders", name="histogram").agg(customers=agg.count()).materialize("kept")


def periodic_aggregate_of_a_materialized_join(of: Sources) -> Table:
    return of.joined.materialize("rows").group_by("right.region", name="counted", emit=LONG).count()


def plus(key: Any, value: Any, total: Any) -> Any:
    return total + value


def minus(key: Any, value: Any, total: Any) -> Any:
    return total - value


def longest(total: Any, value: Any) -> Any:
    return max(total, value)


def aggregate_by_functions(of: Sources) -> Table:
    return of.orders.group_by("shop", "amount", name="sums").aggregate(0.0, plus, minus, column="total")


def aggregate_by_expressions(of: Sources) -> Table:
    grouped = of.joined.group_by("right.region", ["left.amount", "left.shop"], name="sums")
    return grouped.aggregate(0.0, "aggregate + amount", "aggregate - amount", returns="double")


def reduced(of: Sources) -> Table:
    return of.orders.group_by("customer_id", "shop", name="names").reduce(longest, longest, column="longest")


# Several tables as one


@without(rules.WORKERS_EVALUATE_STEPS)
def cogroup_of_sources(of: Sources) -> Table:
    bought = of.orders.group_by("customer_id", name="bought").agg(bought=agg.count())
    brought = of.returns.group_by("customer_id", name="brought").agg(brought=agg.sum("amount"))
    return cogroup(bought, brought, emit="on-update")


@without(rules.AGGREGATE_READS_ANSWERS)
def cogroup_of_one_join(of: Sources) -> Table:
    counted = of.joined.group_by("right.region", name="counted").agg(orders=agg.count())
    summed = of.joined.group_by("right.region", name="summed").agg(total=agg.sum("left.amount"))
    return cogroup(counted, summed, name="both").materialize("kept")


@without(rules.WORKERS_EVALUATE_STEPS)
def merge_of_views(of: Sources) -> Table:
    cheap, dear = of.orders.filter("amount < 2", name="cheap"), of.returns.filter("amount >= 2", name="dear")
    return cheap.merge(dear, name="some", emit=LONG).materialize("kept").filter("shop is not null", name="seen")


def merge_of_joins_grouped(of: Sources) -> Table:
    joiner = ["left.amount", "right.region"]
    one = fk_join(of.orders, of.customers, "customer_id", joiner=joiner, name="orders-joined")
    other = fk_join(of.returns, of.customers, "customer_id", joiner=joiner, name="returns-joined")
    return one.merge(other, name="all", emit="on-update").group_by("region", name="counted").count()


def join_by_key(of: Sources) -> Table:
    return of.orders.join(of.returns, how="outer")


@without(rules.JOIN_KEEPS_WHAT_IT_NEEDS)
def join_by_key_of_a_join_summed_up(of: Sources) -> Table:
    columns = ["left.right.region as region", "left.left.amount - right.amount as rest"]
    rest = of.joined.join(of.returns, how="left", joiner=columns, name="rest", emit="on-update").materialize("kept")
    return rest.group_by("region", name="counted").count()


@without(rules.JOIN_KEEPS_WHAT_IT_NEEDS)
def join_by_key_made_by_spark(of: Sources) -> Table:
    return of.orders.join(of.returns, joiner="java_method('java.lang.Math', 'abs', left.product.n) as n", emit=LONG)


def children_of_a_source(of: Sources) -> Table:
    return of.customers.with_children(of.orders, "customer_id")


@without(rules.JOIN_READS_ANSWERS)
def children_of_a_join(of: Sources) -> Table:
    book = of.customers.with_children(of.joined, "left.customer_id", column="orders", name="book", emit="on-update")
    return book.materialize("the-book")


def join_with_children(of: Sources) -> Table:
    how: Any = {"column": "orders", "name": "book", "emit": LONG}
    book = of.customers.with_children(of.orders.filter("amount > 1"), "lower(customer_id)", **how)
    sizes = book.map_values(["region", "cardinality(orders) as n"], name="sizes")
    return fk_join(of.returns, sizes, "customer_id", name="returned")


@without(rules.WORKERS_EVALUATE_STEPS)
def flat_map_of_a_view_summed_up(of: Sources) -> Table:
    words = of.orders.filter("amount > 1", name="dear").flat_map("split(shop, ' ')", key=["order_id", "col as word"])
    return words.group_by("word", name="counts").count()


def rekey_of_a_join_joined(of: Sources) -> Table:
    by_region = of.joined.rekey("right.region", name="by-region", emit="on-update").materialize("kept")
    return fk_join(of.returns, by_region, "shop", name="placed")


# Views of them


@without(rules.VIEW_READS_ANSWERS, rules.RESOLVE_MAKES_ROWS, rules.FILTER_GOES_BELOW_JOIN)
def view_of_a_join(of: Sources) -> Table:
    joined = fk_join(of.orders, of.customers, "customer_id", "left", ["left.amount", "upper(right.region) as region"], "joined")
    return joined.filter("amount > 1").map_values(["region"])


@without(rules.FILTER_GOES_BELOW_JOIN)
def filters_of_a_join_summed_up(of: Sources) -> Table:
    columns = ["left.product", "left.amount", "right.region"]
    joined = fk_join(of.orders, of.customers, "customer_id", joiner=columns, name="joined")
    some = joined.filter("product.n > 1 or order_id <> 'a'").filter("region > '1'", name="some")
    return some.group_by("region", name="sums").sum("amount")


@without(rules.VIEW_READS_ANSWERS)
def view_of_a_join_that_spark_evaluates(of: Sources) -> Table:
    return of.joined.filter("regexp_replace(right.name, 'a+', '') <> ''", name="seen").materialize("kept")


def view_of_a_star(of: Sources) -> Table:
    star = fk_join(of.joined, of.products, "left.product.id", name="star")
    return star.map_values(["left.left.amount", "right.title"], name="seen")


def view_of_an_aggregate(of: Sources) -> Table:
    return of.orders.group_by("shop", name="counted").count().filter("count > 1", name="seen", emit="on-update")


# Events


def events_enriched_by_an_aggregate_and_a_join(of: Sources) -> Enriched:
    frame = of.spark.readStream.format("rate").load()
    clicks = frame.selectExpr("value as number", "cast(value % 3 as string) as buyer", "timestamp as at")
    counts = of.orders.group_by("customer_id", name="counted").count()
    counted = counts.enrich(clicks, on="buyer", how="left", name="with-counts", events_name="clicks")
    named = fk_join(of.orders, of.customers, "customer_id", joiner=["left.amount", "right.name"], name="joined")
    return named.enrich(counted, on="cast(cast(buyer as int) as string)", name="named")


# Jobs


@without(rules.SINKS_SHARE_A_QUERY, rules.VIEW_READS_ANSWERS)
def job_with_sinks(of: Sources) -> Job:
    return job(
        of,
        joins={"joined": {"left": "orders", "right": "customers", "extractor": "customer_id"}},
        views={"seen": {"of": "joined", "filter": "left.amount > 1"}},
        sinks={"one": "joined", "two": "joined", "views": "seen"},
    )


def job_of_everything(of: Sources) -> Job:
    by_region = {"extractor": "right.region", "joiner": ["left.left.amount", "right.boss"]}
    return job(
        of,
        joins={
            "joined": {"left": "orders", "right": "customers", "extractor": "customer_id", "how": "left"},
            "star": {"left": "joined", "right": "regions", "extractor": "left.shop"},
            "chain": {"left": "joined", "right": "regions", **by_region},
        },
        aggregates={
            "sums": {"of": "joined", "group_by": "left.customer_id as customer_id", "columns": {"total": "sum(left.amount)"}},
            "counts": {"of": "orders", "group_by": "customer_id", "columns": {"n": "count()"}},
        },
        cogroups={"both": {"of": ["sums", "counts"], "emit": LONG}},
        views={"brief": {"of": "chain", "columns": ["amount"]}, "plain": {"of": "orders", "columns": ["amount"]}},
        merges={"all": {"of": ["brief", "plain"]}},
        sinks={"star": "star", "both": "both", "both-again": "both", "all": "all", "orders": "orders"},
    )


@without(rules.WORKERS_EVALUATE_STEPS)
def job_of_windows(of: Sources) -> Job:
    kind = "order_id string, shop string, at timestamp, sent timestamp, lsn bigint"
    about = {"path": str(of.place("orders")), "key": "order_id", "schema": kind, "format": "json"}
    window = {"time": "at", "size": "10 minutes", "slide": "5 minutes", "grace": "2 minutes", "idle": "1 minute"}
    grouped = {"of": "orders", "group_by": "shop", "window": window, "emit": "on-close", "columns": {"n": "count()"}}
    return job(
        of,
        tables={"orders": {**about, "version": "lsn", "timestamp": "sent"}},
        aggregates={"windows": grouped},
        sinks={"windows": "windows"},
    )


def job_of_events(of: Sources) -> Job:
    return job(
        of,
        events={"clicks": {"path": str(of.place("clicks")), "schema": "buyer string, page string"}},
        enrichments={"seen": {"table": "customers", "events": "clicks", "on": "buyer", "how": "left"}},
        sinks={"seen": "seen"},
    )


def job(of: Sources, sinks: dict[str, str], **made: Any) -> Job:
    """A job of orders, customers and regions, whose sinks are Parquet files."""
    tables = {}
    for name in ("orders", "customers", "regions"):
        key, kind = SIDES[name]
        columns = f"{kind}, lsn bigint, op string"
        about = {"path": str(of.place(name)), "key": key, "schema": columns, "format": "json"}
        tables[name] = {**about, "version": "lsn", "deleted": "op = 'd'"}
    spec = {
        "name": "shop",
        "checkpoint": str(of.folder / "checkpoint"),
        "tables": tables,
        **made,
        "sinks": {name: {"table": table, "path": f"{of.folder}/out/{name}"} for name, table in sinks.items()},
        "dead_letters": {"path": str(of.folder / "dead")},
    }
    return Job(JobSection.model_validate(spec), of.spark)


TOPOLOGIES = {
    name: Topology(build, WITHOUT.get(name, ()))
    for name, build in globals().items()
    if inspect.isfunction(build) and [*inspect.signature(build).parameters] == ["of"]
}
"""Topologies by their names, in the order in which they stand here."""
