"""Code that reads one step at a time: what stands within one another, long lines, names that name nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.rooms import MODULES, nodes

LONGEST = 100
OPAQUE = {"at", "found", "given", "kept", "made", "of", "one", "place", "said", "there", "told", "what"}
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def offences(path: Path) -> Iterator[str]:
    """Name what is dense or opaque in a module, with its line."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > LONGEST:
            yield f"{path}:{number}: {len(line)} characters"
    for node in nodes(path):
        if problem := _problem(node):
            yield f"{path}:{getattr(node, 'lineno', 0)}: {problem}"


def _problem(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in OPAQUE:
            return f"the name {name}"
    if not isinstance(node, ast.IfExp | COMPREHENSIONS):
        return None
    inner = [part for part in ast.walk(node) if part is not node]
    if isinstance(node, ast.IfExp) and any(isinstance(part, ast.IfExp) for part in inner):
        return "a conditional expression in another"
    if isinstance(node, COMPREHENSIONS):
        if len(node.generators) > 1:
            return "a comprehension with two for"
        if any(isinstance(part, COMPREHENSIONS | ast.IfExp) for part in inner):
            return "a comprehension with a conditional expression or a comprehension in it"
    return None


def test_modules_say_one_step_at_a_time() -> None:
    assert [problem for path in MODULES.values() for problem in offences(path)] == []
