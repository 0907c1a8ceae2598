"""A report on a job as people see it: a panel on a terminal, and lines elsewhere.

Some lines come at once, and some now and then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from fkjoin.checkpoint.progress import QueryPhase, as_of, behind, moment, several, span
from fkjoin.metrics.report import BUSY_PHASES, IDLE_PHASES, JobReport, Mode, QueryReport

EVERY_S, IDLE_EVERY_S = 60.0, 600.0
"""The time between two lines about a query that works, and about one that waits."""
_SAID = {
    Mode.STOPS: "stops when the batches at work are done; a second signal ends it at once",
    Mode.FAILS: "fails when the batches at work are done; two signals end it at once",
}
"""Lines about a job that ends, where it works on."""
_STYLES = {
    QueryPhase.BATCH: "cyan",
    QueryPhase.WAITS: "green",
    QueryPhase.DUE: "green",
    QueryPhase.ASKS: "bold yellow",
    QueryPhase.DONE: "green",
    QueryPhase.FAILED: "bold red",
}
_MODES = {
    Mode.RUNS: "bold green",
    Mode.DONE: "bold green",
    Mode.FAILS: "bold red",
    Mode.FAILED: "bold red",
}


def panel(report: JobReport) -> Iterator[RenderableType]:
    """Yield what a terminal shows of a job, as wide as it is."""
    mode, runs = report.mode, report.mode is Mode.RUNS
    words = report.ending if mode.is_end else mode.value
    if runs:
        began = moment((report.began_ms or report.now_ms) / 1000, report.now)
        words = f"{words} for {report.lasted}, since {began}"
    yield Text.assemble((report.name, "bold"), "  ", (words, _MODES.get(mode, "bold yellow")))
    yield Text(report.flow, "dim", no_wrap=True, overflow="ellipsis")
    yield ""
    yield _queries(report)
    queries = report.queries.values()
    failed = [f"{query.name} failed" for query in queries if query.phase is QueryPhase.FAILED]
    if troubles := [*failed, *report.troubles]:
        yield Text.assemble(("\nsince the start: ", "dim"), ("; ".join(troubles), "yellow"))
    elif mode is not Mode.FAILED:
        yield Text("\nno errors, no dead letters since the start", "dim")
    if runs:
        yield Text("\n".join(("Ctrl-C stops it after the batch at work", *report.notes)), "dim")
        yield ""  # the cursor's line: of whatever comes when the process is killed


def _queries(report: JobReport) -> Grid:
    queries = list(report.queries.values())
    titles = ["batch", "took", "rows read"]
    if not report.mode.is_end:
        titles.insert(0, "rows/s")
    if any(query.behind is not None for query in queries):
        titles.insert(0, "behind")
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    grid.add_column("query", overflow="fold")
    grid.add_column("now")
    for title in titles:
        grid.add_column(title, justify="right", no_wrap=True)
    for query in queries:
        numbers = _numbers(query, report.now)
        doing = Text(query.doing, _STYLES.get(query.phase, ""))
        grid.add_row(query.name, doing, *(numbers[title] for title in titles))
    return grid


def _numbers(query: QueryReport, now: float) -> dict[str, str]:
    """Return the numbers of a query, by the title of their column."""
    last = query.batch
    behind_by = "–"
    if query.behind is not None:
        behind_by = f"{query.behind:,}{as_of(query.lag.as_of, now)}"
    return {
        "behind": behind_by,
        "rows/s": f"{query.read:,.0f}" if query.read >= 10 else f"{query.read:.1f}",
        "batch": f"#{last['batch']:,}" if last else "–",
        "took": span(last["seconds"]) if last else "–",
        "rows read": f"{query.rows:,}",
    }


@dataclass
class Lines:
    """Choose what to say of a job, from one report to the next."""

    _before: dict[str, QueryReport] = field(default_factory=dict)
    """Each query, as the last line about it had it."""
    _mode: Mode = Mode.RUNS
    _troubles: tuple[str, ...] = ()
    _troubles_at: float = 0.0

    def news(self, report: JobReport) -> Iterator[str]:
        """Yield what there is to say; nothing most of the time."""
        for query in report.queries.values():
            if (words := _news(query, self._before.get(query.name))) is not None:
                self._before[query.name] = query
                yield f"{query.name}: {words}"
        if report.now - self._troubles_at >= EVERY_S:
            yield from self._wrong(report)
        if report.mode in _SAID and report.mode is not self._mode:
            yield _SAID[report.mode]
        self._mode = report.mode

    def last(self, report: JobReport) -> Iterator[str]:
        """Yield what was done, at the end."""
        yield from self._wrong(report)
        for query in report.queries.values():
            if query.phase is not QueryPhase.PLANNED:
                yield f"{query.name}: {_sum(query)}"
        yield f"{report.name} {report.ending}"

    def _wrong(self, report: JobReport) -> Iterator[str]:
        """Yield what went wrong, if that is new."""
        if report.troubles != self._troubles:
            self._troubles, self._troubles_at = report.troubles, report.now
            yield f"since the start: {'; '.join(report.troubles)}"


def _news(query: QueryReport, before: QueryReport | None) -> str | None:
    """Say what is new of a query since a line about it; None: it is not worth a line yet."""
    phase, last, now = query.phase, query.batch, query.now_ms / 1000
    if phase not in (*BUSY_PHASES, *IDLE_PHASES):
        return None
    if last and (before is None or not before.batches):
        rows, took = _rows(last["inputs"]), span(last["seconds"])
        return f"first batch done, number {last['batch']}: {rows} in {took}"
    if before is None and phase is QueryPhase.STARTS:
        return "starts"
    if not last and phase is QueryPhase.BATCH and (before is None or before.phase is not phase):
        return "first batch begins"
    if before is None:
        return query.doing
    done, passed = query.batches - before.batches, now - before.now_ms / 1000
    if passed < (EVERY_S if done or phase in BUSY_PHASES else IDLE_EVERY_S):
        return None
    if done:
        number = query.rows - before.rows
        batches, speed = several(done, "batch", "batches"), f"{number / passed:,.1f}/s"
        left = behind(query.behind, query.lag.as_of, now)
        return (
            f"{batches} in {span(passed)}: {_rows(number)}, {speed}; the last, number "
            f"{last['batch']:,}, took {span(last['seconds'])}{left}"
        )
    return f"{query.doing}; {_sum(query)} since the start" if query.batches else query.doing


def _sum(query: QueryReport) -> str:
    return f"{several(query.batches, 'batch', 'batches')}, {_rows(query.rows)} read"


def _rows(number: int) -> str:
    return several(number, "row", "rows")
