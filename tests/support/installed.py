"""Packages that are installed for a test, with entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, modules: dict[str, str], **entry_points: dict[str, str]) -> None:
    """Have a package, called as the folder, of these modules and entry points, by name and by group below ``fkjoin``."""
    about = folder / f"{folder.name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n")
    lines = [
        line
        for group, found in entry_points.items()
        for line in (f"[fkjoin.{group}]", *(f"{name} = {value}" for name, value in found.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)


def install_sqlite(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the example's sink, as its own ``pyproject.toml`` installs it."""
    text = (ROOT / "examples/sqlite/sqlite_sink.py").read_text()
    install(monkeypatch, folder, {"sqlite_sink": text}, sinks={"sqlite": "sqlite_sink:Sqlite"})
