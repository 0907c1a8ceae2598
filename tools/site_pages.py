"""Pages of the site that are made of the code: commands, job files, messages.  MkDocs calls ``on_files`` (``mkdocs.yml``)."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

sys.path.insert(0, str(Path(__file__).parent.parent))  # MkDocs loads this file by its path

from fkjoin.cli.main import app
from fkjoin.jobs.job_file import json_schema
from tools.messages import Message, raised

ENDS = {
    "0": "The command has done its work; `fkjoin run` with `available-now` has read what was there.",
    "1": "An error: its message is on standard error. `fkjoin demo`, `doctor` and `state verify` have found something wrong.",
    "2": "An option or argument is not one that the command takes.",
    "130, 143": "SIGINT or SIGTERM ended the command; `fkjoin run` ends with it after the batch at work.",
}
"""Exit statuses, and what each says."""

SECTIONS = {
    "The top": "JobSection",
    "`[spark]`": "SparkSection",
    "`[kafka]`": "KafkaSection",
    "`[tables.NAME]`": "TableSection",
    "A format": "FormatSection",
    "`[joins.NAME]`": "JoinSection",
    "`[aggregates.NAME]`": "AggregateSection",
    "`[cogroups.NAME]` and `[merges.NAME]`": "TogetherSection",
    "`[views.NAME]`": "ViewSection",
    "`[flat_maps.NAME]`": "FlatMapSection",
    "`[events.NAME]`": "EventsSection",
    "`[enrichments.NAME]`": "EnrichmentSection",
    "`[sinks.NAME]`": "SinkSection",
    "`[dead_letters]`": "DeadLettersSection",
    "`[ui]`": "PageSection",
}
"""The sections of a job file, and the models that are their schemas."""

ROOMS = {
    "Tables, joins and aggregates": ("analysis", "plan", "lowering", "folds", ""),
    "Sources": ("files", "kafka", "codec", "spark"),
    "Sinks": ("sinks",),
    "Checkpoints and state": ("checkpoint", "state", "stages"),
    "Sessions": ("sessions",),
    "Job files, commands and pages": ("jobs", "cli", "metrics"),
    "Test kit and traces": ("replay", "testing"),
}
"""Where messages come from: rooms of ``fkjoin``, the empty one its face."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, make in {"commands.md": commands, "job-file.md": job_file, "messages.md": messages}.items():
        files.append(File.generated(config, name, content=make()))
    return files


def commands() -> str:
    """Make the page of the command line, as its ``--help`` has it, and of exit statuses."""
    command = typer.main.get_command(app)
    page = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fkjoin", title="Commands")
    ends = "\n".join(f"| {status} | {says} |" for status, says in ENDS.items())
    return f"{page}\n## Exit statuses\n\n| status | meaning |\n|---|---|\n{ends}\n"


def job_file() -> str:
    """Make the page of all sections and settings of a job file."""
    schema = json_schema()
    parts = ["# Settings of a job file\n", "[Topics](kafka.md#fkjoin-run-jobtoml) has an introduction and examples.\n"]
    for title, model in SECTIONS.items():
        about = schema if model == schema["title"] else schema["$defs"][model]
        required = about.get("required", [])
        parts += [f"## {title}\n", f"{_cell(about['description'])}\n"]
        parts += ["| setting | type | by default | meaning |", "|---|---|---|---|"]
        for name, setting in about["properties"].items():
            default = "required" if name in required else _default(setting)
            parts.append(f"| `{name}` | {_type(setting)} | {default} | {_cell(setting['description'])} |")
        parts.append("")
    return "\n".join(parts)


def _default(setting: dict[str, Any]) -> str:
    found = setting.get("default")
    if found is None or found in ({}, []):
        return ""
    return f"`{str(found).lower() if isinstance(found, bool) else found}`"


def _type(setting: dict[str, Any]) -> str:
    kinds = list(dict.fromkeys(_kinds(setting)))
    return " or ".join(kinds) if kinds else "section"


def _kinds(setting: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in setting:
        for one in setting["anyOf"]:
            yield from _kinds(one)
    elif "enum" in setting:
        yield from (f"`{value}`" for value in setting["enum"])
    elif "const" in setting:
        yield f"`{setting['const']}`"
    elif "$ref" in setting:
        yield "[a format](#a-format)" if setting["$ref"].endswith("FormatSection") else "section"
    elif setting["type"] == "array":
        yield "list of " + " or ".join(_kinds(setting["items"])) + "s"
    elif setting["type"] == "object":
        inner = setting["additionalProperties"]
        yield "sections" if "$ref" in inner else "settings"
    elif setting["type"] != "null":
        yield {"string": "text", "integer": "whole number", "boolean": "`true` or `false`"}.get(
            setting["type"], setting["type"]
        )


_WORDS = {"string": "text", "integer": "whole number", "boolean": "`true` or `false`"}


def messages() -> str:
    """Make the page of all errors."""
    parts = [
        "# Messages\n",
        "Each error says where, what is wrong and what to write instead. This page has all of them, with … for",
        "what an error fills in, and the class that `except` names. A query that failed says the same in",
        "[three lines](howto.md#when-a-query-fails).\n",
    ]
    for title, rooms in ROOMS.items():
        said = sorted({_told(message) for message in raised() if room_of(message) in rooms and message.error in _CLASSES})
        parts += [f"## {title}\n", "| message | class |", "|---|---|", *(f"| {text} | `{error}` |" for text, error in said), ""]
    return "\n".join(parts)


_CLASSES = {message.error for message in raised() if not message.error.startswith("_")} - {
    "ArithmeticError",
    "AttributeError",
    "EvaluationError",
    "OSError",
    "PySparkRuntimeError",
    "ValueError",
    "ZeroDivisionError",
}
"""Classes that users meet; others are caught, or Python's own."""


def _told(message: Message) -> tuple[str, str]:
    return _cell(html.escape(message.text.replace("{}", "…"), quote=False)), message.error


def room_of(message: Message) -> str:
    """Find the room of ``fkjoin`` that raises it; of the face, ``testing`` or nothing."""
    first, second, *deeper = Path(message.place).parts
    if first == "state" or deeper:
        return first if first == "state" else second
    return "testing" if second.startswith(("testing", "kit")) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("*", r"\*").replace("[", r"\[")
