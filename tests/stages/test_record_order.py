"""One order of a topic's records and of a snapshot's rows, which are older: it depends neither on batches nor on partitions."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec import versions
from fkjoin.codec.arrays import BYTES
from tests.support.oracle import Change, apply, batch_join
from tests.support.replay.memory_join import MemoryJoin
from tests.support.sampling import EVERY
from tests.support.topic_changes import OLDEST, STAGES, TOPIC, Kept, Place, Sent, changes_of, version

HISTORIES = 4000 if EVERY else 500


def compared(arriving: pa.Array, held: pa.Array) -> tuple[bool, bool]:
    newer, restarts = versions.compare(arriving, held)
    return bool(newer[0]), bool(restarts[0])


NEWER, OLDER, STARTS_OVER = (True, False), (False, False), (True, True)


def test_a_version_of_the_users_goes_before_the_place() -> None:
    held = version(Place(50, 3, 7), before=(10, 2))
    assert compared(version(Place(1, 0, 0), before=(10, 3)), held) == NEWER
    assert compared(version(Place(99, 3, 99), before=(10, 1)), held) == OLDER
    assert compared(version(Place(1, 3, 8), before=(10, 2)), held) == NEWER
    assert compared(version(Place(50, 3, 7), before=(10, 2)), held) == OLDER


def test_another_topic_starts_over_and_so_does_one_of_the_same_name_with_another_id() -> None:
    held = version(Place(50, 3, 7))
    for other in (versions.topic_identity("payments", "x"), versions.topic_identity("orders", "made anew")):
        assert compared(version(Place(1, 0, 0), source=other), held) == STARTS_OVER
    unknown = versions.topic_identity("orders", None)
    assert compared(version(Place(1, 3, 6), source=unknown), held) == OLDER, "an id that cannot be asked tells nothing"
    assert compared(version(Place(1, 3, 8), source=unknown), held) == NEWER


@given(st.data())
def test_parts_after_one_that_is_the_same_decide(data: st.DataObject) -> None:
    place = st.builds(Place, *(st.integers(0, 2) for _ in range(3)))
    first, a, b = data.draw(place), data.draw(place), data.draw(place)
    both = [pa.array([version(first)[0].as_py() + version(one)[0].as_py()], BYTES) for one in (a, b)]
    assert compared(*both) == compared(version(a), version(b))
    alone = pa.array([version(first)[0].as_py() + versions.absent(1)], BYTES)
    assert (compared(both[0], alone), compared(alone, both[0])) == (NEWER, OLDER)


def test_places_are_read_from_versions() -> None:
    both = pa.concat_arrays([version(Place(5, 1, 9), before=(3,)), version(Place(6, 2, 8))])
    found = versions.first_places(both)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == [(5, 1, 9), (6, 2, 8)]
    assert versions.numbers(both, 0, 1).to_pylist() == [[3, 5, 1, 9], [6, 2, 8]]
    assert versions.decode(both[0].as_py()) == [(TOPIC, (3, 5, 1, 9))]


def history(number: int, rng: random.Random, *, left: bool) -> list[Sent]:
    """Rows of a snapshot, and records, of one side of a small join.

    Partitions are added on the way, clocks go back, and many times are equal.
    """
    ends: dict[int, int] = defaultdict(lambda: rng.randrange(3))
    clock, partitions, sent = 100, 1, list[Sent]()
    for letter in b"kl" if left else b"ab":
        if rng.random() < 0.4:
            foreign_key = b"%d-a" % number if left else None
            sent.append(Sent(OLDEST, Change(left, b"%d-%c" % (number, letter), b"of the snapshot", 0, foreign_key)))
    for _ in range(rng.randrange(1, 7)):
        if rng.random() < 0.3:
            partitions += 1
        clock += rng.choice((0, 0, 1, 2, 3))
        key = b"%d-%c" % (number, rng.choice(b"kl" if left else b"ab"))
        place = Place(clock - (rng.random() < 0.3) * rng.randrange(6), key[-1] * 7 % partitions, 0)
        place = place._replace(offset=ends[place.partition])
        ends[place.partition] += rng.choice((1, 1, 2))
        value = b"%d" % rng.randrange(1000) if rng.random() < 0.8 else None
        foreign_key = rng.choice((b"%d-a" % number, b"%d-b" % number, None)) if left else None
        sent.append(Sent(place, Change(left, key, value, 0, foreign_key)))
    return sent


def ranked(sent: list[Sent]) -> list[Change]:
    """The changes, with their ranks as versions: a record is no older than those before it in its partition."""
    latest: dict[tuple[bytes, int], int] = {}
    placed = []
    for one in sorted(sent, key=lambda one: one.place.offset):
        name = one.change.key, one.place.partition
        latest[name] = max(latest.get(name, 0), one.place.timestamp)
        placed.append((latest[name], one.place.partition, one.place.offset, one.change))
    placed.sort(key=lambda item: item[:3])
    return [change._replace(version=rank) for rank, (*_, change) in enumerate(placed)]


def batches(sent: list[Sent], rng: random.Random) -> list[list[Sent]]:
    """Cut records into batches: a partition's in the order of offsets, rows of snapshots anywhere, some records again."""
    waiting: dict[Any, list[Sent]] = defaultdict(list)
    for one in sent:
        waiting[one.change.key if one.place == OLDEST else one.place.partition].append(one)
    read: list[Sent] = []
    found = []
    while any(waiting.values()):
        batch = []
        for partition in rng.sample(list(waiting), len(waiting)):
            size = rng.choice((0, 1, 2, 50))
            batch += waiting[partition][:size]
            del waiting[partition][:size]
        if read and rng.random() < 0.2:
            batch += rng.sample(read, 1)
        read += batch
        rng.shuffle(batch)
        found.append(batch)
    return found


@pytest.mark.faults
@pytest.mark.parametrize("how", ["inner", "left"])
def test_topics_that_grow_end_as_the_batch_join_however_they_are_read(how: Any) -> None:
    rng = random.Random(f"{how} partitions")
    histories = [[history(number, rng, left=left) for left in (True, False)] for number in range(HISTORIES)]
    wanted = batch_join((change for sides in histories for sent in sides for change in ranked(sent)), how)
    join = MemoryJoin(how)
    waiting = [[batches(sent, rng) for sent in sides] for sides in histories]
    while any(parts for sides in waiting for parts in sides):
        now: list[list[Sent]] = [[], []]
        for sides in waiting:
            for side, parts in enumerate(sides):
                if parts and rng.random() < 0.7:
                    now[side] += parts.pop(0)
        apply(join.process(*map(changes_of, now)), join.joined)
    assert join.joined == wanted
    assert join.count["source-restarts"] == 0, "this never happens inside a topic"
    assert join.count["stale-dropped"] > HISTORIES / 2, "nothing was out of order: the test tests nothing"


@pytest.mark.faults
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_that_reads_a_topic_ends_the_same_however_it_is_read(stage: str) -> None:
    rng = random.Random(5)
    histories = [history(number, rng, left=False) for number in range(HISTORIES // 4)]
    wanted: dict[bytes, bytes | None] = {}
    for sent in histories:
        wanted |= {change.key: change.value for change in ranked(sent)}
    for seed in range(2):
        rng, kept = random.Random(seed), Kept(stage)
        waiting = [batches(sent, rng) for sent in histories]
        while any(waiting):
            kept.batch([one for parts in waiting if parts for one in parts.pop(0)])
        assert kept.live == {key: value for key, value in wanted.items() if value is not None}
