"""The rooms of the package, and which modules lie in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.places import ROOT

ROOMS = [
    *("errors", "state", "codec", "folds", "stages", "plan", "spark", "storage", "sessions", "checkpoint"),
    *("files", "kafka", "analysis", "lowering", "sinks", "face", "metrics", "testing", "jobs", "cli"),
]
"""Each imports only from itself and from those above it in this list."""

FACE = [
    *("aggregates", "events", "grouped", "join"),
    *("operators", "outputs", "row_operators", "sources", "table"),
]

PURE = ("codec", "folds", "stages", "plan")


def modules() -> Iterator[tuple[str, Path]]:
    """The modules of the package, by their names below ``fkjoin``, where ``state`` is a link."""
    package = ROOT / "fkjoin"
    for path in (*package.rglob("*.py"), *(package / "state").rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


MODULES = dict(sorted(modules()))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree, which several tests look at: parsing the package takes seconds."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def room(module: str) -> str:
    """The room of a module; ``KeyError`` if its folder is not known as one."""
    elsewhere = {"data": "errors", "__main__": "cli", **dict.fromkeys(["", *FACE], "face")}
    return ({name: name for name in ROOMS} | elsewhere)[module.split(".")[0]]
