"""Lines of ``fkjoin run`` where there is no terminal: views of the job in, lines out, some at once and some now and then."""

from __future__ import annotations

from dataclasses import dataclass, field

from fkjoin.checkpoint.progress import QueryPhase, behind, several, span
from fkjoin.jobs.view import AT_WORK, JobView, Mode, QueryView, doing, ended

EVERY_S, IDLE_EVERY_S = 60.0, 600.0
"""The time between two lines about a query that works, and about one that waits."""
_SAID = {
    Mode.STOPS: "stops when the batches at work are done; a second signal ends it at once",
    Mode.FAILS: "fails when the batches at work are done; two signals end it at once",
}
"""Lines about a job that ends, where it works on."""


@dataclass
class _LastLine:
    """A query, as the last line about it had it, and when that was."""

    query: QueryView
    at: float


@dataclass
class Lines:
    """Choose what to say of a job, from one view to the next."""

    _told: dict[str, _LastLine] = field(default_factory=dict)
    _mode: Mode = Mode.RUNS
    _troubles: tuple[str, ...] = ()
    _troubles_at: float = 0.0
    _silent: tuple[str, ...] = ()

    def news(self, view: JobView) -> list[str]:
        """Return what there is to say; nothing most of the time."""
        lines = [line for query in view.queries if (line := self._about(query, view.now)) is not None]
        if view.troubles != self._troubles and view.now - self._troubles_at >= EVERY_S:
            lines.append(self._wrong(view))
        lines += [line for line in view.silent if line not in self._silent]
        if self._silent and not view.silent:
            lines.append("all brokers answer again")
        self._silent = view.silent
        if view.mode in _SAID and self._mode is not view.mode:
            lines.append(_SAID[view.mode])
        self._mode = view.mode
        return lines

    def last(self, view: JobView) -> list[str]:
        """Return what was done, at the end."""
        lines = [] if view.troubles == self._troubles else [self._wrong(view)]
        done = [f"{query.name}: {_sum(query)}" for query in view.queries if query.doing is not QueryPhase.PLANNED]
        return [*lines, *done, f"{view.name} {ended(view)}"]

    def _wrong(self, view: JobView) -> str:
        self._troubles, self._troubles_at = view.troubles, view.now
        return f"since the start: {'; '.join(view.troubles)}"

    def _about(self, query: QueryView, now: float) -> str | None:
        told = self._told.get(query.name)
        line = _line(query, None if told is None else told.query, 0.0 if told is None else now - told.at, now)
        if line is not None:
            self._told[query.name] = _LastLine(query, now)
        return None if line is None else f"{query.name}: {line}"


def _line(query: QueryView, before: QueryView | None, passed: float, now: float) -> str | None:
    """Say what is new of a query since a line about it, ``passed`` seconds ago; None: it is not worth a line yet."""
    if query.doing not in AT_WORK:
        return None
    if query.last is not None and (before is None or before.last is None):
        return f"first batch done, number {query.last.number}: {_rows(query.last.rows)} in {span(query.last.seconds)}"
    if query.doing is QueryPhase.STARTS and before is None:
        return "starts"
    if query.doing is QueryPhase.BATCH and query.last is None and (before is None or before.doing is not QueryPhase.BATCH):
        return "first batch begins"
    if before is None:
        return doing(query, now)
    done = query.batches - before.batches
    at_work = done or query.doing in (QueryPhase.STARTS, QueryPhase.BATCH, QueryPhase.ASKS)
    if passed < (EVERY_S if at_work else IDLE_EVERY_S):
        return None
    if done and query.last is not None:
        rows = query.rows - before.rows
        left = behind(query.behind, now if query.behind_at is None else query.behind_at, now)
        return (
            f"{several(done, 'batch', 'batches')} in {span(passed)}: {_rows(rows)}, {rows / passed:,.1f}/s; "
            f"the last, number {query.last.number:,}, took {span(query.last.seconds)}{left}"
        )
    return doing(query, now) + (f"; {_sum(query)} since the start" if query.batches else "")


def _sum(query: QueryView) -> str:
    return f"{several(query.batches, 'batch', 'batches')}, {_rows(query.rows)} read"


def _rows(number: int) -> str:
    return several(number, "row", "rows")
