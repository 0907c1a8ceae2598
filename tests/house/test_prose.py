"""Prose of README, docs and the documents beside them: length of sentences and lines, and words that are not used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tools import site_pages
from tools.messages import raised

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "adr" / "index.md"]
LONGEST_SENTENCE, LONGEST_LINE = 25, 100

FORBIDDEN = {
    r"who(?:ever|m)?": "name the actor",
    r"nobody|somebody|anybody|everybody": "name the actor",
    r"one's": "write 'your'",
    r"today|nowadays|yesterday|the other day|another day": "say which release, or nothing",
    r"(?:in|of) (?:a|that|the) (?:slow|slower|fast|faster) (?:hour|day)": "no diary: give the range in a table",
    r"simply|obviously|of course|needless to say": "leave it out",
    r"ADR \d+": "link to the decision by what it decides",
}
"""Patterns that prose does not have, and what to do instead."""

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``[^\n]+?``|`[^`]+`")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
_END = re.compile(r"(?<=[.!?])[)*\"]*\s+")


def without_code(text: str) -> str:
    """The text, with code in blocks left out and code in a line as one word; line numbers stay."""
    text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    text = re.sub(
        r"^(?:    .*\n)+",
        lambda block: block[0] if _in_list(text, block.start()) else "\n" * block[0].count("\n"),
        text,
        flags=re.M,
    )
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = _CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)
    return _LINK.sub(lambda link: link[1] + "\n" * (link[0].count("\n") - link[1].count("\n")), text)


def _in_list(text: str, place: int) -> bool:
    before = text[:place].rstrip().rsplit("\n\n", 1)[-1]
    return bool(re.search(_ITEM.pattern, before, re.MULTILINE))


def passages(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists, headings and cells of tables, each with the number of its line."""
    number, kept = 0, list[str]()
    for at, line in enumerate([*without_code(text).splitlines(), ""], 1):
        alone = not line.strip() or line.startswith(("|", "#"))
        if (alone or _ITEM.match(line)) and kept:
            yield number, " ".join(kept)
            kept = []
        if line.startswith("|"):
            yield from ((at, cell) for cell in re.split(r"(?<!\\)\|", line))
        elif line.startswith("#"):
            yield at, line
        elif line.strip():
            number = number if kept else at
            kept.append(_ITEM.sub("", line).strip())


def faults(text: str) -> Iterator[tuple[int, str]]:
    for number, passage in passages(text):
        for sentence in _END.split(passage):
            count = len(re.findall(r"[^\W_][\w'’.,×%-]*", sentence))
            if count > LONGEST_SENTENCE:
                yield number, f"{count} words, at most {LONGEST_SENTENCE}: {sentence.strip()[:70]}…"
        for words, advice in FORBIDDEN.items():
            for found in re.finditer(rf"\b(?:{words})\b", passage, re.IGNORECASE):
                yield number, f"{found[0]!r}: {advice}"
    bare = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(bare.splitlines(), 1):
        if (
            len(line) > LONGEST_LINE
            and not line.startswith(("|", "    ", "![", "[!["))
            and len(_LINK.sub(r"\1", line)) > LONGEST_LINE
        ):
            yield number, f"{len(line)} characters, at most {LONGEST_LINE}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_written_by_the_rules(path: Path) -> None:
    found = sorted(faults(path.read_text()))
    assert found == [], "\n".join(f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in found)


@pytest.mark.parametrize("name", ["commands.md", "job-file.md", "changelog.md", "reporting.md"])
def test_pages_that_are_made_of_the_code_are_written_by_the_rules(name: str) -> None:
    """So ``--help`` and the descriptions of settings are; their lines may be longer."""
    found = [(number, what) for number, what in faults(site_pages.PAGES[name]()) if "characters, at most" not in what]
    assert found == []


def test_messages_name_the_actor() -> None:
    said = [(words, message.text) for message in raised() for words in FORBIDDEN]
    assert [text for words, text in said if re.search(rf"\b(?:{words})\b", text, re.IGNORECASE)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fkjoin reads the topic. It writes a table.", []),
        (" ".join(f"w{n}" for n in range(26)).replace("w9 ", "w9\n"), [1]),
        ("- one\n- " + "\n  ".join(f"w{n}" for n in range(26)), [2]),
        ("| a | " + " ".join(f"w{n}" for n in range(26)) + " |", [1]),
        ("```python\n" + "x " * 200 + "\n```\n\nWhoever reads this.", [5]),
        ("Text.\n\n    whoever  # code\n", []),
        ("The stage `whoever` and [a page](whoever.md).", []),
        ("The stage that knows who reads it.", [1]),
        ("x" * 101, [1]),
        ("A link may be long: [a page](" + "x" * 100 + ").", []),
    ],
)
def test_the_checker_finds_what_is_wrong(text: str, found: list[int]) -> None:
    assert [number for number, _ in faults(text)] == found
