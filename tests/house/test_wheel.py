"""The wheel: it puts ``fkjoin`` alone on the path, and other packages' modules called ``state`` change nothing."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.nightly

WORK = """
import fkjoin, state
from fkjoin.state import BucketStore
from fkjoin.testing import JoinTest, left, right

test = JoinTest(extractor="customer", joiner=lambda order, customer: customer["name"])
test.feed(left("o1", {"customer": "c1"}), right("c1", {"name": "Ada"}))
print(fkjoin.__file__, state.WHOSE, test.table, BucketStore.__module__, sep="\\n")
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


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without what building and running leave in it, which a wheel would have, too."""
    leave_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "tests")
    copy = tmp_path_factory.mktemp("all") / "checkout"
    return shutil.copytree(ROOT, copy, symlinks=True, ignore=leave_out)


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout, built as for a release."""
    return made_wheel(checkout, tmp_path_factory.mktemp("wheel"))


def made_wheel(source: Path, folder: Path) -> Path:
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder)
    about = {"folder": folder, "FKJOIN_HOME": "https://example.org/fkjoin/blob/v1/"}
    run(sys.executable, "-m", "pip", "wheel", *options, source, **about)
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> dict[str, int]:
    """The files of a wheel, and their permissions."""
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.external_attr >> 16 for item in archive.infolist()}


def test_a_wheel_has_one_package_and_all_that_belongs_to_it(wheel: Path) -> None:
    files = files_of(wheel)
    assert {name.partition("/")[0] for name in files} == {"fkjoin", re.sub(r"-py3.*", ".dist-info", wheel.name)}
    walked = os.walk(ROOT / "fkjoin", followlinks=True)
    sources = {str(Path(folder, name).relative_to(ROOT)) for folder, _, names in walked for name in names}
    sources = {name for name in sources if "__pycache__" not in name}
    assert sources - set(files) == set()
    assert {"fkjoin/state/bucket.py", "fkjoin/py.typed", "fkjoin/data/page.js", "fkjoin/sessions/LocalFiles.java"} <= sources
    assert files["fkjoin/sessions/local-python"] & stat.S_IXUSR


def test_a_source_archive_has_the_documents_and_makes_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build, folder=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()}
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "SECURITY.md", "README.md", "mkdocs.yml", *documents} <= names
    assert files_of(made_wheel(archive, tmp_path)) == files_of(wheel)


def test_an_index_is_told_the_license_the_extras_and_the_newest_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (info,) = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" in name}
        told = Parser().parsestr(opened.read(f"{info}/METADATA").decode())
        licenses = {name.removeprefix(f"{info}/licenses/") for name in opened.namelist()}
    assert {"LICENSE", "NOTICE", "fkjoin/data/uPlot.LICENSE"} <= licenses
    assert told["License-Expression"] == "Apache-2.0 AND MIT"
    readme = told.get_payload()
    assert "](https://example.org/fkjoin/blob/v1/docs/tutorial.md)" in readme
    assert "](https://example.org/fkjoin/raw/v1/docs/pictures/hero.svg)" in readme
    assert re.findall(r"\]\((?!https://)[^)]*\)", readme) == []
    assert not any(value.startswith("License ::") for value in told.get_all("Classifier", [])), "indexes refuse both"
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == told["Version"]


@pytest.fixture(scope="module", params=["wheel", "checkout"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of an environment, and where fkjoin is: the wheel, or the checkout, as ``make`` installs it.

    Beside it are fkjoin's requirements, and a package ``state``.
    """
    folder, source = tmp_path_factory.mktemp("installed"), request.getfixturevalue(request.param)
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))  # hooks of installations there do not run
    (packages / "state").mkdir()
    (packages / "state" / "__init__.py").write_text("WHOSE = 'of an index'\n")
    what = [source] if request.param == "wheel" else ["--no-build-isolation", "--editable", source]
    options = ("--no-compile", "--no-deps", "--no-index", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, *what, folder=folder)
    return python, packages if request.param == "wheel" else source


@pytest.mark.parametrize(("own", "whose"), [(True, "of the user"), (False, "of an index")])
def test_a_state_of_another_package_changes_nothing(
    installed: tuple[Path, Path], tmp_path: Path, own: bool, whose: str
) -> None:
    """A join in memory: beside the job may be a module ``state``, and the index has a package of that name."""
    python, place = installed
    if own:
        (tmp_path / "state.py").write_text("WHOSE = 'of the user'\n")
    (tmp_path / "job.py").write_text(WORK)
    file, *printed = run(python, "job.py", folder=tmp_path).splitlines()
    assert Path(file).is_relative_to(place)
    assert printed == [whose, "{'o1': 'Ada'}", "fkjoin.state.bucket"]
    commands = ([python, "-m", "fkjoin"], [python.parent / "fkjoin"])
    assert len({run(*command, "--version", folder=tmp_path) for command in commands}) == 1
