"""Pages of the site that are made of the code and of other files: commands, job files, messages, files of a checkout.

MkDocs calls ``on_files``, ``on_page_markdown`` and ``on_page_content`` (``mkdocs.yml``).
"""

from __future__ import annotations

import ast
import html
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

sys.path.insert(0, str(Path(__file__).parent.parent))  # MkDocs loads this file by its path

from fkjoin.cli.main import app
from fkjoin.jobs.job_file import json_schema
from tools.messages import ROOT, Message, raised

ENDS = {
    "0": "The command has done its work. `fkjoin run` with `available-now` has read what was there; or a signal stopped "
    "`fkjoin run`, and its batch has ended.",
    "1": "An error: its message is on standard error. `fkjoin demo`, `doctor` and `state verify` have found something wrong; "
    "`state drained` has found records that are left to read.",
    "2": "An option or argument is not one that the command takes.",
    "130, 143": "SIGINT or SIGTERM ended the command at once. To `fkjoin run` it came during the start, or was the second.",
}
"""Exit statuses, and what each says."""

SECTIONS = {
    "The top": "JobSection",
    "`[spark]`": "SparkSection",
    "`[kafka]`": "KafkaSection",
    "`[tables.NAME]`": "TableSection",
    "A format": "FormatSection",
    "`[joins.NAME]`": "JoinSection",
    "`[children.NAME]`": "ChildrenSection",
    "`[aggregates.NAME]`": "AggregateSection",
    "`[aggregates.NAME.window]`": "WindowSection",
    "`[cogroups.NAME]`": "CogroupSection",
    "`[merges.NAME]`": "MergeSection",
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
    "Checkpoints and state": ("checkpoint", "state", "storage", "stages"),
    "Sessions": ("sessions",),
    "Job files, commands and pages": ("jobs", "cli", "metrics"),
    "Test kit": ("testing",),
}
"""The origins of messages: rooms of ``fkjoin``, the empty one its face."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link names of files of a checkout to the pages that have them: a reader of the site may have no checkout.

    Let a search find decisions after other pages.
    """
    places = {name: f"checkout.md#{_anchor(name)}" for name in shown_files()} | PARTS_OF_A_CHECKOUT
    here = page.file.src_uri
    if here.startswith("adr/"):
        page.meta["search"] = {"boost": BOOST_OF_DECISIONS}
    up = "../" * here.count("/")
    if here in {place.partition("#")[0] for place in places.values()}:
        return markdown
    return _CODE.sub(lambda code: f"[{code[0]}]({up}{places[code[1]]})" if code[1] in places else code[0], markdown)


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give the room of the table of contents to the page where there are no headings to list."""
    if not any(heading.children for heading in page.toc):
        page.meta["hide"] = ["toc"]
    return text


PARTS_OF_A_CHECKOUT = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "reporting.md", "examples/notebooks": "notebooks.md"}
"""Documents and folders beside ``docs``, and the pages of the site that have them."""

BOOST_OF_DECISIONS = 0.01
"""The weight of a decision in a search, where another page has 1: a word in a title weighs 1,000 times one in a text."""

_CODE = re.compile(r"(?<!\[)`([^`\n]+)`")
_SHOWN = re.compile(r"`((?:docker|examples)/[^`\s]+)`")


@cache
def shown_files() -> tuple[str, ...]:
    """Find the files of ``docker`` and ``examples`` that documents name."""
    named = {name for page in (ROOT / "docs").glob("*.md") for name in _SHOWN.findall(page.read_text())}
    return tuple(sorted(name for name in named if (ROOT / name).is_file()))


def checkout() -> str:
    """Make the page of the files that documents name, with their content."""
    parts = ["# Files of a checkout\n", "Other pages name these files. A checkout has them at these places.\n"]
    for name in shown_files():
        kind = {"yml": "yaml", "py": "python"}.get(name.rpartition(".")[2], name.rpartition(".")[2])
        parts.append(f"## `{name}` {{: #{_anchor(name)} }}\n\n{_fenced(kind, (ROOT / name).read_text())}\n")
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def notebooks() -> str:
    """Make the page of the notebooks, with what each cell printed."""
    parts = ["# Notebooks\n", "A checkout has these notebooks in `examples/notebooks`.\n"]
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"), key=lambda path: path.stem != "first_join"):
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            parts.append(
                re.sub("^#", "##", text, flags=re.MULTILINE) if cell["cell_type"] == "markdown" else _fenced("python", text)
            )
            for output in cell.get("outputs", ()):
                said = "".join(output.get("text") or output["data"].get("text/plain", ""))
                parts.append(_fenced("text", said))
    return "\n\n".join(parts)


def _fenced(kind: str, text: str) -> str:
    return f"````{kind}\n{text.rstrip()}\n````"


def changelog() -> str:
    """Make the page of releases."""
    return (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")


def reporting() -> str:
    """Make the page about reports of faults."""
    text = (ROOT / "SECURITY.md").read_text().replace("# Security\n", "# Reporting a security problem\n", 1)
    return text.replace("](docs/", "](")


def commands() -> str:
    """Make the page of the command line, as its ``--help`` has it, and of exit statuses."""
    command = typer.main.get_command(app)
    _say_whole_sentences(command)
    page = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fkjoin", title="Commands")
    ends = "\n".join(f"| {status} | {says} |" for status, says in ENDS.items())
    return f"{page}\n## Exit statuses\n\n| status | meaning |\n|---|---|\n{ends}\n"


def _say_whole_sentences(command: Any) -> None:
    """Let lists of commands have the first sentence of each one's help, which Click otherwise cuts off."""
    for one in getattr(command, "commands", {}).values():
        one.short_help = re.split(r"(?<=\.)\s", one.help or "", maxsplit=1)[0]
        _say_whole_sentences(one)


