"""A Delta table as a source: its rows and its change data feed lead to the same table, in whatever order they are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fkjoin.analysis.delta_feed import DELETES
from fkjoin.testing import JoinTest
from fkjoin.testing.kit import Change

Rows = dict[str, dict[str, Any]]


@dataclass
class Feed:
    """A Delta table that records its changes, as its protocol says: a commit touches a row once, or overwrites all rows."""

    rng: random.Random
    rows: Rows = field(default_factory=dict)
    commits: list[list[tuple[str, str, dict[str, Any]]]] = field(default_factory=list)
    snapshots: list[Rows] = field(default_factory=list)

    def commit(self, row: Callable[[], dict[str, Any]]) -> None:
        """Update, move to another key, delete and insert rows; or overwrite the table."""
        before, feed = dict(self.rows), list[tuple[str, str, dict[str, Any]]]()
        overwrites = self.rng.random() < 0.2
        for key, old in before.items():
            what = "delete" if overwrites else self.rng.choice(("keep", "keep", "delete", "update", "move"))
            if what == "delete":
                feed.append(("delete", key, self.rows.pop(key)))
            elif what != "keep":
                free = [name for name in "abcd" if name not in self.rows]
                target = self.rng.choice(free) if what == "move" and free else key
                del self.rows[key]
                self.rows[target] = row()
                feed += [("update_preimage", key, old), ("update_postimage", target, self.rows[target])]
        for key in "abcd":
            if key not in self.rows and self.rng.random() < 0.5:
                self.rows[key] = row()
                feed.append(("insert", key, self.rows[key]))
        self.commits.append(feed)
        self.snapshots.append(dict(self.rows))

    def read_from(self, start: int) -> list[tuple[str, int, str, dict[str, Any]]]:
        """List the rows that were there after a commit, as inserts of it, and the changes of later commits."""
        read = [("insert", start, key, row) for key, row in self.snapshots[start].items()]
        later = [(kind, at, key, row) for at in range(start + 1, len(self.commits)) for kind, key, row in self.commits[at]]
        return read + later


def changes(side: str, feed: Feed, start: int) -> list[Change]:
    """The changes of a table as the columns of the feed order and delete them."""
    return [
        Change(side, key, None if kind in DELETES else row, 2 * at + (kind not in DELETES))
        for kind, at, key, row in feed.read_from(start)
    ]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 40))
def test_a_join_of_two_feeds_ends_as_the_join_of_both_tables(seed: int, commits: int, batch: int) -> None:
    """Commits and their rows are read in any order, and some of them twice."""
    rng = random.Random(seed)
    orders, customers = Feed(rng), Feed(rng)
    for _ in range(commits):
        orders.commit(lambda: {"customer": rng.choice("abcd"), "n": rng.randrange(3)})
        customers.commit(lambda: {"region": rng.randrange(3)})
    read = [
        *changes("left", orders, rng.randrange(commits)),
        *changes("right", customers, rng.randrange(commits)),
    ]
    read += rng.choices(read, k=len(read) // 3) if read else []
    rng.shuffle(read)
    test = JoinTest(extractor="customer", how="left", joiner=lambda left, right: [left, right])
    for at in range(0, len(read), batch):
        test.feed(*read[at : at + batch])
    assert test.table == {key: [row, customers.rows.get(row["customer"])] for key, row in orders.rows.items()}
