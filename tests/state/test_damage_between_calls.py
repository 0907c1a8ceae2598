"""A store whose files are damaged between any two of its calls: what it reads, and what it leaves in the log, is right."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fkjoin.state import BucketStore, MemoryStore, StateError
from tests.support.damage import Damaging, another_process, damaged_stores, small_files
from tests.support.sampling import EVERY
from tests.support.stores import Log, array, contents, write

HISTORIES = 200 if EVERY else 3


def attempt(store: BucketStore, entries: dict[bytes, bytes | None], model: MemoryStore) -> None:
    """One attempt at a batch; what it reads is compared with the model."""
    with store:
        keys = array(sorted(entries))
        assert store.get_many(keys).to_pylist() == model.get_many(keys).to_pylist()
        assert contents(store) == dict(model.items())
        write(store, entries)
        store.commit()


@pytest.mark.faults
def test_whatever_happens_to_files_the_store_reads_what_its_log_says() -> None:
    seen = Counter[str]()

    @given(seed=st.integers(0, 1 << 62))
    @settings(max_examples=HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))
    def histories(seed: int) -> None:
        history(seed, seen)

    histories()
    assert seen["damaged"] > seen["rebuilt"] > HISTORIES
    assert seen["failed"] < seen["batches"] / 10, "an attempt fails where its index is being written to"


def history(seed: int, seen: Counter[str]) -> None:
    """Batches of a store whose files are damaged; ``seen`` counts what happened."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as place:
        small_files(patched, rng)
        log, model, folder = Log(), MemoryStore(), Path(place) / "bucket"
        damaged = damaged_stores(Damaging(folder, rng, rng.choice([0.05, 0.2, 0.5]), seen))
        for _ in range(rng.randint(2, 25)):
            if rng.random() < 0.3:
                another_process()
            entries: dict[bytes, bytes | None] = {
                b"k%02d" % rng.randrange(30): rng.choice([None, rng.randbytes(rng.randrange(40))])
                for _ in range(rng.randint(1, 9))
            }
            for tries in range(4):  # as often as Spark tries a task
                try:
                    attempt(damaged(log, folder), entries, model)
                except StateError:
                    log.roll_back()
                    seen["failed"] += 1
                    assert tries < 3
                    continue
                if rng.random() < 0.1:
                    log.roll_back()  # it is repeated all the same
                    continue
                log.commit()
                write(model, entries)
                break
        shutil.rmtree(folder, ignore_errors=True)
        with BucketStore(log, folder) as store:
            assert contents(store) == dict(model.items()), "the log itself is right"
            assert store.disagreement() is None
