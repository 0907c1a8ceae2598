"""The recipes of docs/cdc.md for other tools' changes, tried on messages as these tools write them."""

from __future__ import annotations

import ast
import json
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.kafka import Debezium, Json
from fkjoin.kafka.formats import Format, decode_key
from tests.support.places import ROOT

HOWTO = (ROOT / "docs" / "cdc.md").read_text()


def block(after: str) -> ast.Module:
    """The first block of code after the words."""
    return ast.parse(HOWTO.split(after, 1)[1].split("```python\n", 1)[1].split("```", 1)[0])


def calls(code: ast.Module, name: str) -> list[ast.Call]:
    found = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    return [call for call in found if getattr(call.func, "attr", getattr(call.func, "id", None)) == name]


def formats(code: ast.Module) -> dict[str, Format]:
    """The formats that ``from_kafka`` gets."""
    (call,) = calls(code, "from_kafka")
    given = {item.arg: item.value for item in call.keywords if isinstance(item.value, ast.Call)}
    return {str(name): eval(ast.unparse(value), {"Json": Json}) for name, value in given.items()}


def decoded(spark: SparkSession, form: Format, *messages: Any) -> DataFrame:
    values = [json.dumps(one).encode() for one in messages]
    frame = spark.createDataFrame(enumerate(values), "offset int, value binary")
    row, _, problem = form.decode(F.col("value"))
    return frame.select("offset", row.alias("row"), problem.alias("problem"))


def rows_of(spark: SparkSession, recipe: str, *messages: Any) -> list[Any]:
    """The row that a recipe makes of each message; None where there is none, a text where there is a problem."""
    code = block(f"**{recipe}**")
    (where,), (columns,) = calls(code, "filter"), calls(code, "map_values")
    condition, wanted = ast.literal_eval(where.args[0]), ast.literal_eval(columns.args[0])
    frame = decoded(spark, formats(code)["value"], *messages).select("offset", "problem", "row.*")
    made = {row.offset: tuple(row)[1:] for row in frame.where(condition).selectExpr("offset", *wanted).collect()}
    problems = {row.offset: row.problem for row in frame.collect()}
    return [problems[at] or made.get(at) for at in range(len(messages))]


def key_of(spark: SparkSession, recipe: str, key: Any) -> Any:
    told = decode_key(formats(block(f"**{recipe}**"))["key"], F.col("key"))
    return spark.createDataFrame([(json.dumps(key).encode(),)], "key binary").select(told.row).first()[0]  # type: ignore[index]


