"""First bytes of stores' keys: one module names them, and they stay the same for ever."""

from __future__ import annotations

import ast
import re

import pytest

from fkjoin.codec import tags
from tests.support.rooms import MODULES, room

ROOMS = ("folds", "stages", "spark", "checkpoint")
IN_ONE_STORE = (
    (tags.ROW, tags.RIGHT, tags.SUBSCRIBER, tags.DUE, tags.EXTREME),
    (tags.ROW, tags.RIGHT, tags.SUBSCRIBER, tags.DUE, tags.ENDS),
    (tags.ROW, tags.EXTREME, tags.CLOSES, tags.TIME),
    (tags.ROW, tags.BORROWED, tags.DUE, tags.ENDS),
    (tags.WAITING, tags.EMITTED),
)


def test_the_bytes_of_tags_stand_in_checkpoints() -> None:
    named = {name: value for name, value in vars(tags).items() if isinstance(value, bytes)}
    assert named == {
        "ROW": b"d",
        "RIGHT": b"r",
        "SUBSCRIBER": b"s",
        "DUE": b"t",
        "WAITING": b"p",
        "EMITTED": b"e",
        "ENDS": b"e",
        "CLOSES": b"w",
        "BORROWED": b"b",
        "TIME": b"h",
        "EXTREME": b"o",
    }


@pytest.mark.parametrize("store", IN_ONE_STORE)
def test_the_tags_of_a_store_differ(store: tuple[bytes, ...]) -> None:
    assert len(set(store)) == len(store)


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) in ROOMS])
def test_no_module_writes_a_tag_of_its_own(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, bytes)}
    assert not [literal for literal in literals if re.fullmatch(rb"[a-z]{1,3}", literal)]
