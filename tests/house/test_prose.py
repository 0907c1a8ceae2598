"""Prose of README, docs and the documents beside them: length of sentences and lines, and words that are not used."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import griffe
import pytest

from tests.support.places import ROOT
from tests.support.reference import public
from tests.support.rooms import MODULES, nodes
from tools import site_pages
from tools.messages import raised

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "adr" / "index.md"]
LONGEST_SENTENCE, LONGEST_LINE, LONGEST_CODE = 25, 100, 79
"""Words, characters, and the width of a line of code that the site shows without a scroll bar."""
LONGEST_CELL, LONGEST_NARROW_CELL, ANY_LENGTH = 25, 15, sys.maxsize
"""Words of a cell: in a table of two columns, and of more, which is for figures and names."""

HABITS = {
    r"(?<!there )(?:is|are|was|were) no (?!longer|more\b)\w+": "write 'is not a …'",
    r"(?:that|those) of": "repeat the noun",
    r"anew": "again, or new",
    r"go(?:es)? on|went on": "continue",
    r"mend(?:s|ed|ing)?": "fix, or repair",
    r"cannot have": "cannot store, or cannot contain",
    r"(?:page|section|document|list|report|log|message|line|error) (?:has|have)": "shows, says, or contains",
}
"""Habits of our words, which docstrings do not have either."""

NO_ACTOR = r"who(?:ever|m)?|nobody|somebody|anybody|everybody"
FORBIDDEN = {
    NO_ACTOR: "name the actor",
    r"one's": "write 'your'",
    r"today|nowadays|yesterday|the other day|another day": "say which release, or nothing",
    r"(?:in|of) (?:a|that|the) (?:slow|slower|fast|faster) (?:hour|day)": "no diary: give the range in a table",
    r"simply|obviously|of course|needless to say": "leave it out",
    r"TBD|TODO": "measure it, or leave it out",
    r"ADR \d+": "link to the decision by what it decides",
    **HABITS,
}
"""Patterns that prose does not have, and what to do instead."""

NOT_USED = {
    r"late (?:answer|message|tombstone)s?": "stale",
    r"stars?": "multi-way join",
    r"early": "pre-resolve rows",
    r"unread": "undecoded source",
    r"packed results?": "encoded results",
    r"as (?:it was|they were)(?! (?:asked|closed|emitted|read|sent|written)\b)": "unchanged",
    r"(?<!highwater )marks?": "tombstone marker",
    r"derived tables?": "view",
}
"""Words that are not used, and the names in the glossary that are."""

RULES = FORBIDDEN | {words: f"the name is {name!r}; see docs/glossary.md" for words, name in NOT_USED.items()}

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^(?! *(?:[-*]|\d+\.) )(\S.*\n\n?)((?:    .*\n|\n(?=    ))+)", re.MULTILINE)
"""A block of code below a line that is no item of a list."""
_CODE = re.compile(r"``[^\n]+?``|`[^`]+`")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
_END = re.compile(r"(?<=[.!?])[)*\"]*\s+")


def without_code(text: str) -> str:
    """The text, with code in blocks left out and code in a line as one word; line numbers stay."""
    text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    text = _INDENTED.sub(lambda block: block[1] + "\n" * block[2].count("\n"), text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = _CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)
    return _LINK.sub(lambda link: link[1] + "\n" * (link[0].count("\n") - link[1].count("\n")), text)


def passages(text: str) -> Iterator[tuple[int, str, int]]:
    """Paragraphs, items, headings and cells, with their lines' numbers, and how many words a cell may have."""
    number, kept = 0, list[str]()
    for at, line in enumerate([*without_code(text).splitlines(), ""], 1):
        alone = not line.strip() or line.startswith(("|", "#"))
        if (alone or _ITEM.match(line)) and kept:
            yield number, " ".join(kept), ANY_LENGTH
            kept = []
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            longest = LONGEST_NARROW_CELL if len(cells) > 2 else LONGEST_CELL
            yield from ((at, cell, longest) for cell in cells)
        elif line.startswith("#"):
            yield at, line, ANY_LENGTH
        elif line.strip():
            number = number if kept else at
            kept.append(_ITEM.sub("", line).strip())


def faults(text: str, rules: dict[str, str] = RULES) -> Iterator[tuple[int, str]]:
    for number, passage, longest in passages(text):
        if (count := len(passage.split())) > longest:
            yield number, f"a cell of {count} words, at most {longest}: {passage.strip()[:60]}…"
        for sentence in _END.split(passage):
            count = len(re.findall(r"[^\W_][\w'’.,×%-]*", sentence))
            if count > LONGEST_SENTENCE:
                yield number, f"{count} words, at most {LONGEST_SENTENCE}: {sentence.strip()[:70]}…"
        for words, advice in rules.items():
            for found in re.finditer(rf"\b(?:{words})\b", passage, re.IGNORECASE):
                yield number, f"{found[0]!r}: {advice}"
    for block in _FENCE.finditer(text):
        first = text[: block.start()].count("\n") + 1
        for number, line in enumerate(block[0].splitlines(), first):
            if len(line) - len(block[1]) > LONGEST_CODE:
                yield number, f"{len(line)} characters of code, at most {LONGEST_CODE}"
    bare = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(bare.splitlines(), 1):
        shown = _LINK.sub(r"\1", line)
        if len(shown) > LONGEST_LINE and not line.startswith(("|", "    ", "![", "[![")):
            yield number, f"{len(line)} characters, at most {LONGEST_LINE}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_written_by_the_rules(path: Path) -> None:
    found = sorted(faults(path.read_text(), FORBIDDEN if path.parent.name == "adr" else RULES))
    assert found == [], "\n".join(f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in found)


