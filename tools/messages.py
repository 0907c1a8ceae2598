"""The messages of errors, as they stand in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Message(NamedTuple):
    """An error's text with ``{}`` for what is filled in, its class, and the file and line that raise it."""

    text: str
    error: str
    place: str


@cache
def raised() -> tuple[Message, ...]:
    """All of them, by file."""
    found = []
    for file in sorted([*ROOT.glob("fkjoin/**/*.py"), *ROOT.glob("state/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and (error := ast.unparse(node.func)).endswith("Error"):
                text = "".join(part for argument in node.args for part in _parts(argument))
                found.append(Message(text, error, f"{file.relative_to(ROOT)}:{node.lineno}"))
    return tuple(found)


def _parts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _parts(value)
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="set_aside")) as call) | (
            ast.Call(func=ast.Name(id="set_aside")) as call
        ):
            yield f'; with on_error="dead-letter" such {"".join(_parts(call.args[0]))} are set aside'
        case ast.BinOp(left=left, right=right):
            yield from _parts(left)
            yield from _parts(right)
        case _:
            yield "{}"
