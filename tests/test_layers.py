"""Imports go one way, and the pure part stays pure."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = sorted(
    [
        *(ROOT / "fkjoin" / "stages").glob("*.py"),
        *(
            ROOT / "fkjoin" / f"{name}.py"
            for name in ("arrays", "rows", "records", "versions", "combined_key", "messages", "vectors", "rules", "optimizer")
        ),
        *(ROOT / "fkjoin" / f"{name}.py" for name in ("murmur2", "wire", "wire_change", "frame", "render", "steps", "picture")),
        *(ROOT / "fkjoin" / "aggregates").glob("*.py"),
        *(
            ROOT / "fkjoin" / f"{name}.py"
            for name in ("memory", "traces", "replay", "topology", "errors", "identity", "invariants")
        ),
    ]
)


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_the_pure_part_knows_no_spark_kafka_clock_or_logger(path: Path) -> None:
    forbidden = {"pyspark", "pandas", "rocksdict", "confluent_kafka", "time", "datetime", "logging", "random", "os"}
    assert {name.split(".")[0] for name in imported(path)} & forbidden == set()
    assert not any(name.startswith("fkjoin.spark") for name in imported(path))


def test_the_store_package_knows_nothing_of_joins() -> None:
    for path in (ROOT / "state").glob("*.py"):
        assert not any(name.split(".")[0] in ("fkjoin", "pyspark") for name in imported(path)), path


def test_modules_fit_in_the_head() -> None:
    for folder in ("fkjoin", "state"):
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 350, path


def test_every_package_is_installed() -> None:
    listed = re.search(r"^packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert listed is not None
    found = {
        ".".join(path.parent.relative_to(ROOT).parts) for name in ("fkjoin", "state") for path in (ROOT / name).rglob("*.py")
    }
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == found


def test_no_named_tuple_is_generic() -> None:
    """Python 3.10 cannot have that, and type checkers do not mind."""
    files = [path for package in ("fkjoin", "state") for path in sorted((ROOT / package).rglob("*.py"))]
    classes = [node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    bases = [(made.name, {ast.unparse(base) for base in made.bases}) for made in classes]
    assert len(files) > 100
    assert [name for name, some in bases if "NamedTuple" in some and len(some) > 1] == []
