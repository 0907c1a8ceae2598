"""Metrics of one query and of its operators, as its batches add to them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fkjoin.checkpoint.progress import lag_of, positions_of, records_of, seconds_of
from fkjoin.checkpoint.source_topics import SourceTopic
from fkjoin.kafka.end_offsets import Left, left_to_read
from fkjoin.metrics.history import History, Point
from fkjoin.stages import counters

_RECENT, _REASONS = 50, 10
STATE_SIZES = (counters.STATE_ROWS, counters.STATE_BYTES, counters.LOG_BYTES, counters.INDEX_BYTES)
"""Sizes of state that an operator tells."""


@dataclass
class OperatorMetrics:
    """Metrics of an operator."""

    totals: Counter[str] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    """The counters of the last batch."""
    skips: Counter[str] = field(default_factory=Counter)
    """Unchanged results, by stage."""
    last_skips: dict[str, int] = field(default_factory=dict)
    """Those of the last batch."""
    sizes: dict[str, int] = field(default_factory=dict)
    buckets: int = 0
    stage_seconds: Counter[str] = field(default_factory=Counter)
    """Seconds of all tasks together."""
    last_stage_seconds: dict[str, float] = field(default_factory=dict)
    """Those of the last batch."""
    fan_out: int = 0
    stream_time_ms: int | None = None
    """The stream time of an aggregate by windows."""
    holds_windows: str | None = None
    """The source without rows in the last batch that holds windows open."""
    hot: dict[str, int] = field(default_factory=dict)
    """The hot keys, as JSON, with their last fan-out."""

    reasons: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_REASONS))
    """Ends of the last batches with dead letters, in milliseconds since 1970, and the commonest reason in each."""

    def take_state(self, row: Mapping[str, Any], ended_ms: int) -> None:
        """Take what an operator says of its state; sizes only if all buckets said theirs, as far as is known."""
        if (reason := row.get("dead-letter")) is not None:
            self.reasons.append((ended_ms, reason))
        for item, value in row.items():
            if item.endswith("-ms") and value:
                self.last_stage_seconds[item.removesuffix("-ms")] = value / 1000
            if item.endswith(counters.SKIPS) and value:
                self.last_skips[item.removesuffix(counters.SKIPS)] = value
        self.skips.update(self.last_skips)
        self.stage_seconds.update(self.last_stage_seconds)
        if (reporting := row.get(counters.BUCKET_COUNT) or 0) and reporting >= self.buckets:
            self.buckets = reporting
            self.sizes = {item: row[item] for item in STATE_SIZES}
        if (time := row.get(counters.STREAM_TIME)) is not None:
            self.stream_time_ms = time
        self.holds_windows = row.get("holds-windows")
        self.fan_out = max(self.fan_out, row.get(counters.FAN_OUT) or 0)
        if (key := row.get("hot-key")) is not None:
            self.hot.pop(key, None)
            self.hot[key] = row[counters.FAN_OUT]
            while len(self.hot) > 10:
                del self.hot[next(iter(self.hot))]


class Run(NamedTuple):
    """A run of a query, and what is known of it from its start on."""

    run_id: str = ""
    topics: tuple[SourceTopic, ...] = ()
    """The topics that it reads."""
    interval_s: float = 0.0
    """The interval of its trigger."""


@dataclass
class QueryMetrics:
    """Metrics of a query."""

    batches: int = 0
    inputs: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    since_ms: int = 0
    """The end of the batch before the last one, or the beginning of the first, in milliseconds since 1970."""
    ended_ms: int = 0
    """The end of the last batch."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    operators: dict[str, OperatorMetrics] = field(default_factory=dict)
    history: History = field(default_factory=History)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    """The offsets up to which topics are read, by topic and partition."""
    by_spark: Left = field(default_factory=lambda: Left({}, 0.0))
    """The lag as Spark's last event has it."""

    def take_sources(self, about: Mapping[str, Any]) -> None:
        """Take what an event says of the sources."""
        self.positions = positions_of(about["sources"])
        self.by_spark = Left(lag_of(about["sources"]), seconds_of(about["timestamp"]))

    def lag(self, topics: Sequence[SourceTopic]) -> dict[str, Any]:
        """Return the lag of this moment as the brokers know it, and the time as of which that is."""
        left = left_to_read(topics, self.positions, self.by_spark)
        return {"lag": left.lag, "lag_ms": round(1000 * left.at)}

    def waits_for(self) -> str:
        """Say which sources windows wait for; nothing where they wait for none."""
        held = ((name, known.holds_windows) for name, known in self.operators.items())
        return "".join(
            f" Windows of {name} stay open until {source} has rows: its time is behind, and it has none now."
            for name, source in held
            if source is not None
        )

    def forget_last(self) -> None:
        """Forget what operators said of the last batch: the next one begins."""
        for known in self.operators.values():
            known.last, known.last_skips, known.last_stage_seconds = {}, {}, {}

    def remember(self) -> None:
        """Add the last batch to the recent ones and to the history."""
        last = self.last
        stages = {name: known.last_stage_seconds for name, known in self.operators.items() if known.last_stage_seconds}
        self.recent.append(
            {**{name: last[name] for name in ("time", "batch", "inputs", "seconds", "phases")}, "stages": stages}
        )

        def by_operator(item: str) -> dict[str, int]:
            return {name: row[item] for name, row in last["counters"].items() if item in row}

        self.history.add(
            Point(
                self.ended_ms - round(1000 * last["seconds"]),
                self.ended_ms,
                read=last["inputs"],
                slowest=last["seconds"],
                lag=records_of(last["lag"]),
                bounded=records_of(self.by_spark.lag),
                out=by_operator(counters.OUT),
                stored={name: sizes[counters.STATE_BYTES] for name, sizes in last["state"].items()},
                dead=by_operator(counters.DEAD_LETTERS),
            )
        )

    def rates(self, now_ms: int) -> dict[str, dict[str, dict[str, float]]]:
        """Return the rates of the last batch, by operator: a second of the time since the batch before it ended.

        When no batch has ended for longer than that, the time up to ``now_ms`` counts: a query that waits does not go on at
        its last rates.
        """
        passed = max(self.ended_ms - self.since_ms, now_ms - self.ended_ms) / 1000
        rates: dict[str, dict[str, dict[str, float]]] = {"rates": {}, "skip_rates": {}}
        for operator, known in self.operators.items() if passed > 0 else ():
            for kind, row in zip(rates.values(), (known.last, known.last_skips), strict=True):
                if row:
                    kind[operator] = {item: round(value / passed, 1) for item, value in row.items()}
        return rates
