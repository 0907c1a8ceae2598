"""The output of ``fkjoin run``: plain lines, or a live panel on a terminal.

Nothing of Spark is imported here: the screen stands before that, which takes seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from fkjoin.checkpoint.progress import span

if TYPE_CHECKING:
    from fkjoin.jobs.shown import Lines
    from fkjoin.metrics.report import JobReport

    Look = Callable[[], JobReport]

_MARKS = {"✓": "green", "✗": "red", "–": "yellow"}


class Screen:
    """Screen of a command, from its first second to its end.

    It has lines with their times, as logs of containers want them.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.began = console, time.time()
        """The command's beginning, in seconds since 1970."""
        self._look: Look | None = None
        self._lines: Lines | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave on the screen how it ended."""
        if self._look is not None and self._lines is not None:
            for line in self._lines.last(self._look()):
                self.say(line)

    def wait(self, stage: str) -> None:
        """Show what is waited for, if that can vanish again."""

    def begin(self, stage: str) -> None:
        """Say what is done from here on; the stage of the start before it is done."""
        self.say(stage)

    def say(self, text: str) -> None:
        """Say something once."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def aside(self) -> None:
        """Leave standard output to others."""
        self.console = Console(stderr=True)

    def watch(self, look: Look) -> None:
        """Show the job from here on: its start is over, and another thread may ask for a report."""
        from fkjoin.jobs.shown import Lines

        self._look, self._lines = look, Lines()

    def refresh(self) -> None:
        """Show what is new of the job."""
        if self._look is not None and self._lines is not None:
            for line in self._lines.news(self._look()):
                self.say(line)


def screen_on(console: Console) -> Screen:
    """The screen that fits the console."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    return Terminal(console) if is_live else Screen(console)


class Terminal(Screen):
    """Stages of the start one below the other, each with its time.

    Then the panel, four times a second.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lock = threading.RLock()
        self._stage: str | None = None
        self._leaves_line, self._since = False, time.monotonic()
        # Errors that Python prints go where Spark's log goes, and not through the panel.
        self._live = Live(
            get_renderable=self._drawn, console=console, refresh_per_second=4, redirect_stderr=False
        )

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._done()
        elif issubclass(kind, Exception):
            self._done("✗")
        else:
            self._done("–", "stopped after ")
        self._live.stop()

    def wait(self, stage: str) -> None:
        self.begin(stage, leaves_line=False)

    def begin(self, stage: str, *, leaves_line: bool = True) -> None:
        self._done()
        self._stage, self._leaves_line, self._since = stage, leaves_line, time.monotonic()
        self._live.refresh()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def aside(self) -> None:
        """Leave nothing: lines that are printed come above the panel."""

    def watch(self, look: Look) -> None:
        self._done()
        self._look = look
        self._live.refresh()

    def _done(self, mark: str = "✓", word: str = "") -> None:
        """Leave a line about the stage."""
        with self._lock:
            stage, self._stage = self._stage, None
        self._live.refresh()  # without the stage: what is printed comes above what was shown last
        if stage is not None and self._leaves_line:
            after = f"  {word}{time.monotonic() - self._since:.1f} s"
            self.console.print(
                Text.assemble((mark, _MARKS[mark]), " ", stage, (after, "dim")), soft_wrap=True
            )

    def _drawn(self) -> RenderableType:
        with self._lock:
            stage, shown = self._stage, list[RenderableType]()
            if self._look is not None:
                from fkjoin.jobs.shown import panel

                shown += ["", *panel(self._look())]
            if stage is not None:
                lasts = f"  {span(int(time.monotonic() - self._since))}"
                shown.append(Spinner("dots", Text.assemble(stage, (lasts, "dim")), style="cyan"))
        return Group(*shown)
