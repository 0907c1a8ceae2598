"""Code in documents, and documents as programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from tests.support.places import ROOT

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""A block: its indentation, which blocks in tabs have, its language, its text."""


class Block(NamedTuple):
    """A block of code, and the last line of text before it."""

    language: str
    text: str
    before: str


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of code of a document."""
    text = path.read_text()
    for match in FENCE.finditer(text):
        before = [line for line in text[: match.start()].splitlines() if line]
        yield Block(match[2], dedent(match[3]), before[-1] if before else "")


def program(document: str, *, here: bool = False) -> tuple[str, list[tuple[int, str]]]:
    """A document as a program, and what its blocks, by number, are to print.

    Files are written under the names in the lines before them, and code runs in turn.  Commands are processes, or, with
    ``here``, are given to a function of that name.  What stands in a ``console`` is only shown, and so are parts of files.
    """
    script, wanted = ["import subprocess", "from pathlib import Path"], []
    for number, block in enumerate(blocks(ROOT / document)):
        if block.language in ("csv", "toml"):
            if document == "README.md":  # parts of a file that ``fkjoin init`` has written
                continue
            name = re.findall("`([^`]+)`", block.before)[-1]
            script += [f"Path({name!r}).parent.mkdir(exist_ok=True)", f"Path({name!r}).write_text({block.text!r})"]
        elif block.language == "python":
            script += [f"print('<{number}>')", block.text, f"print('</{number}>', flush=True)"]
        elif block.language == "sh":
            script.append(f"here({block.text!r})" if here else f"subprocess.run(['sh', '-ec', {block.text!r}], check=True)")
        elif block.language != "console":
            assert block.language == "text"
            wanted.append((number - 1, block.text.strip()))
    return "\n".join(script), wanted


def check_printed(printed: str, wanted: list[tuple[int, str]]) -> None:
    """Raise ``AssertionError`` unless a document's program has printed what follows its blocks."""
    assert wanted
    for number, text in wanted:
        assert printed.split(f"<{number}>")[1].split(f"</{number}>")[0].strip() == text


def check_tutorial(folder: Path, printed: str, wanted: list[tuple[int, str]]) -> None:
    """Raise ``AssertionError`` unless the tutorial, run in a folder, has printed what it says, and left its results."""
    assert len(wanted) == 4
    check_printed(printed, wanted)
    assert '"name": "Ada"' in printed.rsplit("</", 1)[1], "what fkjoin state get prints"
    assert len(list((folder / "job").glob("*/batch=*"))) == 2
