"""The live panel of ``fkjoin run`` on a terminal: a view of the job in, lines out."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from fkjoin.checkpoint.progress import QueryPhase, as_of, moment, span
from fkjoin.jobs.view import JobView, Mode, QueryView, doing, ended

WIDE = 100
"""Columns from which on there is room for all numbers of a query."""

_STYLES = {
    QueryPhase.BATCH: "cyan",
    QueryPhase.WAITS: "green",
    QueryPhase.DUE: "green",
    QueryPhase.ASKS: "bold yellow",
    QueryPhase.DONE: "green",
    QueryPhase.FAILED: "bold red",
}
_AT_WORK = (Mode.RUNS, Mode.STOPS, Mode.FAILS)
_MODES = dict.fromkeys((Mode.RUNS, Mode.DONE), "bold green") | dict.fromkeys((Mode.FAILS, Mode.FAILED), "bold red")
_MODES[Mode.STOPS] = "bold yellow"


@dataclass(frozen=True)
class Panel:
    """A view as the terminal shows it, as wide as it is."""

    view: JobView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, width = self.view, options.max_width
        yield _headline(view)
        yield Text(view.flow.line(width), "dim", no_wrap=True, overflow="ellipsis")
        yield Text("")
        yield _queries(view, width)
        if view.troubles or view.mode is not Mode.FAILED:
            yield Text("")
            yield _errors(view)
        if view.silent and view.mode in _AT_WORK:
            yield Text("\n".join(view.silent), "bold yellow")
        if view.mode is Mode.RUNS:
            yield Text("\n".join(("Ctrl-C stops it after the batch at work", *view.notes)), "dim")


def _headline(view: JobView) -> Text:
    mode, more = view.mode.value, ""
    if view.mode is Mode.RUNS:
        mode, more = f"{mode} for {span(view.now - view.began)}", f", since {moment(view.began, view.now)}"
    elif view.mode not in _AT_WORK:
        mode = ended(view)
    return Text.assemble((view.name, "bold"), "  ", (mode, _MODES.get(view.mode, "bold")), more)


def _queries(view: JobView, width: int) -> Grid:
    wide, over = width >= WIDE, view.mode not in _AT_WORK
    shown = ["behind"] * any(query.behind is not None for query in view.queries)
    shown = ["batch", "took"] if over else [*shown, "rows/s", "batch", "took"]
    shown += ["batches", "rows read"] if over else ["rows read"] if wide else []
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    grid.add_column("query", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 18)
    grid.add_column("now", min_width=20)
    for title in shown:
        grid.add_column("last batch" if title == "batch" and (wide or over) else title, justify="right", no_wrap=True)
    for query in view.queries:
        numbers = _numbers(query, view.now)
        words = Text(doing(query, view.now), _STYLES.get(query.doing, ""))
        grid.add_row(query.name, words, *(numbers[title] for title in shown))
    return grid


def _numbers(query: QueryView, now: float) -> dict[str, Text]:
    """The numbers of a query, by the title of their column."""
    last = query.last
    at = "" if query.behind_at is None else as_of(query.behind_at, now)
    return {
        "behind": Text("–") if query.behind is None else Text(f"{query.behind:,}{at}", "yellow" if query.behind else ""),
        "rows/s": Text(f"{query.rate:,.0f}" if query.rate >= 10 else f"{query.rate:.1f}"),
        "batch": Text("–" if last is None else f"#{last.number:,}"),
        "took": Text("–" if last is None else span(last.seconds)),
        "batches": Text(f"{query.batches:,}"),
        "rows read": Text(f"{query.rows:,}"),
    }


def _errors(view: JobView) -> Text:
    failed = [f"{query.name} failed" for query in view.queries if query.doing is QueryPhase.FAILED]
    if failed or view.troubles:
        return Text.assemble(("since the start: ", "dim"), ("; ".join([*failed, *view.troubles]), "yellow"))
    return Text("no errors, no dead letters since the start", "dim")
