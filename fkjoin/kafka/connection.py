"""Where topics are, and how they are reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

OnNewTopic = Literal["fail", "start-over"]

RAW_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""What a dead letter says of its record, besides the reason."""


@dataclass(frozen=True)
class Connection:
    """Where a topic is, and how to reach it."""

    topic: str
    bootstrap_servers: str
    options: dict[str, str] = field(repr=False)
    partitions: int
    topic_id: str | None = None
    """What the brokers call it: another topic of the same name has another id; None when they know none."""
    on_new_topic: OnNewTopic = "fail"
    """What happens when the id is another than the checkpoint's."""
    tombstones: bool = True
    """Null values are read, and not left out."""
