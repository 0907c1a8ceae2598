"""Imports go one way, and the pure part stays pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tomllib

from tests.support.places import ROOT
from tests.support.rooms import FACE, MODULES, PURE, ROOMS, nodes, room


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules and names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(found)


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports, or from which it imports something; of the package itself, ``table``."""
    found = set()
    for name in imported(path):
        below = name.removeprefix("fkjoin").lstrip(".")
        if name.split(".")[0] == "fkjoin" and name != "fkjoin.__version__":
            found.add(below if below in MODULES and below else below.rpartition(".")[0] or "table")
    return found


def by_name(path: Path) -> set[str]:
    """The modules of rooms whose full names a file has as texts, by which it could import them."""
    constants = (node.value for node in nodes(path) if isinstance(node, ast.Constant))
    texts = [value for value in constants if isinstance(value, str) and value.count(".") > 1]
    return {text.removeprefix("fkjoin.") for text in texts} & set(MODULES)


FOR_OTHERS = {"sessions.local_daemon"}
"""Modules that have other processes import what is above them."""


def test_imports_go_from_room_to_room_one_way() -> None:
    up = {
        (module, other)
        for module, path in MODULES.items()
        for other in imported_modules(path) | (by_name(path) if module not in FOR_OTHERS else set())
        if module and ROOMS.index(room(other)) > ROOMS.index(room(module))
    }
    assert up == set()


def test_no_modules_import_one_another() -> None:
    """Imports for type checkers and within functions count; those from a package's root are its users' way in."""
    imports = {module: imported_modules(path) - {module} for module, path in MODULES.items() if module}
    TopologicalSorter(imports).prepare()  # raises CycleError


PRIVATE = re.compile(
    r"\._(jvm|jsq|jdf|jc|jsc|sc|jsparkSession|gateway|active_spark_context|instantiatedSession|ensure_initialized|expr)\b"
    r"|_find_spark_home|_streamingCheckpointManager|_accumulatorServer|\._(query|run)_id\b|__module__\.startswith"
)


def test_private_names_of_pyspark_stand_in_one_module() -> None:
    using = {module for module, path in MODULES.items() if PRIVATE.search(path.read_text())}
    assert using == {"spark.spark_api"}


def test_metrics_stand_beside_the_face_and_only_the_face_lies_in_the_root() -> None:
    """Neither room imports the other one, though one of them must be earlier in the list."""
    of_metrics = {other for module, path in MODULES.items() if room(module) == "metrics" for other in imported_modules(path)}
    assert {other for other in of_metrics if room(other) == "face"} == set()
    roots = {module for module in MODULES if "." not in module and not (ROOT / "fkjoin" / module).is_dir()}
    assert roots == {"errors", "__main__", *FACE}


def test_the_pure_part_knows_no_spark_kafka_clock_or_logger() -> None:
    forbidden = {"pyspark", "pandas", "rocksdict", "confluent_kafka", "time", "datetime", "logging", "random", "os"}
    dates = ("codec.json_values", "codec.protobuf_fields")  # they are values there, and no clock is asked
    pure = [module for module in MODULES if room(module) in PURE or module == "errors"]
    known = {module: {name.split(".")[0] for name in imported(MODULES[module])} & forbidden for module in pure}
    assert len(pure) > 60
    assert {module: names for module, names in known.items() if names} == {module: {"datetime"} for module in dates}


def test_the_store_package_knows_nothing_of_joins() -> None:
    stores = {module: path for module, path in MODULES.items() if room(module) == "state"}
    for module, path in stores.items():
        assert {room(other) for other in imported_modules(path)} <= {"state"}, module
        assert not any(name.startswith("pyspark") for name in imported(path)), module


def test_modules_fit_in_the_head() -> None:
    assert {module for module, path in MODULES.items() if len(path.read_text().splitlines()) > 600} == set()


def test_every_package_is_installed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert len(setuptools["packages"]) == sum(path.name == "__init__.py" for path in MODULES.values())


def test_no_named_tuple_is_generic() -> None:
    """Python 3.10 cannot have that, and type checkers do not mind."""
    for path in MODULES.values():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
                assert "NamedTuple" not in map(ast.unparse, node.bases), node.name


TESTS = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "integration").rglob("*.py"))]


def test_no_test_module_is_imported() -> None:
    """Code that several test modules need is in tests/support, or in a module of integration that has no tests."""
    modules = {path.stem for path in TESTS}
    for path in TESTS:  # also in programs that they have as texts
        for statement in re.findall(r"^ *(?:from|import) [^\n(]*(?:\([^)]*\))?", path.read_text(), re.MULTILINE):
            assert modules.isdisjoint(re.findall(r"\btest_\w+", statement)), path


def test_tests_lie_in_the_rooms_that_they_test() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders ^ set(ROOMS) == {"errors", "face", "api", "benchmarks", "docker", "house", "replay"}


SHARED_NAMES = {
    *("BYTES", "Bytes", "Ints"),  # of arrays: ``state`` uses no other room; users call a format ``Bytes``, too
    "Settings",  # of a session, and of a registry's client
    "Kind",  # of a job file's section, and of a registry's records
    "app",  # as Typer calls it
}
"""Names that several modules may give to what they have."""


def own_names(path: Path) -> Iterator[str]:
    """The classes, and the public constants and type aliases, that a module makes."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name[0] != "_":
                yield name


def test_a_class_a_constant_and_a_type_has_a_name_of_its_own() -> None:
    counted = Counter(name for path in MODULES.values() for name in set(own_names(path)))
    assert {name for name, modules in counted.items() if modules > 1} == SHARED_NAMES
