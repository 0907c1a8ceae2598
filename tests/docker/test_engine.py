"""Docker's engine is started, again where it ends while it comes up; of the engine here are only stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.places import ROOT

SCRIPT = ROOT / "docker" / "engine.sh"
STAND_INS = {
    "id": "echo 0",
    "docker": 'test -e "$PLACE/up"',
    "dockerd": """
echo "$@" >>"$PLACE/starts"
echo "start $(wc -l <"$PLACE/starts") fails"
test "$(wc -l <"$PLACE/starts")" -ge "$GOOD" || exit 1
touch "$PLACE/up"
""",
}


def run(place: Path, good: int) -> subprocess.CompletedProcess[str]:
    """The script where ``dockerd`` comes up when it is started for the ``good``-th time."""
    for name, lines in STAND_INS.items():
        (place / name).write_text(f"#!/bin/sh\n{lines}\n")
        (place / name).chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "PLACE": str(place), "TMPDIR": str(place), "GOOD": str(good)}
    return subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_an_engine_that_ends_while_it_comes_up_is_started_again_and_then_used(tmp_path: Path) -> None:
    for _ in range(2):
        found = run(tmp_path, good=2)
        assert (found.stdout, found.stderr, found.returncode) == ("unix:///var/run/docker.sock\n", "", 0)
        assert (tmp_path / "starts").read_text().splitlines() == ["--host unix:///var/run/docker.sock"] * 2


def test_an_engine_that_does_not_come_up_is_given_up_and_its_last_words_are_shown(tmp_path: Path) -> None:
    found = run(tmp_path, good=99)
    assert (found.stdout, found.returncode) == ("", 1)
    said = found.stderr.splitlines()
    assert said == ["dockerd does not come up:", *(f"start {number} fails" for number in range(1, 6))]
