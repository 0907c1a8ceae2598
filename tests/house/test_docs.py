"""The documents: code in them runs and prints what they say, links lead somewhere, the site builds strictly."""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from typer.main import get_command

from fkjoin.checkpoint import begun
from fkjoin.cli.main import app
from fkjoin.codec import messages, records
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.jobs.job_sections import FormatSection
from fkjoin.jobs.runner import Stop
from fkjoin.kafka.wire import WIRE_VERSION
from fkjoin.state import segments
from tests.support.documents import FENCE, blocks, check_printed, check_tutorial, program
from tests.support.places import ROOT
from tests.support.reference import reference
from tests.support.rooms import MODULES
from tests.support.sampling import EVERY
from tests.support.sessions import short_lived
from tools import site_pages
from tools.messages import raised

DOCS = sorted((ROOT / "docs").rglob("*.md"))

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
"""Words that are not used in documents, and the names in the glossary that are."""


DOCUMENTS = ["README.md", "docs/tutorial.md"]
ASIDE = """
print("<next>")
made = [path for path in Path().iterdir() if path.name != "document.py"]
Path("before").mkdir()
for path in made:
    path.rename(Path("before", path.name))
"""
"""Stands between two programs of one process, so that the second begins with an empty folder."""


class Ran(NamedTuple):
    """The folder of a document's program, what that has printed, and the lines that the document shows."""

    folder: Path
    printed: str
    wanted: list[tuple[int, str]]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The programs of documents, run one after the other in a process; in ``make faults`` each in one of its own.

    It is not that of the tests: Spark takes relative paths from the folder in which its JVM began.  In ``make faults`` commands
    of documents have processes of theirs, too.
    """
    programs = {document: program(document, here=not EVERY) for document in DOCUMENTS}
    if EVERY:
        return {
            document: Ran(folder, printed_by(script, folder), wanted)
            for document, (script, wanted) in programs.items()
            for folder in [tmp_path_factory.mktemp("document")]
        }
    folder = tmp_path_factory.mktemp("documents")
    printed = printed_by(ASIDE.join(script for script, _ in programs.values()), folder).split("<next>\n")
    return {
        document: Ran(folder, text, wanted) for (document, (_, wanted)), text in zip(programs.items(), printed, strict=True)
    }


def printed_by(script: str, folder: Path) -> str:
    """Run a program in the folder, and return what it prints."""
    (folder / "document.py").write_text(script)
    environment = short_lived(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", PYTHONPATH=str(ROOT))
    command = [sys.executable, "document.py"]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


@pytest.mark.faults
@pytest.mark.spark
def test_the_tutorial_does_what_it_says(documents: dict[str, Ran]) -> None:
    check_tutorial(*documents["docs/tutorial.md"])


@pytest.mark.faults
@pytest.mark.spark
def test_the_readme_prints_what_it_says(documents: dict[str, Ran]) -> None:
    check_printed(*documents["README.md"][1:])


def test_the_readme_can_be_read_outside_a_checkout() -> None:
    """A package index shows it: files are named, since links to them lead nowhere there."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    named = re.findall(r"`((?:docs|examples)/[\w/]+\.md|[A-Z]+\.md)`", text)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("path", [*DOCS, ROOT / "README.md"], ids=lambda path: path.name)
def test_code_in_documents_is_python_and_names_what_there_is(path: Path) -> None:
    import fkjoin

    for block in blocks(path):
        if block.language == "python":
            compile(block.text, str(path), "exec")
            for module, names in re.findall(r"^from (fkjoin[\w.]*) import (.+)$", block.text, re.MULTILINE):
                wanted = re.findall(r"(\w+)(?: as \w+)?(?:,|$)", names)
                found = __import__(module, fromlist=wanted)  # a module below it is imported, too
                for name in wanted:
                    assert hasattr(found, name), f"{path}: {module}.{name}"
    assert fkjoin.__version__


def test_databricks_finds_what_the_how_to_has_it_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wheel task calls an entry point of the package's metadata with the parameters as arguments."""
    import fkjoin
    from fkjoin.sessions.settings import _REQUIRED

    (block,) = (block for block in blocks(ROOT / "docs" / "howto.md") if "python_wheel_task" in block.text)
    (task,) = yaml.safe_load(block.text)["resources"]["jobs"]["orders"]["tasks"]
    wheel = task["python_wheel_task"]
    assert task["libraries"][0]["whl"].endswith(f"/{wheel['package_name']}-{fkjoin.__version__}-py3-none-any.whl")
    requires = distribution(wheel["package_name"]).requires or []
    wanted = [one.partition(">=")[0] for one in requires if re.search(r"; extra == .cli.$", one)]
    assert [one["pypi"]["package"] for one in task["libraries"][1:]] == wanted
    needed = {name: value for name, (value, _) in _REQUIRED.items()}
    assert needed.items() <= task["new_cluster"]["spark_conf"].items()
    (entry,) = distribution(wheel["package_name"]).entry_points.select(name=wheel["entry_point"])
    call = entry.load()
    for arguments, says in ((["--version"], fkjoin.__version__), ([wheel["parameters"][0], "--help"], "Run a job")):
        monkeypatch.setattr(sys, "argv", ["fkjoin", *arguments])
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code in (None, 0)
        assert says in capsys.readouterr().out


