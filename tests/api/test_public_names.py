"""What completion and ``help`` show: what the reference has, and nothing else."""

from __future__ import annotations

import importlib
import pydoc
import re
import subprocess
import sys
from typing import Any

import pytest

import fkjoin
from tests.support.places import ROOT
from tests.support.reference import reference

MODULES = ("aggregates", "kafka", "metrics", "sinks", "testing")


def public(of: Any) -> list[str]:
    return sorted(name for name in dir(of) if not name.startswith("_"))


@pytest.mark.parametrize(
    "name", ["fkjoin.Table", "fkjoin.grouped.Grouped", "fkjoin.events.Enriched", *(f"fkjoin.{module}" for module in MODULES)]
)
def test_what_completion_offers_is_in_the_reference(name: str) -> None:
    above, _, last = name.rpartition(".")
    assert public(getattr(importlib.import_module(above), last)) == sorted(reference()[name] or [])


def test_what_the_package_offers_is_in_the_reference() -> None:
    direct = {name.removeprefix("fkjoin.") for name in reference() if name.count(".") == 1}
    assert set(public(fkjoin)) == direct == {*fkjoin.__all__, *MODULES}


def test_every_name_that_is_offered_is_there() -> None:
    for name in public(fkjoin):
        assert getattr(fkjoin, name).__doc__, name


def test_the_modules_are_attributes_and_imported_when_they_are_asked_for() -> None:
    """In a process of its own: each of Spark's workers imports the package."""
    code = f"""
import sys
before = set(sys.modules)
import fkjoin
dir(fkjoin)
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names))
for name in {MODULES!r}:
    assert getattr(fkjoin, name).__name__ == f"fkjoin.{{name}}"
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "['fkjoin']\n"


def test_an_unknown_name_is_said_to_be_none() -> None:
    with pytest.raises(AttributeError, match="module 'fkjoin' has no attribute 'Tabel'"):
        fkjoin.Tabel  # noqa: B018


def test_help_shows_what_is_public() -> None:
    text = pydoc.plain(pydoc.render_doc(fkjoin.Table))
    shown = set(re.findall(r"^ \|  (\w+)(?:\(|$)", text, re.MULTILINE))
    public_names = {name for name in shown if not name.startswith("__")}
    assert public_names - {"Table"} == set(public(fkjoin.Table))
