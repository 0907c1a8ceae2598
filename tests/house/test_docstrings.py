"""Docstrings of public names are numpydoc: ``help()``, editors and the reference show their parameters as tables."""

from __future__ import annotations

import doctest
import inspect
import re
from collections import defaultdict
from inspect import Parameter
from pathlib import Path
from typing import Any

import griffe
import pytest
from pyspark.sql import DataFrame, SparkSession

import fkjoin
from fkjoin import testing
from fkjoin.spark.schemas import struct_type
from tests.support.queries import write_lines
from tests.support.reference import choices, parameters, public, title, type_name

PUBLIC = public()
OF_TESTING: dict[str, Any] = {name: getattr(testing, name) for name in testing.__all__}


def sections(of: Any) -> dict[str, Any]:
    parsed = griffe.parse_numpy(griffe.Docstring(inspect.getdoc(of) or ""), warnings=False)
    return {section.kind.value: section.value for section in parsed}


def texts_of_parameters(of: Any) -> dict[str, str]:
    return {one.name.lstrip("*"): " ".join(one.description.split()) for one in sections(of).get("parameters", [])}


def test_public_docstrings_send_the_reader_to_no_file_and_no_other_call() -> None:
    """Readers of ``help()`` and of the site may have no checkout: pages are named by their titles."""
    for name, of in PUBLIC.items():
        assert re.findall(r"\bdocs/\S+", inspect.getdoc(of) or "") == [], name
        for parameter, text in texts_of_parameters(of).items():
            assert not re.search(r"\bsee ``", text, re.IGNORECASE), f"{name}: {parameter}"


def test_parameters_are_those_of_the_signature() -> None:
    for name, of in PUBLIC.items():
        found = sections(of)
        listed = [*found.get("parameters", []), *found.get("attributes", [])]
        assert [one.name for one in listed] == list(map(title, parameters(of))), name
        assert [one.name for one in listed if one.annotation is None] == [], name


def test_each_parameter_has_a_line_with_the_type_and_the_default_of_the_signature() -> None:
    """Parameters whose types are the same in the signatures have the same words; a choice has its texts, the default first."""
    words = defaultdict[str, set[str]](set)
    for name, of in PUBLIC.items():
        known = {title(one): one for one in parameters(of)}
        _, _, text = (inspect.getdoc(of) or "").partition("Parameters\n----------\n")
        text = re.split(r"\n\n\w+\n---", text)[0]
        for label, kind, rest in re.findall(r"^(\S+) : (.*?)(, optional|, default .*)?$", text, re.MULTILINE):
            parameter = known[label]
            default = parameter.default
            assert rest in endings(default), f"{name}: {label}"
            if texts := re.findall(r'"([^"]*)"', kind):
                assert texts == sorted(choices(of, parameter), key=lambda value: value != default), f"{name}: {label}"
                # griffe takes the first one in braces for the default.
                assert kind.startswith("{") == isinstance(default, str), f"{name}: {label}"
                kind = "choice"
            words[type_name(parameter)].add(kind)
    assert len(words.pop("Any")) > 1
    assert {kind: several for kind, several in words.items() if len(several) > 1} == {}


def endings(default: Any) -> tuple[str, ...]:
    """The words about a default that may follow a parameter's type."""
    if default is Parameter.empty:
        return ("",)
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    return (", optional",) if default is None else (f", default {shown}", ", optional")


def test_a_parameter_has_one_text_in_all_calls_that_take_it() -> None:
    """Each call and sink repeats the text, since editors read docstrings as they are written."""
    texts = set[tuple[str, str]]()
    for of in PUBLIC.values():
        texts.update(texts_of_parameters(of).items())
    names = {name for name, _ in texts}
    assert len(texts) - len(names) == OTHER_TEXTS, "a text that is changed is changed in all calls"


OTHER_TEXTS = 117
"""Further texts of parameters whose names have several, since they are not the same thing."""


def test_what_is_returned_is_said_and_examples_are_python() -> None:
    for name, of in PUBLIC.items():
        if not inspect.isclass(of) and getattr(of, "__annotations__", {}).get("return") != "None":
            assert {"returns", "yields"} & set(sections(of)), name
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(of) or ""):
            compile(example.source, name, "exec")


def test_examples_of_tests_without_spark_are_true() -> None:
    runner = doctest.DocTestRunner()
    finder = doctest.DocTestFinder()
    kits = ["JoinTest", "KeyJoinTest", "EnrichTest", "AggregateTest", "FlatMapTest", "left", "right", "change", "event"]
    for kit in (testing, *map(OF_TESTING.__getitem__, kits)):
        for test in finder.find(kit, kit.__name__, globs=OF_TESTING):
            assert runner.run(test).failed == 0, test.name
    assert runner.tries > 8


