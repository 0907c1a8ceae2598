"""Builds wheel and source archive of the last commit, checks them, and runs the tutorial where nothing but the wheel is.

python -m tools.release_check     leaves both in build/release/dist
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.archives import extract
from tests.support.documents import check_tutorial, program
from tests.support.places import ROOT

WORK = ROOT / "build" / "release"


def run(*command: str | Path, folder: Path = WORK, without: str | None = None) -> str:
    """Print a command, run it and return what it prints, in an environment in which nothing says where this checkout is.

    ``without``: what must not be on its standard error.
    """
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environment["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{environment['PATH']}"
    error = None if without is None else subprocess.PIPE
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=error, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr or ''}\n{command[0]} left with status {done.returncode}")
    if without is not None and without in done.stderr:
        raise SystemExit(f"{done.stderr}\n{command[0]} says {without!r}")
    return done.stdout


def environment(name: str, *packages: str | Path) -> Path:
    """The programs of a new environment with these packages."""
    run(sys.executable, "-m", "venv", WORK / name)
    programs = WORK / name / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return programs


def main() -> None:
    """Do all of it; ``SystemExit`` or ``AssertionError`` at what is wrong first."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "source").mkdir(parents=True)
    run("git", "archive", "--output", WORK / "source.tar", "HEAD", folder=ROOT)
    extract(WORK / "source.tar", WORK / "source")
    tools = environment("tools", "build", "twine")
    run(tools / "python", "-m", "build", "--outdir", WORK / "dist", WORK / "source")
    built = sorted((WORK / "dist").iterdir())
    run(tools / "python", "-m", "twine", "check", "--strict", *built)
    (wheel,) = (path for path in built if path.suffix == ".whl")
    programs = environment("installed", f"{wheel}[cli]")
    run(programs / "python", "-m", "pip", "check")
    with tempfile.TemporaryDirectory(prefix="fkjoin-release-") as name:
        script, wanted = program("docs/tutorial.md")
        (Path(name) / "tutorial.py").write_text(script)
        printed = run(programs / "python", "tutorial.py", folder=Path(name), without="Warning")
        check_tutorial(Path(name), printed, wanted)
    print(f"fine: {', '.join(path.name for path in built)} in {WORK / 'dist'}")


if __name__ == "__main__":
    main()
