"""Names of columns: any name works everywhere, and one that cannot be told apart is refused when the table is built."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fkjoin import Table, TopologyError, fk_join
from fkjoin import aggregates as agg
from fkjoin.json_text import read_rows
from fkjoin.names import named, quoted, require_beside, twice
from fkjoin.rows import RowCodec
from fkjoin.sinks import Delta, Parquet
from fkjoin.spark.settings import OPTIMIZE
from fkjoin.vectors import Columns, Vector
from tests.conftest import small
from tests.test_spark_engine import run, table_of, write_lines

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


def test_names_that_differ_in_case_alone_are_the_same_twice() -> None:
    assert twice(["a", "b", "A"]) == ("a", "A")
    assert twice(["a", "b", "a"]) == ("a", "a")
    assert twice(["a", "b"]) is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["ID"], "column 'ID' is already there as the key"),
        (["a", "A"], "two columns are called 'a' and 'A', which is one name to Spark"),
        ([""], "a column has no name"),
        (["__fkjoin_key"], "names that begin as '__fkjoin_key' does are the engine's own"),
    ],
)
def test_a_name_that_cannot_be_told_apart_is_refused(names: list[str], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        require_beside(["id"], "joiner", names)


def test_any_name_can_be_parsed_encoded_picked_and_evaluated() -> None:
    kind = pa.struct([(name, pa.struct([(name, pa.int64())])) for name in NASTY])
    row = {name: {name: place} for place, name in enumerate(NASTY)}
    rows = read_rows(pa.array([json.dumps(row), json.dumps(row, ensure_ascii=False), '{"a.b": 1']), kind)
    assert rows.to_pylist()[:2] == [row, row]
    codec = RowCodec(pa.schema(list(kind)))
    encoded = codec.encode(rows.flatten(), 3)
    picked = codec.pick(encoded, [(name, name) for name in NASTY])
    assert [column[0].as_py() for column in picked] == list(range(len(NASTY)))
    fields = [
        Vector("GetStructField", pa.int64(), (Vector("AttributeReference", kind[name].type, given=name.lower()),), name)
        for name in NASTY
    ]
    visible = {field.name.lower(): column for field, column in zip(kind, rows.flatten(), strict=True)}
    made = Columns(tuple(zip(NASTY, fields, strict=True)))(visible, 3)
    assert made[0].as_py() == {name: place for place, name in enumerate(NASTY)}


spark_only = pytest.mark.spark


@pytest.fixture
def settings(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    small(spark, tmp_path)
    yield
    spark.conf.set(OPTIMIZE, "true")


ORDER = {KEY: "o1", FK: "c1", **{name: f"{name}!" for name in NASTY}, "lsn.x": 1, "op`x": "u"}
CUSTOMER = {RIGHT: "c1", **{f"r{name}": place for place, name in enumerate(NASTY)}, "lsn.x": 1}


def files(spark: SparkSession, folder: Path, kind: str) -> tuple[Table, Table]:
    """Orders and customers, as files of that kind; ``json by Spark`` has an option that leaves the lines to Spark."""
    for name, row in (("orders", ORDER), ("customers", CUSTOMER)):
        (folder / name).mkdir()
        rows = [row, {**row, (KEY if name == "orders" else RIGHT): "other"}]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / name / "1.parquet")
        elif kind == "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, list(row))
            writer.writeheader()
            writer.writerows(rows)
            (folder / name / "1.csv").write_text(text.getvalue())
        else:
            write_lines(folder / name, "1", rows)
    more: dict[str, Any] = {"options": {"mode": "PERMISSIVE"}} if kind == "json by Spark" else {}
    if kind == "csv":
        more = {"options": {"escape": '"', "ignoreLeadingWhiteSpace": "false"}}
    orders = Table.from_files(
        spark, folder / "orders", key=quoted(KEY), version=["lsn.x"], deleted="`op``x` = 'd'", name="orders", **more
    )
    customers = Table.from_files(spark, folder / "customers", key=RIGHT, version="`lsn.x`", name="customers", **more)
    assert (orders.unread is None) == (kind != "json")
    return orders, customers


@spark_only
@pytest.mark.parametrize(
    ("kind", "optimize"), [("json", True), ("json", False), ("json by Spark", True), ("csv", False), ("parquet", True)]
)
@pytest.mark.usefixtures("settings")
def test_any_name_works_in_sources_views_joiners_aggregates_and_files(
    spark: SparkSession, tmp_path: Path, kind: str, optimize: bool
) -> None:
    spark.conf.set(OPTIMIZE, str(optimize).lower())
    orders, customers = files(spark, tmp_path, kind)
    assert (*orders.key, *customers.key) == (KEY, RIGHT)
    assert "lsn.x" not in orders.rest + customers.rest
    seen = orders.filter("`a.b` = 'a.b!' and `ti``ck` is not null").map_values(
        ["*", 'concat(`two words`, `double"quote`) as `sum of`'], name="seen"
    )
    whole = fk_join(seen, customers, FK, joiner=["left.*", f"right.{quoted('rti`ck')} as `of right.`"], name="whole")
    assert whole.rest == (*seen.rest, "of right.")
    places = Parquet(tmp_path / "out"), Delta(tmp_path / "delta")
    whole.to(*places, checkpoint=tmp_path / "ck", trigger={"availableNow": True}).awaitTermination()
    wanted = {name: ORDER[name] for name in orders.rest} | {"sum of": 'two words!double"quote!', "of right.": 1}
    for rows in (spark.read.parquet(str(tmp_path / "out")).collect(), _delta(tmp_path / "delta")):
        assert sorted(row[KEY] for row in rows) == ["o1", "other"]
        assert [{name: row[name] for name in wanted} for row in rows] == [wanted, wanted]
    groups = fk_join(seen, customers, [quoted(FK)], name="both").group_by(["left.`a.b`", "right.`rtwo words` as `two.words`"])
    summed = groups.agg(**{"how many": agg.count(), "`most`": agg.max("left.`[x]`"), "a.sum": agg.sum("right.`r.dot`")})
    got = table_of(run(summed.changes, tmp_path / "ck-groups").rows, "a.b", "two.words")
    assert {key: (row["how many"], row["`most`"], row["a.sum"]) for key, row in got.items()} == {
        ("a.b!", NASTY.index("two words")): (2, "[x]!", 2 * NASTY.index(".dot"))
    }


def _delta(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return list(DeltaTable(path).to_pyarrow_table().to_pylist())
