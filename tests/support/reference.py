"""The names that the pages of the reference have."""

from __future__ import annotations

import re

import yaml

from tests.support.places import ROOT

_ENTRY = re.compile(r"^::: (\S+)\n((?: {4}.*\n|\n(?= {4}))*)", re.MULTILINE)


def reference() -> dict[str, list[str] | None]:
    """Return the reference's entries by full name, with the members that each lists."""
    found = {}
    for match in _ENTRY.finditer("\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("reference*.md")))):
        about = yaml.safe_load(match[2]) or {}
        found[match[1]] = about.get("options", {}).get("members")
    return found
