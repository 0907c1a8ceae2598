"""Modules of the examples."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.support.places import ROOT


def module_of(example: str, name: str) -> ModuleType:
    """Import a module of an example, as its own programs do."""
    if (folder := str(ROOT / "examples" / example)) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