def job_file() -> str:
    """Make the page of all sections and settings of a job file."""
    schema = json_schema()
    parts = ["# Settings of a job file\n", "[Kafka to PostgreSQL](first-job.md#describe-the-job) shows an example.\n"]
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


MEANINGS = {
    "TopologyError": ("A call describes a table or an operator wrongly. Nothing runs yet", "Change the call, or the setting"),
    "SessionError": ("The Spark session, its JVM or its server lacks what a call needs", "Change the session's settings"),
    "FormatError": (
        "A record, a line, a file or a checkpoint does not parse, or a newer release has written it",
        "Mend what wrote it, or install the release that it names",
    ),
    "InvariantError": (
        "The state contradicts itself: a fault of fkjoin, or of a disk",
        "Stop the query, keep its checkpoint, and restore a [backup](upgrading.md#restore)",
    ),
    "QueryError": (
        "A query has failed. Its [three lines](runbook.md#when-a-query-fails) have the message",
        "Do what the third line says, and start the query again",
    ),
    "FkJoinError": (
        "Anything else, such as a mistake in a job file, or a topic, folder or database that does not fit",
        "Do what the message says",
    ),
    "a dead letter": (
        "A record cannot be used. The message is its reason",
        'See [dead letters](errors.md#what-becomes-a-dead-letter). With `on_error="fail"` it is a `QueryError`',
    ),
    "Python's own": ("An argument of another type, or a missing file", "Change the argument"),
}
"""The classes of messages: what each means, and what to do."""

_IN_QUERIES = {"StateError": "QueryError", "MisfitError": "a dead letter", "SchemaProblemError": "a dead letter"}
"""Classes that a query raises or catches, and what users meet in their place."""

_CAUGHT = {
    "ArithmeticError",
    "AttributeError",
    "EvaluationError",
    "OSError",
    "PySparkRuntimeError",
    "ValueError",
    "ZeroDivisionError",
}
"""Classes that fkjoin catches itself."""

_FEWEST_WORDS = 3


def messages() -> str:
    """Make the page of all errors."""
    parts = [
        "# Messages\n",
        "Each error says where, what is wrong and what to write instead. This page has their texts, with … for",
        "what an error fills in, and the class that `except` names. Texts that are filled in as a whole are left out.\n",
        "| class | what it means | what to do |",
        "|---|---|---|",
        *(f"| {_shown(name)} | {means} | {do} |" for name, (means, do) in MEANINGS.items()),
        "",
    ]
    for title, rooms in ROOMS.items():
        said = sorted({_told(message) for message in raised() if room_of(message) in rooms and is_shown(message)})
        parts += [f"## {title}\n", "| message | class |", "|---|---|", *(f"| {text} | {error} |" for text, error in said), ""]
    return "\n".join(parts)


def is_shown(message: Message) -> bool:
    """Tell whether users meet it, and whether it has words of its own."""
    caught = message.error.startswith("_") or message.error in _CAUGHT
    return not caught and len(re.findall(r"[^\W\d_]{2,}", message.text)) >= _FEWEST_WORDS


def class_of(error: str) -> str:
    """Find what users meet: a class of the reference, the nearest one above an error's own, or what comes in its place."""
    if error in _IN_QUERIES:
        return _IN_QUERIES[error]
    if error in MEANINGS:
        return error
    return next((class_of(above) for above in _bases().get(error, ())), "Python's own")


@cache
def _bases() -> dict[str, list[str]]:
    """The classes of errors in the code, with the names of those that each inherits from."""
    files = [*ROOT.glob("fkjoin/**/*.py"), *ROOT.glob("state/**/*.py")]
    found = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef))
    return {node.name: [ast.unparse(base) for base in node.bases] for node in found if node.name.endswith("Error")}


def _shown(name: str) -> str:
    return f"`{name}`" if name.endswith("Error") else name


def _told(message: Message) -> tuple[str, str]:
    text = _cell(html.escape(message.text.replace("{}", "…"), quote=False))
    name = class_of(message.error)
    return text, f"`{message.error}`" if name == "Python's own" else _shown(name)


def room_of(message: Message) -> str:
    """Find the room of ``fkjoin`` that raises it; of the face, ``testing`` or nothing."""
    first, second, *deeper = Path(message.place).parts
    if first == "state" or deeper:
        return first if first == "state" else second
    return "testing" if second.startswith(("testing", "kit")) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("*", r"\*").replace("[", r"\[")


PAGES = {
    "commands.md": commands,
    "job-file.md": job_file,
    "messages.md": messages,
    "checkout.md": checkout,
    "notebooks.md": notebooks,
    "changelog.md": changelog,
    "reporting.md": reporting,
}
"""The pages, and what makes each."""