def test_tests_that_are_named_are_there() -> None:
    code = [path for folder in ("fkjoin", "state", "tests", "integration") for path in (ROOT / folder).rglob("*.py")]
    texts = [*DOCS, *ROOT.glob("*.md"), ROOT / "Makefile", *code]
    named = {
        (found, text.name) for text in texts for found in re.findall(r"\b(?:tests|integration)/[\w/]+\.py\b", text.read_text())
    }
    assert len(named) > 100
    assert sorted((found, text) for found, text in named if not (ROOT / found).is_file()) == []


@pytest.mark.nightly
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """No broken link, no page that is left out, no name in the reference that there is not."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path), "--config-file", "mkdocs.yml"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for page, has in {
        ".": '<a href="messages/">messages</a>',
        "limits": "Decisions",
        "reference": "fk_join",
        "commands": "fkjoin restore",
        "job-file": "on_new_topic",
        "messages": "FormatError",
        "checkout": "FkjoinLagGrows",
        "notebooks": "Exact sums through a crash",
        "reference-kafka": "Debezium",
        "changelog": "0.1.0",
        "reporting": "Report a problem in private",
        "watching": 'href="../checkout/#docker-prometheus-rules-yml"',
        "upgrading": 'href="../changelog/"',
        "security": 'href="../reporting/"',
    }.items():
        assert has in (tmp_path / page / "index.html").read_text(), page
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    boosted = {entry["location"].partition("/")[0]: entry.get("boost", 1) for entry in found}
    assert {name for name, boost in boosted.items() if boost != 1} == {"adr"}, "decisions come after other pages"


def test_the_first_pages_job_file_is_one(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "index.md") if block.language == "toml")
    (tmp_path / "shop.toml").write_text(block.text)
    assert read_job(tmp_path / "shop.toml").joins["joined"].extractor == "customer_id"


def test_the_first_jobs_file_is_one_and_its_page_agrees_with_itself(tmp_path: Path) -> None:
    """The programs write what the job reads, and the commands name what it has."""
    found = list(blocks(ROOT / "docs" / "first-job.md"))
    (file,) = (block.text for block in found if block.language == "toml")
    (tmp_path / "shop.toml").write_text(file)
    job = read_job(tmp_path / "shop.toml")
    shell = "\n".join(block.text for block in found if block.language == "sh")
    (made,) = re.findall(r"for name in (\(.*?\))\]", "\n".join(block.text for block in found if block.language == "python"))
    assert {table.topic for table in job.tables.values()} == set(ast.literal_eval(made))
    written = re.findall(r"^python write\.py (\w+) \w+ '(.*)'$", shell, re.MULTILINE)
    assert {topic for topic, _ in written} == set(job.tables)
    for topic, record in written:
        value = job.tables[topic].value
        assert isinstance(value, FormatSection)
        assert [name.split()[0] for name in str(value.columns).split(", ")] == list(json.loads(record))
    places = re.findall(r"^fkjoin state get \w+ (\S+) --operator (\w+)$", shell, re.MULTILINE)
    assert places == [(f"{job.checkpoint}/sink-regions", name) for name in ("joined", "regions")]
    assert {"joined", "regions"} == {*job.joins, *job.aggregates}
    (broker,) = (block.text for block in blocks(ROOT / "docs" / "howto.md") if block.text.startswith("docker run --detach"))
    assert shell.startswith(broker)


def test_the_pages_that_are_made_of_the_code_leave_nothing_out() -> None:
    schema = json_schema()
    assert set(site_pages.SECTIONS.values()) == {schema["title"], *schema["$defs"]}
    settings = {name for about in (schema, *schema["$defs"].values()) for name in about["properties"]}
    page = site_pages.job_file()
    assert {name for name in settings if f"| `{name}` |" not in page} == set()
    assert "See `" not in page, "the page has the text that is meant"
    rooms = [room for group in site_pages.ROOMS.values() for room in group]
    assert len(rooms) == len(set(rooms))
    assert {site_pages.room_of(message) for message in raised()} <= set(rooms)
    commands = {f"## `fkjoin {name}`" for name in get_command(app).commands}  # type: ignore[attr-defined]
    assert commands <= set(site_pages.commands().splitlines())


def test_the_page_of_commands_cuts_no_sentence() -> None:
    listed = re.findall(r"^\* `\w+`: (.+)$", site_pages.commands(), re.MULTILINE)
    assert len(listed) > 15
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_the_page_of_messages_has_rows_with_words_and_classes_of_the_reference() -> None:
    public = {name.rpartition(".")[2] for name in reference() if name.endswith("Error")}
    assert {name for name in site_pages.MEANINGS if name.endswith("Error")} == public
    rows = re.findall(r"^\| (.+) \| (\S+|a dead letter) \|$", site_pages.messages(), re.MULTILINE)
    classes = {name.strip("`") for _, name in rows} - {"class", "---", *site_pages.MEANINGS}
    assert len(rows) > 300
    assert {name for name in classes if not hasattr(builtins, name)} == set()
    assert [text for text, _ in rows if len(re.findall(r"[^\W\d_]{2,}", text)) < 3 and text not in ("message", "---")] == []


def test_exit_statuses_are_those_of_the_page() -> None:
    code = "".join(path.read_text() for path in (ROOT / "fkjoin" / "cli").glob("*.py"))
    there = {status for statuses in site_pages.ENDS for status in statuses.split(", ")}
    assert set(re.findall(r"\bExit\((.+?)\)", code)) == {"1"} <= there
    for number in (signal.SIGINT, signal.SIGTERM):
        stop = Stop()
        stop.ask(number, None)  # the job ends by itself, with 0
        with pytest.raises(SystemExit) as ended:
            stop.ask(number, None)
        assert str(ended.value.code) in there


def test_the_changelog_has_the_formats_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\d+)[^|]* \| ([\d, ]+) \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {what: int(writes) for what, writes, _ in rows} == {
        "records in the state": records._FORMAT,
        "messages between stages": messages._FORMAT,
        "segments of change logs": segments._FORMAT,
        "meta of change logs": segments.META_FORMAT,
        "the document of a checkpoint": begun.VERSION,
        "the wire of staged joins": WIRE_VERSION,
        "the wire of staged aggregates": WIRE_VERSION,
    }
    assert all(reads.split(", ")[-1] == writes for _, writes, reads in rows)


def prose(path: Path) -> str:
    """A document's text without code, in one line."""
    return " ".join(re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text())).split())


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda path: path.name
)
def test_documents_keep_to_the_names_of_the_glossary(path: Path) -> None:
    for words, name in NOT_USED.items():
        found = re.findall(rf"\b{words}\b", prose(path), re.IGNORECASE)
        assert found == [], f"{path.name}: the name is {name!r}; see docs/glossary.md"


