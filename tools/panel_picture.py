"""The picture of a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType

COLUMNS = 100
"""Columns of the terminal in the picture."""

_FETCHED_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(lines: Iterable[RenderableType]) -> str:
    """Return an SVG of a terminal that shows the lines, in a font of the reader's machine."""
    console = Console(file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True, color_system="truecolor")
    console.print(Group(*lines))
    return _FETCHED_FONT.sub("", console.export_svg(title="fkjoin run job.toml", unique_id="panel"))
