"""The choice of a batch's messages that count, and their order: by versions alone, never by arrival."""

from __future__ import annotations

import numpy as np

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bools, Bytes, Ints, changes_from_previous, equal, take
from fkjoin.codec.record_order import in_one_order
from fkjoin.codec.records import Records
from fkjoin.stages import counters
from fkjoin.stages.counters import Counters


def newest_only(
    code: Ints,
    version: Bytes,
    held: Records,
    count: Counters,
    *,
    or_equal: bool | Bools = False,
    as_read: bool = False,
    in_order: bool | Bools = False,
) -> tuple[Ints, Ints, Bytes]:
    """Choose the messages newer than what is ``held`` for their code, sorted by code and version.

    Returns their places, codes and versions.  Of messages with the same code and version the first one counts; what does not
    count is counted as stale.  ``or_equal``: all of them, or which, also count if they are as new as what is held.  What comes
    ``in_order`` (all of it, or of which codes) is newer than what is held, whatever its version: the stage before has let it
    through, and stages must not disagree.  Changes ``as_read`` may come from a source: those that start over from another one
    are counted, and records of a topic get versions that make one order of them.
    """
    if as_read:
        version = in_one_order(code, version, held.version)
    order = by_code_and_version(code, version)
    code, version = code[order], take(version, order)
    fresh = (~held.found | in_order)[code]
    known = np.flatnonzero(~fresh)
    arriving, before = take(version, known), take(held.version, code[known])
    newer, restarts = versions.compare(arriving, before)
    if or_equal is not False:
        newer |= equal(arriving, before) & (True if or_equal is True else or_equal[order[known]])
    fresh[known] = newer
    if as_read:
        count[counters.RESTARTS] += int(restarts.sum())
    repeated = ~changes_from_previous(code)
    if repeated.any():
        repeated[1:] &= equal(version.slice(1), version.slice(0, max(0, len(version) - 1)))
    keep = np.flatnonzero(fresh & ~repeated)
    count[counters.STALE] += len(order) - len(keep)
    return order[keep], code[keep], take(version, keep)


def by_code_and_version(code: Ints, version: Bytes) -> Ints:
    """The order of the messages; versions are looked at where a code comes twice, which is not often."""
    order = np.argsort(code, kind="stable")
    alone = changes_from_previous(code[order])
    alone[:-1] &= alone[1:]
    places = np.flatnonzero(~alone)
    messages = order[places]
    order[places] = messages[np.lexsort((*versions.sort_columns(take(version, messages)), code[messages]))]
    return order