FIVE = {"sku": "tea", "n": 5}
SHOP: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "orders": (
        "order_id string, customer_id string, amount double, lsn bigint",
        [("o1", "c1", 10.0, 7), ("o2", "c2", 25.0, 8), ("o3", "c1", 5.0, 9)],
    ),
    "old_orders": (
        "order_id string, customer_id string, amount double, lsn bigint",
        [("o0", "c2", 99.0, 1), ("o1", "c1", 1.0, 2)],
    ),
    "customers": (
        "customer_id string, name string, region string, lsn bigint",
        [("c1", "Ada", "north", 3), ("c2", "Grace", "south", 4)],
    ),
    "payments": ("order_id string, paid double, lsn bigint", [("o1", 10.0, 5)]),
    "carts": (
        "cart_id string, items array<struct<sku: string, n: bigint>>, lsn bigint",
        [("a1", [{"sku": "tea", "n": 2}, {"sku": "tin", "n": 1}], 1), ("a2", [FIVE], 2)],
    ),
}
"""Tables of the examples that show results: their columns, the first is the key, and their changes."""

SHOWN = [
    *("fk_join", "cogroup", "window"),
    *(f"Table.{name}" for name in ("columns", "schema", "preview", "describe", "stages", "join", "filter", "map_values")),
    *(f"Table.{name}" for name in ("select", "drop", "with_columns", "flat_map", "rekey", "group_by", "with_children")),
    *(f"Table.{name}" for name in ("merge", "enrich", "materialize")),
    *(f"grouped.Grouped.{name}" for name in ("agg", "count", "sum", "avg", "min", "max", "aggregate", "reduce")),
    *(f"aggregates.{name}" for name in fkjoin.aggregates.__all__[1:]),
    *("events.Enriched.describe", "TopologyError", "read_state", "StateReader"),
    *(f"StateReader.{name}" for name in ("get", "get_many", "batch", "cache_size", "refresh", "close")),
    *("testing.Driver", *(f"testing.Driver.{name}" for name in ("inputs", "table", "results", "count", "dead_letters"))),
    *(f"testing.Driver.{name}" for name in ("now", "advance", "input", "run", "clear")),
]
"""Calls whose examples run, one after the other; later ones read what earlier ones have written."""


def in_memory(table: fkjoin.Table) -> DataFrame:
    """The rows of a table of the shop."""
    driver = testing.Driver(table)
    for name in driver.inputs:
        schema, changes = SHOP[name]
        names = struct_type(schema, name).names
        for *cells, lsn in changes:
            driver.input(name).change(cells[0], dict(zip(names, cells, strict=False)), version=lsn)
    driver.run()
    rows = [[*(key if isinstance(key, tuple) else [key]), *row.values()] for key, row in driver.table.items()]
    return table._planned.spark.createDataFrame(rows, table.schema)


def test_examples_show_what_they_print(
    spark: SparkSession, tmp_path: Path, small_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previews are rows of the same plan in memory, since each is a query, and takes a second."""
    monkeypatch.setattr(fkjoin.Table, "preview", in_memory)
    names = OF_TESTING | {"fkjoin": fkjoin, "fk_join": fkjoin.fk_join, "agg": fkjoin.aggregates}
    for name, (schema, rows) in SHOP.items():
        columns = struct_type(schema, name).names
        write_lines(tmp_path / name, "0", [dict(zip(columns, row, strict=True)) for row in rows])
        about = {"key": columns[0], "version": "lsn", "schema": schema}
        names[name] = fkjoin.Table.from_files(spark, tmp_path / name, **about)
    write_lines(tmp_path / "clicks", "0", [{"page": "start", "customer_id": "c1"}, {"page": "cart", "customer_id": "c9"}])
    names["clicks"] = spark.readStream.schema("page string, customer_id string").json(str(tmp_path / "clicks"))
    names |= {"spark": spark, "driver": testing.Driver(names["orders"])}
    names |= {"cogroup": fkjoin.cogroup, "window": fkjoin.window, "returns": names["orders"].filter("true", name="returns")}
    said, runner = list[str](), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for name in SHOWN:
        text = re.sub(r'"(?=(?:ck|lake)/)', f'"{tmp_path}/', inspect.getdoc(PUBLIC[f"fkjoin.{name}"]) or "")
        runner.run(doctest.DocTestParser().get_doctest(text, names, name, None, 0), out=said.append, clear_globs=False)
        if name == "StateReader":
            names["reader"] = fkjoin.StateReader(tmp_path / "ck" / "joined", "joined")
    assert said == [], "".join(said)
