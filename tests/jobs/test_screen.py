"""The stages of a start, as a terminal and a log show them."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from rich.console import Console

from fkjoin.errors import FkJoinError
from fkjoin.jobs.screen import Screen, Terminal, screen_on
from fkjoin.metrics.report import JobReport

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def terminal(error: BaseException | None) -> str:
    """The text on a terminal after two stages of a start, of which the second may end with an error."""
    out = io.StringIO()
    with (
        contextlib.suppress(FkJoinError, KeyboardInterrupt, SystemExit),
        Terminal(Console(file=out, force_terminal=True)) as screen,
    ):
        screen.wait("reading job.toml")
        screen.begin("starting Spark at local[2]")
        screen.say("a [red] word")
        screen.begin("looking at tables")
        if error is not None:
            raise error
        screen.wait("stopping Spark")
    return _CONTROL.sub("", out.getvalue())


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (None, r"✓ looking at tables  \d\.\d s"),
        (FkJoinError("no"), r"✗ looking at tables  \d\.\d s"),
        (KeyboardInterrupt(), r"– looking at tables  stopped after \d\.\d s"),
        (SystemExit(143), r"– looking at tables  stopped after \d\.\d s"),
    ],
)
def test_each_stage_leaves_a_line_that_says_how_it_ended(error: BaseException | None, last: str) -> None:
    said = terminal(error)
    assert re.search(r"reading job\.toml  0 s", said), "while it lasts"
    assert not re.search("[✓✗–] reading", said)
    assert re.search(r"✓ starting Spark at local\[2\]  \d\.\d s\n", said)
    assert "a [red] word\n" in said, "text, and no markup"
    assert re.search(f"{last}\n", said)
    assert not re.search("[✓✗–] stopping", said)


def test_what_comes_after_a_job_that_was_killed_has_a_line_of_its_own() -> None:
    """The panel is on the screen still, and a shell writes its prompt where the cursor is."""
    out = io.StringIO()
    with Terminal(Console(file=out, force_terminal=True, width=80)) as screen:
        screen.watch(lambda: JobReport(9_000, {}, 0, name="shop"))
        assert re.search(r"Ctrl-C stops it after the batch at work *\n *$", _CONTROL.sub("", out.getvalue()))


def test_a_dumb_terminal_and_a_pipe_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert type(screen_on(Console(file=io.StringIO(), force_terminal=True))) is Screen
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_on(Console(file=io.StringIO(), force_terminal=True)), Terminal)
    assert type(screen_on(Console(file=io.StringIO()))) is Screen


def test_lines_leave_standard_output_when_they_are_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    with screen_on(Console(force_terminal=False, width=20)) as screen:
        screen.begin("a stage of a start that is longer than a line")
        screen.aside()
        screen.begin("another")
    out, error = capsys.readouterr()
    assert re.fullmatch(r"\S+ \S+ a stage of a start that is longer than a line\n", out)
    assert re.fullmatch(r"\S+ \S+ another\n", error)
