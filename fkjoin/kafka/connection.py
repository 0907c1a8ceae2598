"""Connections to topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

OnNewTopic = Literal["fail", "start-over"]

RAW_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Columns of a record in a dead letter, besides the reason."""


@dataclass(frozen=True)
class Connection:
    """A topic, and how to reach it."""

    topic: str
    bootstrap_servers: str
    options: dict[str, str] = field(repr=False)
    partitions: int
    topic_id: str | None = None
    """Id that the brokers give the topic: another topic of its name has another; None for none."""
    on_new_topic: OnNewTopic = "fail"
    """Action when the id is another than the checkpoint's."""
    tombstones: bool = True
    """Null values are read, and not left out."""
    of_events: bool = False
    """Its records are events, which are sent once, and no changes of a table."""