def test_maxwell(spark: SparkSession) -> None:
    about = {"database": "shop", "table": "e", "ts": 1477053217, "xid": 23396, "commit": True}
    data = {"id": 1, "price": 4.2341, "created": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."}
    found = rows_of(
        spark,
        "Maxwell",
        about | {"type": "insert", "data": data},
        about | {"type": "update", "data": data | {"price": 5.5}, "old": {"price": 4.2341}},
        about | {"type": "delete", "data": data},
        about | {"type": "bootstrap-insert", "data": data},
        about | {"type": "bootstrap-start", "data": {}},
        about | {"type": "insert", "data": data | {"created": 1477028017523}},
    )
    assert [row and str(row[1]) for row in found[:2]] == ["2016-10-21 05:33:37.523000"] * 2
    assert [row and row[0] for row in found[:5]] == [4.2341, 5.5, None, 4.2341, None]
    assert "created: 1477028017523 is a number without a unit" in found[5]
    assert key_of(spark, "Maxwell", {"database": "shop", "table": "e", "pk.id": 1})["pk.id"] == 1


def test_aws_dms(spark: SparkSession) -> None:
    about = {"timestamp": "2023-07-26T10:22:47.048491Z", "record-type": "data"}
    data = {"id": 1, "name": "Ada", "more": None}
    operations = [about | {"operation": name} for name in ("load", "update", "delete")]
    changes = [{"data": data, "metadata": operation} for operation in operations]
    control = {"metadata": {"record-type": "control", "operation": "create-table"}}
    rows = rows_of(spark, "AWS DMS", *changes, control)
    assert rows == [("Ada",), ("Ada",), None, None]


def test_golden_gate(spark: SparkSession) -> None:
    about = {"table": "GG.TCUSTMER", "op_ts": "2023-07-26 10:22:47.048491", "pos": "0001444"}
    row = {"CUST_CODE": "WILL", "NAME": "BG SOFTWARE CO."}
    update = {"op_type": "U", "before": row, "after": row | {"NAME": "OTHER"}}
    others = {"op_type": "D", "before": row}, {"op_type": "T"}
    messages = [about | one for one in ({"op_type": "I", "after": row}, update, *others)]
    rows = rows_of(spark, "GoldenGate", *messages)
    assert [row and row[0] for row in rows] == ["BG SOFTWARE CO.", "OTHER", None, None]
    assert str(rows[0][1]) == "2023-07-26 10:22:47.048491"


def test_mongo_db(spark: SparkSession) -> None:
    after = '{"_id": {"$numberLong": "1004"},"first_name": "Anne","created": {"$date": 1690366967048}}'
    source = {"db": "inventory", "collection": "customers", "ord": 31}
    found = rows_of(
        spark,
        "MongoDB",
        {"schema": {"type": "struct"}, "payload": {"op": "c", "after": after, "source": source}},
        {"payload": {"op": "u", "after": after, "updateDescription": {"updatedFields": '{"first_name": "Anne"}'}}},
        {"payload": {"op": "d", "before": None, "after": None}},
    )
    assert found == [("Anne",), ("Anne",), None]
    key = '{"$numberLong":"1004"}'
    assert key_of(spark, "MongoDB", {"schema": {}, "payload": {"id": key}}).payload.id == key


def test_canal(spark: SparkSession) -> None:
    code = block("**Canal**")
    (form,) = calls(code, "Json")
    where = ast.literal_eval(calls(code, "where")[-1].args[0])
    selected = sorted(calls(code, "selectExpr"), key=lambda call: call.lineno)
    first, second = ([ast.literal_eval(arg) for arg in call.args] for call in selected)
    about = {"database": "inventory", "table": "products", "es": 1589373560000, "isDdl": False, "pkNames": ["id"]}
    data = [{"id": "111", "name": "scooter", "weight": "5.18"}, {"id": "112", "name": "ball", "weight": None}]
    messages = (
        about | {"type": "INSERT", "data": data},
        about | {"type": "UPDATE", "data": data[:1], "old": [{"weight": "5.15"}]},
        about | {"type": "DELETE", "data": data[1:]},
        about | {"type": "ALTER", "isDdl": True, "data": None, "sql": "ALTER TABLE products …"},
    )
    frame = decoded(spark, eval(ast.unparse(form), {"Json": Json}), *messages).select(F.col("row").alias("m"), "offset")
    made = frame.where(where).selectExpr(*first).selectExpr(*second).orderBy("offset", "place")
    assert [tuple(row) for row in made.collect()] == [
        (111, 5.18, "INSERT", 0, 0),
        (112, None, "INSERT", 0, 1),
        (111, 5.18, "UPDATE", 1, 0),
        (112, None, "DELETE", 2, 0),
    ]


def test_debeziums_units(spark: SparkSession) -> None:
    (call,) = calls(block("### Times, decimals and bytes"), "Debezium")
    form: Debezium = eval(ast.unparse(call), {"Debezium": Debezium})
    after = {"id": 1, "created": 1690366967048491, "day": 19564, "price": "1234", "picture": "3q2+7w=="}
    (row,) = decoded(spark, form, {"op": "c", "after": after}).collect()
    assert (row.problem, str(row.row.created), str(row.row.day)) == (None, "2023-07-26 10:22:47.048491", "2023-07-26")
    assert (row.row.price, bytes(row.row.picture)) == (Decimal("-26588.24"), bytes.fromhex("deadbeef"))
