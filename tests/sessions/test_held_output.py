"""Standard error of a JVM that starts is held, and nothing of it is lost but the report on packages that were found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fkjoin.sessions.held_output import HeldOutput

REPORT = ":: resolution report ::\\n\\t0 artifacts copied, 13 already retrieved (0kB/12ms)\\n"


@pytest.mark.parametrize(
    ("before", "wanted"), [("WARNING: a\\n" + REPORT + "b\\n", b"b\nafter\n"), ("WARNING: a\\nb", b"WARNING: a\nbafter\n")]
)
def test_what_is_said_after_packages_were_found_comes_in_its_order(before: str, wanted: bytes) -> None:
    reading, to = os.pipe()
    held = HeldOutput(to)
    writes = "import sys; sys.stderr.write('{}'); sys.stderr.flush(); "
    program = f"{writes.format(before)}print(flush=True); input(); {writes.format('after' + chr(92) + 'n')}"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=held.writing
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        held.release()
        process.stdin.write(b"\n")
        process.stdin.close()
    held.join()
    os.close(to)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == wanted


def test_what_an_ended_process_said_is_known_and_can_be_shown_all_the_same() -> None:
    reading, to = os.pipe()
    held = HeldOutput(to)
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('wrong\\n')"], stderr=held.writing, check=True)
    assert held.said() == "wrong\n"
    held.release()
    os.close(to)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == b"wrong\n"
