"""The documents: code in them runs and prints what they say, links lead somewhere, the site builds strictly."""

from __future__ import annotations

import builtins
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession
from typer.main import get_command
from typer.testing import CliRunner

from fkjoin.checkpoint import begun
from fkjoin.cli.main import app
from fkjoin.codec import messages, records
from fkjoin.jobs.job_file import json_schema, read_job
from fkjoin.kafka.wire import WIRE_VERSION
from fkjoin.sessions.settings import _REQUIRED
from fkjoin.state import segments
from tests.support.batch_places import LocalPlace
from tests.support.documents import blocks, check_printed, check_tutorial, program
from tests.support.places import ROOT
from tests.support.reference import reference
from tests.support.sessions import small
from tools import site_pages
from tools.messages import raised
from tools.mutations import MUTATIONS

DOCS = sorted((ROOT / "docs").rglob("*.md"))

RELATIVE = re.compile(
    r'((?:spark|joined|regions), |show\(|to_parquet\(|"checkpoint": |^(?:path|checkpoint|log) = )"(?!/)', re.MULTILINE
)
"""A text before a path; the JVM of the tests takes relative ones from where it began."""


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_readme_and_the_tutorial_do_what_they_say(
    spark: SparkSession,
    document: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fkjoin_here: Callable[..., str],
) -> None:
    """They run in the session of the tests, with few partitions."""
    monkeypatch.chdir(tmp_path)
    small(spark, tmp_path)
    script, wanted = program(document, here=True)

    def here(text: str) -> None:
        for file in tmp_path.glob("job.toml"):
            file.write_text(RELATIVE.sub(rf'\1"{tmp_path}/', file.read_text()))
        for _, *arguments in map(shlex.split, text.splitlines()):
            # Commands that start no Spark have no log of Spark's.
            print(fkjoin_here(*arguments) if arguments[0] == "run" else CliRunner().invoke(app, arguments).stdout)

    exec(compile(RELATIVE.sub(rf'\1"{tmp_path}/', script), document, "exec"), {"here": here})
    if document == "README.md":
        check_printed(capsys.readouterr().out, wanted)
        here("fkjoin run job.toml")
        rows = LocalPlace(tmp_path / "joined").rows()
        assert {row["order_id"]: row["region"] for row in rows} == {"o1": "west", "o2": "south", "o3": "west"}
    else:
        check_tutorial(tmp_path, capsys.readouterr().out, wanted)


def test_the_readme_leads_to_its_pages_and_shows_the_job_of_init() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []
    (shown,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "toml")
    written = (ROOT / "fkjoin" / "data" / "init-files.toml").read_text()
    assert [part for part in shown.strip().split("\n\n") if part not in written] == []


def test_code_in_documents_is_python_and_names_what_there_is() -> None:
    for path in [*DOCS, ROOT / "README.md"]:
        for text in (block.text for block in blocks(path) if block.language == "python"):
            compile(text, str(path), "exec")
            for module, names in re.findall(r"^from (fkjoin[\w.]*) import (.+)$", text, re.MULTILINE):
                wanted = re.findall(r"(\w+)(?: as \w+)?(?:,|$)", names)
                found = __import__(module, fromlist=wanted)  # a module below it is imported, too
                assert [f"{path}: {module}.{name}" for name in wanted if not hasattr(found, name)] == []


def test_the_page_on_merge_shows_the_code_that_is_measured() -> None:
    code = (ROOT / "benchmarks" / "merge.py").read_text()
    shown = [block.text for block in blocks(ROOT / "docs" / "from-merge.md") if block.language == "python"]
    assert [text for text in shown if text not in code] == []
    assert len(re.findall(r"^def \w+", "\n".join(shown), re.MULTILINE)) == 4


