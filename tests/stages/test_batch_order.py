"""The last right change in a window of ranks, against a look at every one of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bytes
from fkjoin.stages.subscription import BEFORE, NONE, BatchOrder

Side = list[tuple[int, int]]
"""Foreign keys and versions."""

SIDE = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=12, unique=True).map(sorted)


def encoded(side: Side) -> Bytes:
    return versions.encode(b"the-logs", [np.array([version for _, version in side], np.int64)])


@given(rights=SIDE, subscribes=SIDE, shared_log=st.booleans())
def test_windows_are_looked_up_as_if_events_came_one_by_one(rights: Side, subscribes: Side, shared_log: bool) -> None:
    changed = np.array([code for code, _ in rights], np.int64)
    order = BatchOrder(changed, encoded(rights), encoded(subscribes), shared_log=shared_log)

    def rank(at: int, version: int, *, left: bool) -> tuple[int, int, int]:
        return (version, left, at) if shared_log else (0, left, at)

    events = sorted(
        [(rank(at, version, left=False), None, at) for at, (_, version) in enumerate(rights)]
        + [(rank(at, version, left=True), at, None) for at, (_, version) in enumerate(subscribes)]
    )
    place = {subscribe: number for number, (_, subscribe, _) in enumerate(events) if subscribe is not None}
    assert order.subscribes.tolist() == [place[at] for at in range(len(subscribes))]
    edges = [BEFORE, *place.values(), order.end]
    for code in range(4):
        for after in edges:
            for before in edges:
                inside = [
                    change
                    for number, (_, _, change) in enumerate(events)
                    if change is not None and after < number < before and rights[change][0] == code
                ]
                (found,) = order.last_change(np.array([code]), np.array([after]), np.array([before])).tolist()
                assert found == (inside[-1] if inside else NONE)
