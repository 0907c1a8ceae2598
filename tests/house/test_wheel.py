"""The wheel: it puts ``fkjoin`` alone on the path, and other packages' modules called ``state`` change nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())

WORK = """
import json, sys
from pathlib import Path

import numpy as np
import pyarrow as pa

import fkjoin, state
from fkjoin.codec import versions
from fkjoin.codec.messages import CHANGE, table
from fkjoin.stages import Counters, rekey
from fkjoin.state import BYTES, BucketStore


class Log(dict):
    def meta(self):
        return self.get("meta")

    def set_meta(self, meta):
        self["meta"] = meta

    segment, put_segment, remove_segment = dict.get, dict.__setitem__, dict.__delitem__


def changes(number, customer):
    made = (pa.array([item], BYTES) for item in (b"order", customer, b"row"))
    return table(CHANGE, *made, versions.encode(b"orders..", [np.array([number])]), np.array([number]))


log, count, found = Log(), Counters(), []
for number, customer in enumerate([b"Ada", b"Ben", b"Ben"]):
    with BucketStore(log, Path("bucket")) as store:
        made = rekey(changes(number, customer), store, count, now_ms=0, retention_ms=1)
        found.append([[row["foreign_key"].decode(), row["subscribe"]] for row in made.subscriptions.to_pylist()])
        store.commit()
print(json.dumps({"fkjoin": fkjoin.__file__, "state": state.WHOSE, "found": found}))
"""


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a command in an environment that does not say where fkjoin is, and return what it prints."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | variables
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str | Path, folder: Path) -> None:
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, folder=folder)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without what building and running leave in it, which a wheel would have, too."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("fkjoin", "state"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", copy / "docs")
    for name in (
        "pyproject.toml",
        "mkdocs.yml",
        "MANIFEST.in",
        "LICENSE",
        "NOTICE",
        *(path.name for path in ROOT.glob("*.md")),
    ):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout."""
    return made_wheel(checkout, tmp_path_factory.mktemp("wheel"))


def made_wheel(source: Path, folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source, folder=folder)
    (found,) = folder.glob("*.whl")
    return found


def environment(folder: Path) -> tuple[Path, Path]:
    """The Python of a new environment, and where its packages are: fkjoin's requirements, and a package ``state``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))  # hooks of installations there do not run
    (packages / "state").mkdir()
    (packages / "state" / "__init__.py").write_text("WHOSE = 'of an index'\n")
    return folder / "bin" / "python", packages


def job(folder: Path, text: str, *, own: bool) -> Path:
    """A user's job, perhaps with a module ``state`` beside it."""
    folder.mkdir(exist_ok=True)
    if own:
        (folder / "state.py").write_text("WHOSE = 'of the user'\n")
    (folder / "job.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python, _ = environment(folder / "venv")
    installed_by(python, wheel, folder=folder)
    return python


def installed_by(python: Path, *what: str | Path, folder: Path) -> None:
    pip("--python", python, "install", "--no-compile", "--no-deps", "--no-index", "--ignore-installed", *what, folder=folder)


@pytest.fixture(scope="module")
def editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the development checkout, as ``make`` installs it."""
    folder = tmp_path_factory.mktemp("editable")
    python, _ = environment(folder / "venv")
    installed_by(python, "--no-build-isolation", "--editable", checkout, folder=folder)
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without fkjoin."""
    return environment(tmp_path_factory.mktemp("bare") / "venv")[0]


def files_of(wheel: Path) -> dict[str, int]:
    """The files of a wheel, and their permissions."""
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.external_attr >> 16 for item in archive.infolist()}


def test_a_wheel_has_one_package_and_all_that_belongs_to_it(wheel: Path) -> None:
    files = files_of(wheel)
    assert {name.partition("/")[0] for name in files} == {"fkjoin", re.sub(r"-py3.*", ".dist-info", wheel.name)}
    sources = {str(path.relative_to(ROOT)) for path in linked(ROOT / "fkjoin")}
    assert sources - set(files) == set()
    assert {
        "fkjoin/state/bucket.py",
        "fkjoin/py.typed",
        "fkjoin/data/page.js",
        "fkjoin/data/uPlot.iife.min.js",
        "fkjoin/sessions/LocalFiles.java",
    } <= sources
    assert files["fkjoin/sessions/local-python"] & stat.S_IXUSR


