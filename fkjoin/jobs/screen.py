"""The output of ``fkjoin run``: a live panel on a terminal, plain lines elsewhere.

Nothing of Spark is imported here: the screen stands before that, which takes seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from fkjoin.checkpoint.progress import span
from fkjoin.jobs.panel import Panel
from fkjoin.jobs.plain import Lines
from fkjoin.jobs.view import JobView, Mode

Look = Callable[[], JobView]
"""The job at this moment; another thread may ask."""


_MARKS = {"✓": "green", "✗": "red", "–": "yellow"}


class Screen(Protocol):
    """Screen of a command, from its first second to its end."""

    console: Console
    began: float
    """The command's beginning, in seconds since 1970."""

    def wait(self, what: str) -> None:
        """Show what is waited for, if that can vanish again."""

    def begin(self, what: str) -> None:
        """Say what is done from here on; the stage of the start before it is done."""

    def say(self, text: str) -> None:
        """Say something once."""

    def aside(self) -> None:
        """Leave standard output to others."""

    def watch(self, look: Look) -> None:
        """Show the job from here on: its start is over."""

    def refresh(self) -> None:
        """Show what is new of the job."""

    def __enter__(self) -> Screen:
        """Begin."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave on the screen how it ended."""


def screen_on(console: Console) -> Screen:
    """The screen that fits the console."""
    return Terminal(console) if console.is_terminal and not console.is_dumb_terminal else Plain(console)


class Terminal:
    """Stages of the start one below the other, each with its time; then the panel, four times a second."""

    def __init__(self, console: Console) -> None:
        self.console, self.began = console, time.time()
        self._lock = threading.RLock()
        self._waits: str | None = None
        self._stage: str | None = None
        self._since = time.monotonic()
        self._look: Look | None = None
        # Errors that Python prints go where Spark's log goes, and not through the panel.
        self._live = Live(get_renderable=self._shown, console=console, refresh_per_second=4, redirect_stderr=False)

    def __enter__(self) -> Terminal:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        told_to_stop = kind is not None and not issubclass(kind, Exception)
        self._done("–" if told_to_stop else "✓" if kind is None else "✗", "stopped after " if told_to_stop else "")
        self._live.stop()

    def wait(self, what: str) -> None:
        self._done()
        self._waits, self._since = what, time.monotonic()
        self._live.refresh()

    def begin(self, what: str) -> None:
        self._done()
        self._stage, self._since = what, time.monotonic()
        self._live.refresh()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def aside(self) -> None:
        pass

    def watch(self, look: Look) -> None:
        self._done()
        self._look = look
        self._live.refresh()

    def refresh(self) -> None:
        pass

    def _done(self, mark: str = "✓", word: str = "") -> None:
        """Leave a line about the stage."""
        with self._lock:
            stage, self._stage, self._waits = self._stage, None, None
        self._live.refresh()  # without the stage: what is printed comes above what was shown last
        if stage is not None:
            after = f"  {word}{time.monotonic() - self._since:.1f} s"
            self.console.print(Text.assemble((mark, _MARKS[mark]), " ", stage, (after, "dim")), soft_wrap=True)

    def _shown(self) -> RenderableType:
        with self._lock:
            what, shown = self._waits or self._stage, list[RenderableType]()
            if self._look is not None:
                view = self._look()
                shown += ["", Panel(view)]
                if view.mode is Mode.RUNS:
                    shown.append("")  # the cursor's line: of whatever comes when the process is killed
            if what is not None:
                shown.append(
                    Spinner(
                        "dots", Text.assemble(what, (f"  {span(int(time.monotonic() - self._since))}", "dim")), style="cyan"
                    )
                )
        return Group(*shown)


class Plain:
    """Lines with their times, as logs of containers want them."""

    def __init__(self, console: Console) -> None:
        self.console, self.began = console, time.time()
        self._lines = Lines()
        self._look: Look | None = None

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        if self._look is not None:
            for line in self._lines.last(self._look()):
                self.say(line)

    def wait(self, what: str) -> None:
        pass

    def begin(self, what: str) -> None:
        self.say(what)

    def say(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def aside(self) -> None:
        self.console = Console(stderr=True)

    def watch(self, look: Look) -> None:
        self._look = look

    def refresh(self) -> None:
        if self._look is not None:
            for line in self._lines.news(self._look()):
                self.say(line)
