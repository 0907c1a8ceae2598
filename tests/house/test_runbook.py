"""The pages for operators: every metric, alert, command, option, setting and message that they name is there."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import yaml
from markdown.extensions.toc import slugify
from typer.main import get_command

from fkjoin.cli.main import app
from fkjoin.jobs.job_file import json_schema
from fkjoin.kafka.options import _SOURCE
from fkjoin.metrics.families import families_of
from fkjoin.metrics.report import JobReport
from fkjoin.plan.rules import RULES
from fkjoin.sessions import settings
from fkjoin.sinks.postgres import BATCHES, LETTERS
from tests.support.documents import FENCE, blocks
from tests.support.places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = [ROOT / "docs" / name for name in ("runbook.md", "upgrading.md", "sizing.md")]
RULES_FILE = ROOT / "docker" / "prometheus" / "rules.yml"

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


def metric_names() -> set[str]:
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in families_of(JobReport(0))}


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
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        if not words:
            return None
        if words[0].startswith("-"):
            break
        name, *words = words
        if name not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    options = {name: one for one in command.params for name in one.opts if one.param_type_name == "option"}
    rest = list(words)
    arguments = 0
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            arguments += 1
        elif word not in options:
            return f"no option {word!r}"
        elif not options[word].is_flag and rest:
            rest.pop(0)
    most = sum(one.param_type_name == "argument" for one in command.params)
    return f"{arguments} arguments, at most {most}" if arguments > most else None


@cache
def said() -> tuple[str, ...]:
    """The texts in the code, with ``{}`` for what is filled in."""
    found = []
    for file in sorted([*ROOT.glob("fkjoin/**/*.py"), *ROOT.glob("state/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
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


def unknown(value: Any, about: dict[str, Any], name: str = "") -> Iterator[str]:
    """Settings in a part of a job file that its schema does not have."""
    for option in about.get("anyOf", ()):
        if "$ref" in option:
            yield from unknown(value, option, name)
    if "$ref" in about:
        about = json_schema()["$defs"][about["$ref"].rpartition("/")[2]]
    if not isinstance(value, dict):
        return
    known, others = about.get("properties", {}), about.get("additionalProperties")
    for key, inner in value.items():
        if key in known:
            yield from unknown(inner, known[key], key)
        elif name == "options":
            yield from () if key in OF_SOURCES or key.startswith("kafka.") else (key,)
        elif isinstance(others, dict):
            yield from unknown(inner, others)
        elif known:
            yield key


@cache
def classes_of_spark() -> bytes:
    """The classes of Spark that have its settings."""
    jars = Path(pyspark.__file__).parent / "jars"
    where = {
        "spark-catalyst_*.jar": "org/apache/spark/sql/internal/SQLConf$",
        "spark-sql-api_*.jar": "org/apache/spark/sql/internal/SqlApiConf",
        "spark-core_*.jar": "org/apache/spark/internal/config/",
        "spark-common-utils*.jar": "org/apache/spark/",
    }
    found = []
    for pattern, beginning in where.items():
        for jar in jars.glob(pattern):
            with zipfile.ZipFile(jar) as classes:
                found += [classes.read(name) for name in classes.namelist() if name.startswith(beginning)]
    return b"".join(found)


def alerts() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES_FILE.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def sections(page: Path) -> dict[str, str]:
    """The text of each section, by its anchor."""
    parts = re.split(r"^#{2,3} (.+)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return {slugify(title.replace("`", ""), "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
class TestNames:
    """Names on the pages: metrics, commands, settings and messages."""

    def test_metrics_are_there(self, page: Path) -> None:
        known = metric_names() | {BATCHES, LETTERS}
        named = {name for found in code(page.read_text()) for name in re.findall(r"\bfkjoin_[a-z_]+\b", found)}
        assert named - known == set()

    def test_commands_and_options_are_there(self, page: Path) -> None:
        calls = list(lines_of_commands(page.read_text()))
        assert [(call, fault) for call in calls if (fault := fault_of(call)) is not None] == []

    def test_settings_of_sessions_are_there(self, page: Path) -> None:
        named = set(re.findall(r"spark\.fkjoin\.[\w.]*\w", page.read_text()))
        assert named - SETTINGS == set()

    def test_settings_of_spark_are_there(self, page: Path) -> None:
        jobs = [block.text for block in blocks(page) if block.language == "toml"]
        named = set(re.findall(r"\bspark\.(?!fkjoin\.|log\b)[\w.]*\w", " ".join([*code(page.read_text()), *jobs])))
        assert {name for name in named if name.encode() not in classes_of_spark()} == set()

    def test_settings_of_job_files_are_there(self, page: Path) -> None:
        schema = json_schema()
        known = {name for about in (schema, *schema["$defs"].values()) for name in about["properties"]} | OF_SOURCES
        named = {match[1] for found in spans(page.read_text()) if (match := re.match(r"(\w+) ?= ?\S", found))}
        assert {name for name in named if not name.isupper()} - known == set()
        jobs = [tomllib.loads(block.text) for block in blocks(page) if block.language == "toml"]
        assert [name for job in jobs for name in unknown(job, schema)] == []

    def test_messages_are_those_of_the_code(self, page: Path) -> None:
        lines = [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
        lines += [found for found in spans(page.read_text()) if "…" in found and " " in found and "(" not in found]
        assert [line for line in lines if line.strip() and not is_said(line)] == []

    def test_rules_of_the_optimizer_are_there(self, page: Path) -> None:
        named = {name for found in spans(page.read_text()) for name in re.findall(r"excludedRules = \"([\w,-]+)\"", found)}
        assert {rule for names in named for rule in names.split(",")} - set(RULES) == set()


def test_each_alert_names_a_section_that_names_it() -> None:
    """Prometheus hands the annotation ``runbook`` on with the alert."""
    found = sections(ROOT / "docs" / "runbook.md")
    for name, rule in alerts().items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md", name
        assert anchor in found, f"{name}: {anchor}"
        assert f"`{name}`" in found[anchor], f"{name} is not in the section {anchor}"


def test_alerts_that_the_runbook_names_are_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bFkjoin\w+", page.read_text())}
    assert named == set(alerts())


UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def test_the_table_of_alerts_says_what_the_rules_do() -> None:
    table = (ROOT / "docs" / "runbook.md").read_text().split("## Alerts", 1)[1].split("## Symptoms", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| \[.+\]\((#.+)\) \|$", table, re.MULTILINE)
    assert [name for name, *_ in rows] == list(alerts())
    for name, when, long, section in rows:
        rule = alerts()[name]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md{section}"
        assert long == (words_of(rule["for"]) if "for" in rule else "–"), name
        bounds = {
            "100000": "100,000 records",
            "60": "60 s",
            "600": "10 minutes",
            "3": "3 times",
            "1e9": "1 GB",
            "1e7": "10 million records",
            "2 * fkjoin_index_bytes": "double",
            "2 * fkjoin_internal_topic_records": "double",
            "0": "",
        }
        for bound in re.findall(r"> (2 \* \w+|\S+)", rule["expr"]):
            assert bounds[bound] in when, name
        for time in re.findall(r"\[(\d+[mhd])", rule["expr"]):
            assert words_of(time) in when, name


def words_of(time: str) -> str:
    """A time of Prometheus in words."""
    return "hour" if time == "1h" else f"{time[:-1]} {UNITS[time[-1]]}"


def test_the_page_of_settings_has_all_of_them_and_their_defaults() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
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


def test_each_situation_says_what_one_sees_what_it_means_what_to_do_and_when_it_is_over() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text().split("## Situations", 1)[1]
    situations = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    assert len(situations) > 20
    for title, body in zip(situations[1::2], situations[2::2], strict=True):
        for label in ("**You see**", "**It means**", "**Do**", "**It is over**"):
            assert label in body, f"{title}: {label}"


def test_symptoms_lead_to_situations() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    symptoms = text.split("## Symptoms", 1)[1].split("## Situations", 1)[0]
    rows = [line for line in symptoms.splitlines() if line.startswith("| ") and not line.startswith("| you say")]
    assert len(rows) >= 12
    assert [row for row in rows if "](" not in row] == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("run job.toml --check", None),
        ("run job.toml --start-over orders", None),
        ("state verify CHECKPOINT --batch 7", None),
        ("state ls", None),
        ("state", None),
        ("run job.toml --chek", "no option '--chek'"),
        ("state veryfy CHECKPOINT", "no command 'veryfy'"),
        ("walk job.toml", "no command 'walk'"),
        ("state rescale CHECKPOINT 8 9", "3 arguments, at most 2"),
    ],
)
def test_the_checker_of_commands_finds_what_is_wrong(words: str, fault: str | None) -> None:
    assert fault_of(words.split()) == fault


def test_the_checker_of_messages_finds_what_is_not_said() -> None:
    assert is_said("checkpoint: … is in use by process … on …: stop that job first.")
    assert is_said("…: index rebuilt from its log: …")
    assert not is_said("checkpoint: … is in use by another process")


@pytest.mark.parametrize(
    ("job", "wrong"),
    [
        ('[spark]\n"spark.sql.shuffle.partitions" = 8\n[tables.orders]\noptions = {maxOffsetsPerTrigger = 5}', []),
        ('[tables.orders]\nvalue = {format = "json", units = {since = "micros"}}', []),
        ('[tables.orders]\nvalue = {form = "json"}', ["form"]),
        ("[tables.orders]\noptions = {maxOffsetPerTrigger = 5}", ["maxOffsetPerTrigger"]),
        ("[table.orders]\nkey = 1", ["table"]),
        ("[sinks.joined]\nretry = 5", ["retry"]),
    ],
)
def test_the_checker_of_job_files_finds_what_is_wrong(job: str, wrong: list[str]) -> None:
    assert list(unknown(tomllib.loads(job), json_schema())) == wrong


def test_files_of_a_batch_are_those_of_a_checkpoint() -> None:
    """``sizing.md`` says which files a batch adds to a checkpoint: those that the golden ones have, of Spark 4.1 and later."""
    for archive in ("operators-1.tar.xz", "join-1.tar.gz"):
        with tarfile.open(ROOT / "tests" / "golden" / "checkpoints" / archive) as files:
            names = [one.name for one in files if one.isfile() and not Path(one.name).name.startswith(".")]
        batches = Counter(re.sub(r"/commits/\d+$", "", name) for name in names if "/commits/" in name)
        assert batches
        for query, number in batches.items():
            own = [name.removeprefix(f"{query}/") for name in names if name.startswith(f"{query}/")]
            logs = Counter(name.rpartition("/")[0] for name in own if re.search(r"/\d+_[\w-]+\.changelog$", name))
            sums = Counter(name.rpartition("/")[0] for name in own if re.search(r"/\d+_[\w-]+\.changelog\.crc$", name))
            assert logs == sums
            assert set(logs.values()) == {number}, query
            assert sum(name.startswith("offsets/") for name in own) == number


def test_figures_of_requests_are_those_of_the_formula() -> None:
    rows = re.findall(r"^\| (?:a join|the same)[^|]*\| (\d+) \| (\d+) \| (.+) \|$", (ROOT / "docs/sizing.md").read_text(), re.M)
    assert len(rows) == 4
    for operators, partitions, figures in rows:
        files = 2 * int(operators) * int(partitions) + 2
        assert [int(one.replace(",", "")) for one in figures.split(" | ")] == [files, 3600 * files, 360 * files]