def linked(folder: Path) -> Iterator[Path]:
    """The files of the package, those behind its links among them."""
    for path, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(path, name) for name in names)


@pytest.fixture(scope="module")
def archive(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of the checkout."""
    folder = tmp_path_factory.mktemp("archive")
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, folder=checkout)
    (found,) = folder.glob("*.tar.gz")
    return found


def test_a_source_archive_makes_the_same_wheel(archive: Path, wheel: Path, tmp_path: Path) -> None:
    assert files_of(made_wheel(archive, tmp_path)) == files_of(wheel)


def test_a_source_archive_has_documents_changes_and_the_license(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()}
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "SECURITY.md", "README.md", "mkdocs.yml", *documents} <= names


def test_an_index_is_told_what_it_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (info,) = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name}
        told = Parser().parsestr(opened.read(f"{info}/METADATA").decode())
        license_text = opened.read(f"{info}/licenses/LICENSE").decode()
        assert {f"{info}/licenses/{name}" for name in ("NOTICE", "fkjoin/data/uPlot.LICENSE")} <= set(opened.namelist())
    assert (told["License-Expression"], told["Author"]) == ("Apache-2.0 AND MIT", "fkjoin maintainers")
    assert "Apache License" in license_text
    assert {"all", "cli", "delta", "iceberg", "kafka", "postgres", "registry"} <= set(told.get_all("Provides-Extra", []))
    assert told["Keywords"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert not any(value.startswith("License ::") for value in told.get_all("Classifier", [])), "indexes refuse both"


def test_the_version_is_said_once(wheel: Path) -> None:
    version = re.findall(r'^__version__ = "(.+)"$', (ROOT / "fkjoin" / "__init__.py").read_text(), re.MULTILINE)
    assert wheel.name.split("-")[1:2] == version
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1] == version, "the newest section"


def test_an_installation_has_the_command_and_the_module(installed: Path, tmp_path: Path) -> None:
    said = {
        run(*command, "--version", folder=tmp_path) for command in ([installed, "-m", "fkjoin"], [installed.parent / "fkjoin"])
    }
    assert len(said) == 1


def works(python: Path, folder: Path, **variables: str) -> tuple[str, str]:
    """A job's stage over a bucket store; returns where fkjoin is, and whose ``state`` the job has."""
    said = json.loads(run(python, "job.py", folder=folder, **variables))
    assert said["found"] == [[["Ada", True]], [["Ada", False], ["Ben", True]], []]
    return said["fkjoin"], said["state"]


@pytest.mark.parametrize(("own", "whose"), [(True, "of the user"), (False, "of an index")])
def test_a_state_of_somebody_else_changes_nothing_in_an_installed_wheel(
    installed: Path, tmp_path: Path, own: bool, whose: str
) -> None:
    place, state = works(installed, job(tmp_path / "job", WORK, own=own))
    assert Path(place).is_relative_to(installed.parent.parent)
    assert state == whose


@pytest.mark.parametrize(("own", "whose"), [(True, "of the user"), (False, "of an index")])
def test_a_state_of_somebody_else_changes_nothing_in_an_editable_installation(
    editable: Path, checkout: Path, tmp_path: Path, own: bool, whose: str
) -> None:
    place, state = works(editable, job(tmp_path / "job", WORK, own=own))
    assert Path(place).is_relative_to(checkout)
    assert state == whose


def test_a_state_of_the_user_changes_nothing_with_a_checkout_on_the_path(bare: Path, tmp_path: Path) -> None:
    place, state = works(bare, job(tmp_path / "job", WORK, own=True), PYTHONPATH=str(ROOT))
    assert Path(place).is_relative_to(ROOT)
    assert state == "of the user"
