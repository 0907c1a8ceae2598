"""The innermost cause in what Spark says of a query that has failed: Java's messages, with Python's tracebacks in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fkjoin.errors import users_frames

_HEAD = "Traceback (most recent call last):"
_PLAN = "=== Streaming Query ==="
_OURS = "fkjoin.errors.", "fkjoin.state.errors.", "state.errors."
_OF_SPARK = re.compile(
    r"(pyspark\.errors\.exceptions\.captured|py4j\.protocol|org\.apache\.spark(\.\w+)*)\.\w+(Exception|Error)"
)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_CAUSED = re.compile(r"^Caused by: (.*(?:\n(?!\s+at |\s*\.\.\. |Caused by: ).*)*)", re.MULTILINE)
_OF_JAVA = re.compile(r"^(?:[a-z]\w*\.)+(\w+(?:Exception|Error))(?:: |$)")
_ABOUT = re.compile(
    r"^(?:\[STREAM_FAILED\] )?Query \[id = [^]]*\] terminated with exception: |^An error occurred while calling \S+\s*:\s*"
)
_STACK = re.compile(r"\n\s*(?:at [\w.$/]+\(|JVM stacktrace:|Driver stacktrace:)")
_LONGEST = 1000


class Cause(NamedTuple):
    """The first thing that went wrong."""

    text: str
    """One line; of a message of fkjoin's, the message alone."""
    ours: str | None = None
    """The class, if it is an error of fkjoin's own."""
    frames: tuple[str, ...] = ()
    """The places in the user's own code, the innermost last."""


def innermost(messages: Sequence[str]) -> Cause:
    """Find the first cause in the messages of a Java exception and of its causes, the innermost last."""
    texts = [text.split(_PLAN, 1)[0].strip() for text in messages if text and text.strip()]
    told = next((text for text in reversed(texts) if _HEAD in text), None)
    if told is None:
        return Cause(_line(_java(texts[-1]))) if texts else Cause("nothing is said of it")
    sections = told.split(_HEAD)[1:]
    kind, _, text = _raised(sections[-1]).partition(": ")
    frames = next((found for section in reversed(sections) if (found := tuple(users_frames(section)))), ())
    if kind.startswith(_OURS):
        return Cause(_line(text), kind.rpartition(".")[2], frames)
    if _OF_SPARK.fullmatch(kind.strip()):
        deeper = _CAUSED.findall(text)
        return Cause(_line(_java(deeper[-1] if deeper else text)), None, frames)
    name = kind.strip().rpartition(".")[2]
    return Cause(_line(f"{name}: {text}" if text.strip() else name), None, frames)


def _raised(section: str) -> str:
    """The exception below the frames of a traceback, with its class."""
    lines = section.split("\n")
    at = next((place for place, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines))
    return "\n".join(lines[at:])


def _java(text: str) -> str:
    """Cut a Java exception's stack off, and its class where Spark says a condition."""
    text = _ABOUT.sub("", text)
    text = _STACK.split(text, maxsplit=1)[0].strip()
    if (match := _OF_JAVA.match(text)) is not None:
        rest = text[match.end() :]
        of_spark = text.startswith("org.apache.spark.") or _CONDITION.match(rest)
        text = rest if of_spark and rest else f"{match[1]}: {rest}" if rest else match[1]
    return text


def _line(text: str) -> str:
    text = _STACK.split(text, maxsplit=1)[0]
    text = re.sub(r"\s*SQLSTATE: \w{5}\b;?", "", " ".join(text.split()))
    text = _CONDITION.sub("", text)
    text = re.sub(r"^(\w+Error: )\[[A-Z0-9_.]+\] ", r"\1", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