def test_databricks_finds_what_the_how_to_has_it_run() -> None:
    """A wheel task calls an entry point of the package's metadata with the parameters as arguments."""
    (block,) = (block for block in blocks(ROOT / "docs" / "deploy.md") if "python_wheel_task" in block.text)
    (task,) = yaml.safe_load(block.text)["resources"]["jobs"]["orders"]["tasks"]
    wheel = task["python_wheel_task"]
    package = distribution(wheel["package_name"])
    assert task["libraries"][0]["whl"].endswith(f"/{wheel['package_name']}-{package.version}-py3-none-any.whl")
    wanted = [one.partition(">=")[0] for one in package.requires or [] if re.search(r"; extra == .cli.$", one)]
    assert [one["pypi"]["package"] for one in task["libraries"][1:]] == wanted
    needed = {name: value for name, (value, _) in _REQUIRED.items()}
    assert needed.items() <= task["new_cluster"]["spark_conf"].items()
    (entry,) = package.entry_points.select(name=wheel["entry_point"])
    assert entry.load().__module__ == "fkjoin.__main__"
    assert wheel["parameters"][0] in get_command(app).commands  # type: ignore[attr-defined]


def test_tests_that_are_named_are_there() -> None:
    texts = [*DOCS, *ROOT.glob("*.md"), ROOT / "Makefile"]
    for folder in ("fkjoin", "state", "tests", "integration", "tools"):
        texts += (ROOT / folder).rglob("*.py")
    everything = "\n".join(text.read_text() for text in texts)
    named = set(re.findall(r"\b(?:tests|integration)/[\w/]+\.py\b", everything))
    assert len(named) > 100
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_each_mutation_finds_its_text_once() -> None:
    for fault, mutation in MUTATIONS.items():
        assert (ROOT / mutation.path).read_text().count(mutation.before) == 1, fault


def test_the_pages_for_users_are_thirty_at_most() -> None:
    """A reader finds in few pages what is told once; pages that are made of the code and contributors' pages do not count."""
    nav = re.sub(r"!\S+", "", (ROOT / "mkdocs.yml").read_text())
    tabs = {name: found for tab in yaml.safe_load(nav)["nav"] for name, found in tab.items()}
    listed = {tab: set(re.findall(r"[\w-]+\.md", str(pages))) for tab, pages in tabs.items()}
    for_users = set().union(*(pages for tab, pages in listed.items() if tab not in ("Contributing", "Python API")))
    pages = [ROOT / "docs" / name for name in for_users - site_pages.PAGES.keys()]
    assert len(pages) <= 30
    assert sum(len(page.read_text().splitlines()) for page in pages) <= 5_000


@pytest.mark.nightly
def test_the_site_has_its_pages(tmp_path: Path) -> None:
    """It builds strictly: no broken link, no page that is left out, no unknown name in the reference."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for page, has in {
        "reference-grouped": 'doc-section-title">Parameters:<',
        "messages": "FormatError",
        "checkout": "FkjoinLagGrows",
        "security": 'href="../reporting/"',
    }.items():
        assert has in (tmp_path / page / "index.html").read_text(), page


def test_the_first_jobs_file_is_one(tmp_path: Path) -> None:
    """``integration/test_example_job.py`` runs the programs of the page on a first job."""
    for page in ("index.md", "first-job.md"):
        (file,) = (block.text for block in blocks(ROOT / "docs" / page) if block.language == "toml")
        (tmp_path / "shop.toml").write_text(file)
        assert read_job(tmp_path / "shop.toml").joins["joined"].left == "orders"


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


def test_the_page_of_messages_has_rows_with_words_and_classes_of_the_reference() -> None:
    public = {name.rpartition(".")[2] for name in reference() if name.endswith("Error")}
    assert {name for name in site_pages.MEANINGS if name.endswith("Error")} == public
    rows = re.findall(r"^\| (.+) \| (\S+|a dead letter) \|$", site_pages.messages(), re.MULTILINE)
    classes = {name.strip("`") for _, name in rows} - {"class", "---", *site_pages.MEANINGS}
    assert len(rows) > 300
    assert {name for name in classes if not hasattr(builtins, name)} == set()


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


def test_the_architecture_page_has_a_paragraph_for_each_room() -> None:
    page, picture = ((ROOT / "docs" / name).read_text() for name in ("architecture.md", "architecture.svg"))
    rooms = {path.parent.name for path in (ROOT / "fkjoin").glob("*/__init__.py")} - {"data"} | {"face"}
    assert set(re.findall(r"^- \*\*(\w+)\*\*:", page, re.MULTILINE)) == rooms
    assert rooms - set(re.findall(r'class="name">(\w+)<', picture)) == set()
