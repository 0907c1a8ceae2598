"""Imports go one way, and the pure part stays pure."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ROOMS = [
    "errors",
    "state",
    "codec",
    "folds",
    "stages",
    "plan",
    "spark",
    "sessions",
    "checkpoint",
    "files",
    "kafka",
    "analysis",
    "lowering",
    "sinks",
    "face",
    "jobs",
    "replay",
    "cli",
]
"""Each imports only from itself and from those above it in this list."""

FACE = ["aggregates", "cogroups", "grouped", "inspection", "join", "operators", "outputs", "table", "testing"]

PURE = ("codec", "folds", "stages", "plan")

UPWARDS: set[tuple[str, str]] = {
    ("analysis.attempt", "table"),
    ("files.kept_schemas", "lowering.recipes"),
    ("files.kept_schemas", "table"),
    ("lowering.aggregates", "table"),
    ("lowering.as_begun", "table"),
    ("lowering.children", "table"),
    ("lowering.completed", "table"),
    ("lowering.foreign_keys", "table"),
    ("lowering.joiner", "table"),
    ("lowering.joins", "table"),
    ("lowering.multi_join", "table"),
    ("lowering.pruning", "table"),
    ("lowering.recipes", "table"),
    ("lowering.unions", "table"),
    ("lowering.views", "table"),
    ("lowering.workers", "table"),
    ("sinks.batches", "table"),
    ("sinks.delta", "table"),
    ("sinks.kafka", "table"),
    ("sinks.parquet", "table"),
    ("sinks.postgres", "table"),
    ("sinks.restored", "table"),
    ("sinks.upserts", "table"),
}
"""Imports that go up.  May only become fewer."""


def modules() -> Iterator[tuple[str, Path]]:
    """The modules of the package, by their names below ``fkjoin``."""
    for folder, _, files in os.walk(ROOT / "fkjoin", followlinks=True):
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                parts = path.relative_to(ROOT / "fkjoin").with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__"), path


MODULES = dict(sorted(modules()))


def room(module: str) -> str:
    first = module.split(".")[0]
    return first if first in ROOMS else "errors" if first == "data" else "face"


def imported(path: Path) -> set[str]:
    """What a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports, or from which it imports something."""
    found = set()
    for name in imported(path):
        below = name.removeprefix("fkjoin").lstrip(".")
        if name.split(".")[0] == "fkjoin":
            found.add(below if below in MODULES else below.rpartition(".")[0])
    return found - {""}


def test_imports_go_from_room_to_room_one_way() -> None:
    up = {
        (module, other)
        for module, path in MODULES.items()
        for other in imported_modules(path)
        if module and ROOMS.index(room(other)) > ROOMS.index(room(module))
    }
    assert up == UPWARDS


def test_only_the_face_lies_in_the_root() -> None:
    roots = {module for module in MODULES if "." not in module and not (ROOT / "fkjoin" / module).is_dir()}
    assert roots == {"errors", *FACE}


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) in PURE or module == "errors"])
def test_the_pure_part_knows_no_spark_kafka_clock_or_logger(module: str) -> None:
    forbidden = {"pyspark", "pandas", "rocksdict", "confluent_kafka", "time", "datetime", "logging", "random", "os"}
    if module == "codec.json_values":
        forbidden.remove("datetime")  # dates are values there, and no clock is asked
    assert {name.split(".")[0] for name in imported(MODULES[module])} & forbidden == set()


def test_the_store_package_knows_nothing_of_joins() -> None:
    stores = {module: path for module, path in MODULES.items() if room(module) == "state"}
    assert len(stores) > 10
    for module, path in stores.items():
        assert {room(other) for other in imported_modules(path)} <= {"state"}, module
        assert not any(name.startswith("pyspark") for name in imported(path)), module


def test_modules_fit_in_the_head() -> None:
    assert {module for module, path in MODULES.items() if len(path.read_text().splitlines()) > 350} == set()


def test_every_package_is_installed() -> None:
    listed = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    found = {f"fkjoin.{module}".rstrip(".") for module, path in MODULES.items() if path.name == "__init__.py"}
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == found


def test_no_named_tuple_is_generic() -> None:
    """Python 3.10 cannot have that, and type checkers do not mind."""
    classes = [
        node for path in MODULES.values() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    bases = [(made.name, {ast.unparse(base) for base in made.bases}) for made in classes]
    assert len(MODULES) > 100
    assert [name for name, some in bases if "NamedTuple" in some and len(some) > 1] == []
