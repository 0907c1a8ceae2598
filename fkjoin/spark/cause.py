"""The innermost cause in what Spark says of a query that has failed.

Spark has Java's messages, with Python's tracebacks in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from fkjoin.errors import shortened, users_frames

_HEAD = "Traceback (most recent call last):"
_OF_GROUP = re.compile(r"^ *(?:\+-[-+ 0-9.]*\n|[|+] )", re.MULTILINE)
"""Margins and rulers of the traceback of an exception group."""
_PLAN = "=== Streaming Query ==="
_OURS = "fkjoin.errors.", "fkjoin.state.errors.", "state.errors."
_OF_SPARK = re.compile(
    r"(pyspark\.errors\.exceptions\.captured|py4j\.protocol|org\.apache\.spark(\.\w+)*)"
    r"\.\w+(Exception|Error)"
)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_CAUSED = re.compile(r"^Caused by: (.*(?:\n(?!\s+at |\s*\.\.\. |Caused by: ).*)*)", re.MULTILINE)
_OF_JAVA = re.compile(r"^(?:[a-z]\w*\.)+([\w$]+(?:Exception|Error))(?:: |$)")
NO_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError|Java heap space|GC overhead limit|Cannot allocate memory"
    r"|OOMKilled|Python worker exited unexpectedly|exit(?:ed with)? code:? 137"
)
"""Words of Java about too little memory."""
_TELLING = re.compile(rf"{NO_MEMORY.pattern}|\[DATA_SOURCE_NOT_FOUND\]")
"""Words of causes whose own causes say less: where a worker's output ends, a class is missing."""
_ABOUT = re.compile(
    r"^(?:\[STREAM_FAILED\] )?Query \[id = [^]]*\] terminated with exception: "
    r"|^An error occurred while calling \S+\s*:\s*"
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
    of_java: bool = False
    """Java has raised it, so that its words are Spark's."""


def innermost(messages: Sequence[str]) -> Cause:
    """Find the first cause in the messages of a Java exception and of its causes.

    The innermost is the last of them, see ``texts_of``.
    """
    texts = [text.split(_PLAN, 1)[0].strip() for text in messages if text and text.strip()]
    if not texts:
        return Cause("no reason is given")
    traceback = next((text for text in reversed(texts) if _HEAD in text), None)
    if traceback is None:
        return Cause(_line(_java(_telling(texts))), of_java=True)
    if f"Group {_HEAD}" in traceback:
        traceback = _OF_GROUP.sub("", traceback)
    sections = traceback.split(_HEAD)[1:]
    kind, _, text = _raised(sections[-1]).partition(": ")
    ours = (tuple(users_frames(section)) for section in reversed(sections))
    frames = next(filter(None, ours), ())
    if kind.startswith(_OURS):
        return Cause(_line(text), kind.rpartition(".")[2], frames)
    if _OF_SPARK.fullmatch(kind.strip()):
        cause = _java(_telling([text, *_CAUSED.findall(text)]))
        return Cause(_line(cause), None, frames, of_java=True)
    name = kind.strip().rpartition(".")[2] or "an exception without a name"
    return Cause(_line(f"{name}: {text}" if text.strip() else name), None, frames)


def texts_of(error: Any) -> list[str]:
    """Return what a Java exception and its causes say, with their classes, the innermost last."""
    texts = []
    while error is not None:
        texts.append(str(error.toString()))
        error = error.getCause()
    return texts


def cause_of(error: BaseException) -> str:
    """Return the innermost cause of an error of Py4J's or PySpark's, in one line."""
    if isinstance(error, Py4JJavaError):
        return innermost(texts_of(error.java_exception)).text
    return innermost([str(error)]).text


def _telling(causes: Sequence[str]) -> str:
    """Choose the innermost cause, or one above it that says more."""
    return next((text for text in reversed(causes) if _TELLING.search(text)), causes[-1])


def _raised(section: str) -> str:
    """The exception below the frames of a traceback, with its class."""
    lines = section.split("\n")
    return "\n".join(dropwhile(lambda line: not line.strip() or line.startswith(" "), lines))


def _java(text: str) -> str:
    """Cut a Java exception's stack off, and its class where Spark says a condition."""
    text = _ABOUT.sub("", text)
    text = _STACK.split(text, maxsplit=1)[0].strip()
    match = _OF_JAVA.match(text)
    if match is None:
        return text
    rest = text[match.end() :]
    if not rest:
        return match[1]
    of_spark = text.startswith("org.apache.spark.") or _CONDITION.match(rest)
    return rest if of_spark else f"{match[1]}: {rest}"


def _line(text: str) -> str:
    text = _STACK.split(text, maxsplit=1)[0]
    text = re.sub(r"\s*SQLSTATE: \w{5}\b;?", "", " ".join(text.split()))
    text = _CONDITION.sub("", text)
    text = re.sub(r"^(\w+Error: )\[[A-Z0-9_.]+\] ", r"\1", text)
    return shortened(text, _LONGEST)
