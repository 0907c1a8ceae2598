"""Break the product in thirty places, one after the other, and see tests go red for each.

``python -m tools.mutations`` applies each mutation in turn, runs the tests that should notice it,
and puts the file back.  It needs a checkout without changes in the files that it breaks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutation(NamedTuple):
    """A fault: a text of a file that is replaced, and the tests that notice it."""

    path: str
    before: str
    after: str
    tests: str


MUTATIONS = {
    "rekey answers no new row without a foreign key": Mutation(
        "fkjoin/stages/rekey.py",
        "answer = ~valid(foreign_key) & (seen | alive) & counts",
        "answer = ~valid(foreign_key) & seen & counts",
        "tests/stages/test_truth_table.py tests/stages/test_every_order.py",
    ),
    "rekey does not leave the foreign key before": Mutation(
        "fkjoin/stages/rekey.py",
        "leave = valid(before) & ~stays",
        "leave = valid(before) & ~stays & valid(foreign_key)",
        "tests/stages/test_truth_table.py tests/stages/test_every_order.py",
    ),
    "subscription forgets right changes within a window": Mutation(
        "fkjoin/stages/subscription.py",
        "    yield _answer_later(right, left, order, count)\n",
        "",
        "tests/replay tests/stages/test_batch_order.py",
    ),
    "subscription answers those that have left": Mutation(
        "fkjoin/stages/subscription.py",
        "live = np.flatnonzero(held.flags & GONE == 0)",
        "live = np.arange(len(held.flags))",
        "tests/stages/test_every_order.py tests/stages/test_random_delivery.py",
    ),
    "a result that is unchanged is emitted": Mutation(
        "fkjoin/stages/emit_on_change.py",
        "emit = (had | has) & (every | ~(had & has & unchanged))",
        "emit = had | has",
        "tests/stages/test_emit_on_change.py",
    ),
    "a tie goes to the later one": Mutation(
        "fkjoin/stages/ordering.py",
        "np.where(beside, tie > held_tie[best], fresh[winners])",
        "np.where(beside, True, fresh[winners])",
        "tests/stages/test_ties.py",
    ),
    "an older version is taken": Mutation(
        "fkjoin/stages/ordering.py",
        "    fresh = (~held.exists | in_order)[code]\n    known = np.flatnonzero(~fresh)\n",
        "    fresh = (~held.exists | True)[code]\n    known = np.flatnonzero(~fresh)\n",
        "tests/stages/test_ordering.py tests/stages/test_stale_changes.py",
    ),
    "a marker of a row that came back is removed with the row": Mutation(
        "fkjoin/stages/retention.py",
        "held.exists & (held.flags & GONE > 0) & ended",
        "held.exists & ended",
        "tests/stages/test_stale_changes.py tests/stages/test_random_delivery.py",
    ),
    "an event gets the row of before its batch": Mutation(
        "fkjoin/stages/enrich.py",
        "row = replaced(nothing, np.flatnonzero(named), take(after, code[len(rows) :]))",
        "row = nothing",
        "tests/stages/test_enrich.py",
    ),
    "a flat map keeps the rows of an owner that makes none": Mutation(
        "fkjoin/stages/owners.py",
        "before.where(stays).and_more",
        "before.and_more",
        "tests/stages/test_flat_map.py",
    ),
    "a window closes one change too early": Mutation(
        "fkjoin/stages/close.py",
        "    over = ends <= before.closed\n",
        "    over = ends <= before.closed + 1000\n",
        "tests/stages/test_close.py",
    ),
    "an aggregate's timestamp goes back": Mutation(
        "fkjoin/stages/aggregate.py",
        "np.maximum(held.ts, latest), latest)",
        "latest, latest)",
        "tests/folds tests/stages/test_contribute.py",
    ),
    "a minimum that was taken back stays": Mutation(
        "fkjoin/folds/extremes.py",
        "masked(held_names, ~lost)",
        "masked(held_names, valid(held))",
        "tests/folds",
    ),
    "a sum is of no rows": Mutation(
        "fkjoin/folds/sums.py",
        "        return pa.array((high << 32) + low, mask=~counted)\n",
        "        return pa.array((high << 32) + low)\n",
        "tests/folds",
    ),
    "a limited set has one member more": Mutation(
        "fkjoin/folds/members.py",
        "np.arange(len(group)) - starts[group] < self.most",
        "np.arange(len(group)) - starts[group] <= self.most",
        "tests/folds",
    ),
    "versions are compared without their sign": Mutation(
        "fkjoin/codec/versions.py",
        "    values = (words ^ SIGN).view(np.int64)\n",
        "    values = words.view(np.int64)\n",
        "tests/codec tests/stages/test_ordering.py",
    ),
    "a combined key has lengths from the other end": Mutation(
        "fkjoin/codec/combined_key.py",
        'sizes = lengths(foreign_keys).astype(">i4")',
        'sizes = lengths(foreign_keys).astype("<i4")',
        "tests/codec",
    ),
    "a seal of another log is taken": Mutation(
        "state/seal.py",
        "if body[:1] != _FORMAT or not hmac.compare_digest(digest, keyed(key, body)):",
        "if body[:1] != _FORMAT:",
        "tests/state",
    ),
    "an index that was changed is read": Mutation(
        "state/seal.py",
        "        if present == self.stamps:\n",
        "        if present.keys() == self.stamps.keys():\n",
        "tests/state",
    ),
    "a store of another job is opened": Mutation(
        "state/bucket.py",
        "            if difference is not None:\n",
        "            if difference == 0:\n",
        "tests/state",
    ),
    "a replica goes on though partitions were added": Mutation(
        "fkjoin/checkpoint/replica.py",
        "if later is None or not all(_follow(changes, metas, entries) for changes in later):",
        "if later is None:",
        "tests/checkpoint/test_reader.py",
    ),
    "a batch that a target has is written again": Mutation(
        "fkjoin/checkpoint/batch_log.py",
        "if last_ms is not None and last_ms == batch.began_ms:",
        "if last_ms is None and batch.began_ms is None:",
        "tests/sinks/test_several_sinks.py tests/sinks/test_contract.py",
    ),
    "a batch that does not follow is written": Mutation(
        "fkjoin/checkpoint/batch_log.py",
        "    if last_ms != previous_ms:\n",
        "    if last_ms is not None and previous_ms is None:\n",
        "tests/sinks/test_several_sinks.py tests/sinks/test_contract.py",
    ),
    "a sink writes deletes as rows": Mutation(
        "fkjoin/sinks/table_sink.py",
        'gone = pc.equal(rows["_operation"], "delete")',
        'gone = pc.equal(rows["_operation"], "insert")',
        "tests/sinks/test_several_sinks.py",
    ),
    "two processes make one claim": Mutation(
        "fkjoin/storage/local_files.py",
        "            os.link(draft, file)  # whole at once\n",
        "            draft.replace(file)\n            draft.touch()\n",
        "tests/storage tests/checkpoint/test_claims_and_clocks.py",
    ),
    "a damaged log of Spark's is read": Mutation(
        "fkjoin/storage/local_files.py",
        "    return content[_HEADER_SIZE:] == sums\n",
        "    return len(content[_HEADER_SIZE:]) >= len(sums)\n",
        "tests/storage tests/checkpoint/test_saved_state.py",
    ),
    "an owner that lost its claim goes on": Mutation(
        "fkjoin/checkpoint/claim.py",
        "        raise FkJoinError(held.taken)\n",
        "        pass\n",
        "tests/checkpoint/test_claims_and_clocks.py",
    ),
    "a draft is published over a batch that is there": Mutation(
        "fkjoin/sinks/parquet_batches.py",
        "            if last == mark:\n                return True\n",
        "",
        "tests/sinks/test_parquet_attempts.py",
    ),
    "a document with a section of another shape is taken": Mutation(
        "fkjoin/checkpoint/begun.py",
        "    if type(value) is not origin:\n",
        "    if value is None:\n",
        "tests/checkpoint/test_begun.py",
    ),
    "a topic that was made again is read from the middle": Mutation(
        "fkjoin/kafka/new_topics.py",
        "if known is None or ids[name] in (None, known.id):",
        "if known is None or ids[name] is None or known.id:",
        "integration/test_new_topics.py",
    ),
}
"""Mutations by what the product then does wrong."""


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Apply a mutation to its file, and put the file back."""
    file = ROOT / mutation.path
    content = file.read_text()
    if content.count(mutation.before) != 1:
        raise ValueError(f"{mutation.path} does not have this text once: {mutation.before!r}")
    file.write_text(content.replace(mutation.before, mutation.after))
    try:
        yield
    finally:
        file.write_text(content)


def is_noticed(mutation: Mutation) -> bool:
    """Tell whether the tests, as ``make test`` runs them, fail with the mutation."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not nightly", *mutation.tests.split()]
    with applied(mutation):
        run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return run.returncode == 1


def main() -> None:
    missed = []
    for fault, mutation in MUTATIONS.items():
        noticed = is_noticed(mutation)
        print(f"{'noticed' if noticed else 'MISSED '}  {fault}", flush=True)
        if not noticed:
            missed.append(fault)
    print(f"{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} are noticed")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
