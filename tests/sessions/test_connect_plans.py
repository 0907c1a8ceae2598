"""A client of Spark Connect reads the operators of a streaming DataFrame from its own plan, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc")

from pyspark.sql.connect import functions as F
from pyspark.sql.connect import plan as of_spark
from pyspark.sql.connect.observation import Observation
from pyspark.sql.types import StructType

from fkjoin.sessions.access import Operator
from fkjoin.sessions.connect import Connect

CLIENT: Any = Connect(None)  # type: ignore[arg-type]


def stateful(child: Any, function: str) -> Any:
    udf: Any = SimpleNamespace(
        _build_common_inline_user_defined_function=lambda *_: SimpleNamespace(_function=SimpleNamespace(_func=function))
    )
    return of_spark.TransformWithStateInPySpark(child, [], udf, StructType([]), "Append", "None", "", [], None, None)


def functions(plan: Any) -> list[str]:
    """The functions of a plan's operators, each after those that it reads."""

    def below(node: Operator) -> list[str]:
        found = [one for child in node.children for one in below(child)]
        return found if node.function is None else [*found, node.function]

    return below(CLIENT.plan(SimpleNamespace(_plan=plan)))


def test_the_name_under_which_rows_are_observed_is_found() -> None:
    counted = of_spark.CollectMetrics(of_spark.Read("t"), "fkjoin:joined", [])
    users = of_spark.CollectMetrics(counted, Observation("mine"), [])
    assert CLIENT.plan(SimpleNamespace(_plan=users)).observed == "mine"
    assert CLIENT.plan(SimpleNamespace(_plan=counted)).observed == "fkjoin:joined"


def test_the_operators_of_all_branches_are_found_each_once_and_in_the_order_in_which_they_read() -> None:
    left, right = (stateful(of_spark.Read("t"), name) for name in ("left", "right"))
    for both in (of_spark.SetOperation(left, right, "union"), of_spark.Join(left, right, F.col("a"), "inner")):
        assert functions(stateful(of_spark.Project(both, [F.col("a")]), "end")) == ["left", "right", "end"]