def test_messages_keep_to_the_names_of_the_glossary() -> None:
    used = {(words, message.text) for words in NOT_USED for message in raised() if re.search(rf"\b{words}\b", message.text)}
    assert used == set()


OF_SINKS = {"Mark"}
"""A batch as a sink remembers it: neither of the marks in the glossary."""


def test_docstrings_and_classes_keep_to_the_names_of_the_glossary() -> None:
    found: list[tuple[str, int, str, str]] = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            texts = []
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                texts.append(" ".join(re.sub(r"``[^`]*``", "", node.value.value).split()))
            if isinstance(node, ast.ClassDef) and node.name not in OF_SINKS:
                texts.append(" ".join(re.findall(r"[A-Z]?[a-z]+", node.name)))
            for words in (*NOT_USED, *(["derived"] if isinstance(node, ast.ClassDef) else [])):
                found += [(module, node.lineno, words, text) for text in texts if re.search(rf"\b{words}\b", text, re.I)]
    assert len(MODULES) > 100
    assert found == []


def test_the_glossary_has_the_names_that_documents_keep_to() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    names = re.findall(r"\*\*([^*]+)\*\*", glossary)
    assert set(NOT_USED.values()) - set(names) == set()
    assert len(names) == len(set(names))


def test_the_architecture_page_has_a_paragraph_for_each_room_and_names_files_that_are_there() -> None:
    page, picture = ((ROOT / "docs" / name).read_text() for name in ("architecture.md", "architecture.svg"))
    rooms = {path.parent.name for path in (ROOT / "fkjoin").glob("*/__init__.py")} - {"data"} | {"face"}
    assert set(re.findall(r"^- \*\*(\w+)\*\*:", page, re.MULTILINE)) == rooms
    assert rooms - set(re.findall(r'class="name">(\w+)<', picture)) == set()
    for paragraph in re.split(r"\n\n|\n(?=- )", page.split("## Rooms")[1]):
        room = re.match(r"- \*\*(\w+)\*\*", paragraph)
        folders = [ROOT, ROOT / "fkjoin", *([ROOT / "fkjoin" / room[1]] if room else [])]
        for name in re.findall(r"`([\w/.]+(?:\.py|/))`", paragraph):
            assert any((folder / name).exists() for folder in folders), f"docs/architecture.md: {name}"
