"""The messages of errors, as they stand in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.rooms import nodes

ROOT = Path(__file__).parent.parent


class Message(NamedTuple):
    """An error's text with ``{}`` for what is filled in, its class, and the file and line that raise it."""

    text: str
    error: str
    place: str


_REFUSALS = {
    "require_classic": (" needs a classic Spark session, ", (1, 2)),
    "Ability": (" or newer, and this is ", (0, 1, None, 3)),
}
"""By the name of what is called: the message that its arguments become a part of, and which argument is in which place."""

_NAMES = re.compile(rf"Error$|^(?:{'|'.join(_REFUSALS)})$")
"""Names of calls that may be messages."""


@cache
def raised() -> tuple[Message, ...]:
    """All of them, by file; after those, what the arguments of ``_REFUSALS`` make of some of them."""
    found, refused = [], []
    for file in sorted([*ROOT.glob("fkjoin/**/*.py"), *ROOT.glob("state/**/*.py")]):
        module: Any = nodes(file)[0]
        for node in nodes(file):
            if not isinstance(node, ast.Call) or not _NAMES.search(getattr(node.func, "attr", getattr(node.func, "id", ""))):
                continue
            called, place = ast.unparse(node.func), f"{file.relative_to(ROOT)}:{node.lineno}"
            if called.endswith("Error"):
                found.append(Message("".join(part for argument in node.args for part in _parts(argument)), called, place))
            elif called in _REFUSALS:
                refused.append((called, [_text(argument, module) for argument in node.args], place))
    assert {called for called, *_ in refused} == set(_REFUSALS)  # else a message is lost with a name that went
    return *found, *(_refusal(found, *one) for one in refused)


def _refusal(found: list[Message], called: str, arguments: list[str], place: str) -> Message:
    part, places = _REFUSALS[called]
    (message,) = (one for one in found if part in one.text)
    filled = ["{}" if at is None else arguments[at] for at in places]
    assert message.text.count("{}") == len(filled), message
    return Message(message.text.format(*filled), message.error, place)


def _text(node: ast.AST, module: ast.Module) -> str:
    """The text of an argument, which may be the name of a text of its module."""
    for one in module.body:
        match node, one:
            case ast.Name(id=name), ast.Assign(targets=[ast.Name(id=assigned)], value=value) if name == assigned:
                return _text(value, module)
    return "".join(_parts(node))


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