def test_pages_and_docstrings_of_the_reference_are_written_by_the_rules() -> None:
    """So ``--help`` and the descriptions of settings are; lines and cells may be longer."""
    pages = ("commands.md", "job-file.md", "changelog.md", "reporting.md")
    texts = [(name, site_pages.PAGES[name]()) for name in pages]
    for name, documented in public().items():
        texts += [(name, text.replace("``", "`")) for text in said_by(documented)]
    for name, text in texts:
        advice = [about for _, about in faults(text)]
        assert [about for about in advice if not re.match(r"\d+ char|a cell of", about)] == [], name


def said_by(of: object) -> Iterator[str]:
    """The text of a docstring, and what its tables and examples say."""
    for section in griffe.parse_numpy(griffe.Docstring(inspect.getdoc(of) or ""), warnings=False):
        if section.kind.value == "text":
            yield section.value
        elif section.kind.value == "examples":
            yield from (text for kind, text in section.value if kind.value == "text")
        else:
            yield from (item.description for item in section.value)


def test_messages_name_the_actor_and_keep_to_the_names_of_the_glossary() -> None:
    wrong = re.compile(rf"\b(?:{'|'.join(RULES)})\b", re.IGNORECASE)
    assert [message for message in raised() if wrong.search(message.text)] == []


def test_the_glossary_has_the_names_that_are_kept_to() -> None:
    names = re.findall(r"\*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text())
    assert set(NOT_USED.values()) - set(names) == set()
    assert len(names) == len(set(names))


_NO_BEGINNING = re.compile(
    r"(?:Of|As|What|Which|Who(?:m|se)?|Whether|The same|How|When|Where|Why|If|That|Wh(?:at|ich|o|om)ever"
    r"|From (?:how|which|where)|(?:Under|In|For) wh(?:at|ich))\b"
)
"""Beginnings that are neither a noun nor an imperative verb."""


FOLDERS = "tools", "benchmarks", "tests", "integration", "examples"


def in_docstrings(path: Path, *not_used: str) -> Iterator[str]:
    """Wrong beginnings of docstrings, and words in them and in names of classes that are not used."""
    wrong = re.compile(rf"\b(?:{'|'.join(not_used)})\b", re.IGNORECASE)
    for node in nodes(path):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                words = " ".join(re.sub(r"``[^`]*``", "X", text).split())
                offence = _NO_BEGINNING.match(words) or wrong.search(words)
            case ast.ClassDef(name=name) if name not in OF_SINKS:
                words = " ".join(re.findall(r"[A-Z]?[a-z]+", name))
                offence = wrong.search(words.replace("Derived", "derived tables"))
            case _:
                continue
        if offence:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {offence[0]}"


def test_docstrings_and_classes_are_written_by_the_rules() -> None:
    """Docstrings of attributes, too; outside of the package, their beginnings and actors alone."""
    assert len(MODULES) > 100
    rules = NO_ACTOR, *HABITS, *NOT_USED
    assert [offence for path in MODULES.values() for offence in in_docstrings(path, *rules)] == []
    # A walk of a tree takes long: of those that have such words nowhere there is none.
    candidate = re.compile(rf'"""{_NO_BEGINNING.pattern}|\b(?:{NO_ACTOR})\b', re.IGNORECASE)
    others = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS)
    candidates = [path for path in others if candidate.search(path.read_text())]
    assert [offence for path in candidates for offence in in_docstrings(path, NO_ACTOR)] == []


OF_SINKS = {"Mark"}
"""A batch as a sink remembers it: neither of the marks in the glossary."""


WORDS = " ".join(f"w{number}" for number in range(26))
TEXTS = {
    "fkjoin reads the topic. It writes a table.": [],
    WORDS.replace("w9 ", "w9\n"): [1],
    f"- one\n- {WORDS}": [2],
    f"| a | {WORDS.replace(' ', '. ')} |": [1],
    f"| a | b | {'w. ' * 16}|": [1],
    f"| a | b | `{WORDS}` |": [],
    f"Text\n\n```python\n{'x' * 80}\n```\n\nWhoever.": [4, 7],
    "There is no table, but this is no table.": [1],
    "Text.\n\n    whoever\n\nThe `whoever` and [a page](whoever.md).": [],
    f"{'x' * 101}\n\n[a page]({'x' * 100}).": [1],
}
"""Texts, and the lines in which something is wrong."""


def test_the_checker_finds_what_is_wrong() -> None:
    assert {text: sorted(line for line, _ in faults(text)) for text in TEXTS} == TEXTS
