"""The pages for operators: every metric, alert, command, option, setting and message that they name is there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown.extensions.toc import slugify
from typer.exceptions import TyperException
from typer.main import get_command

from fkjoin.cli.main import app
from fkjoin.jobs.job_file import json_schema
from fkjoin.kafka.options import _SOURCE
from fkjoin.metrics.collector import families_of
from fkjoin.metrics.report import JobReport
from fkjoin.plan.rules import RULES
from fkjoin.sessions import settings
from fkjoin.sinks.postgres import BATCHES, LETTERS
from tests.support.documents import FENCE, blocks
from tests.support.places import ROOT
from tests.support.rooms import MODULES, nodes

PAGES = [ROOT / "docs" / name for name in ("runbook.md", "upgrading.md", "sizing.md")]

SETTINGS = {value for name, value in vars(settings).items() if name.isupper() and str(value).startswith("spark.fkjoin.")}
OF_SOURCES = {*_SOURCE, "maxFilesPerTrigger"}
"""Options of sources, which a job file passes on."""

_CODE = re.compile(r"``([^\n]+?)``|`([^`]+)`")
_PLACES = re.compile(r"%(?:\.\d+)?[sdgfr]")


def spans(text: str) -> Iterator[str]:
    """The code in a page's lines, without its blocks."""
    yield from (" ".join((found[1] or found[2]).split()) for found in _CODE.finditer(FENCE.sub("", text)))


def code(text: str) -> Iterator[str]:
    """The code in a page's lines, and the lines of its blocks for shells."""
    yield from spans(text)
    yield from (match[3] for match in FENCE.finditer(text) if match[2] not in ("text", "toml"))


def lines_of_commands(text: str) -> Iterator[list[str]]:
    """Calls of ``fkjoin``, as lists of words."""
    for found in code(text):
        for line in found.splitlines():
            words = shlex.split(line, comments=True)
            if "fkjoin" in words:
                yield words[words.index("fkjoin") + 1 :]


def fault_of(words: list[str]) -> str | None:
    """Say what is wrong with a call; None if nothing is."""
    command: Any = get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        if name not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    try:
        _, more, _ = command.make_parser(command.context_class(command)).parse_args(words)
    except TyperException as error:
        return error.format_message()
    return f"too many arguments: {more}" if more else None


@cache
def said() -> tuple[str, ...]:
    """The texts in the code, with ``{}`` for what is filled in."""
    found = []
    for node in (node for path in MODULES.values() for node in nodes(path)):
        match node:
            case ast.Constant(value=str(text)):
                found.append(_PLACES.sub("{}", text))
            case ast.JoinedStr(values=values):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in values))
    return tuple(found)


def is_said(line: str) -> bool:
    """Tell whether a message of the code has the line, in which … stands for what is filled in."""
    pattern = re.compile(".*".join(re.escape(part) for part in line.strip().split("…")))
    return any(pattern.search(text) for text in said())


def sections(page: Path) -> dict[str, str]:
    """The text of each section, by its anchor."""
    parts = re.split(r"^#{2,3} (.+)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return {slugify(title.replace("`", ""), "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_the_page_are_there(page: Path) -> None:
    """Metrics, calls of commands, settings of sessions and of job files, rules of the optimizer, and messages."""
    text = page.read_text()
    families = families_of(JobReport(0))
    metrics = {f"{family.name}{'_total' * (family.type == 'counter')}" for family in families}
    named = re.findall(r"\bfkjoin_[a-z_]+\b", "\n".join(code(text)))
    assert set(named) <= metrics | {BATCHES, LETTERS}
    assert [(call, fault) for call in lines_of_commands(text) if (fault := fault_of(call)) is not None] == []
    assert set(re.findall(r"spark\.fkjoin\.[\w.]*\w", text)) - SETTINGS == set()
    schema = json_schema()
    known = {name for about in (schema, *schema["$defs"].values()) for name in about["properties"]} | OF_SOURCES
    assigned = re.findall(r"^(\w+) ?= ?\S", "\n".join(spans(text)), re.MULTILINE)
    assert {name for name in assigned if not name.isupper()} - known == set()
    rules = re.findall(r"excludedRules = \"([\w,-]+)\"", "\n".join(spans(text)))
    assert set(",".join(rules).split(",")) <= {*RULES, ""}
    lines = [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
    lines += [found for found in spans(text) if "…" in found and " " in found and "(" not in found]
    assert [line for line in lines if line.strip() and not is_said(line)] == []


def test_each_alert_names_a_section_that_names_it() -> None:
    """Prometheus hands the annotation ``runbook`` on; the runbook has a table of alerts, in this order."""
    (group,) = yaml.safe_load((ROOT / "docker" / "prometheus" / "rules.yml").read_text())["groups"]
    pages = {rule["alert"]: rule["annotations"]["runbook"] for rule in group["rules"]}
    by_anchor = sections(ROOT / "docs" / "runbook.md")
    for name, page in pages.items():
        assert f"`{name}`" in by_anchor[page.removeprefix("docs/runbook.md#")], name
    everything = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"\bFkjoin\w+", everything)) == set(pages)
    rows = re.findall(r"^\| `(\w+)` \|.*\((#.+)\) \|$", by_anchor["alerts"], re.MULTILINE)
    assert [(name, f"docs/runbook.md{anchor}") for name, anchor in rows] == list(pages.items())


def test_the_page_of_settings_has_all_of_them_and_their_defaults() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    found = re.findall(r"^\| `([\w.]+)` \| ((?:\\\||[^|])+) \|", page, re.M)
    rows = {name: value.split(", ")[0].strip("`").replace("\\|", "|") for name, value in found}
    read = {text for text in said() if re.fullmatch(r"spark\.fkjoin(?:\.\w+)+\.?", text)} - {"spark.fkjoin.topic."}
    assert {name for name in rows if name.startswith("spark.fkjoin.")} - OF_TOPICS == read == SETTINGS
    assert int(rows[settings.RETENTION]) == settings.RETENTION_MS
    made = settings._DEFAULTS | settings._AT_START | settings._LOCAL
    shown = {name: value for name, value in rows.items() if name in made}
    assert shown == made
    assert {*settings._REQUIRED, *OF_TOPICS} - set(rows) == set()


OF_TOPICS = {f"spark.fkjoin.topic.{name}" for name in ("partitions", "replication.factor", "CONFIG")}
