"""The order of a batch: right changes and subscribes, and how long a subscriber's version holds.

``subscription`` sees a batch as a whole, and has to answer as if its events had come one by one.

*Ranks.*  Each right change and each subscribe has a rank, its place in one order of all events;
right changes of a foreign key ascend, and so do versions of a subscriber.  Where both sides'
versions come from one log, versions make the order.  Elsewhere nothing says which side's change
came first, and any order will do if it is the same for all keys and attempts: right changes count
as earlier, so that a subscribe is answered once, with the newest right row.

*Windows.*  A subscriber's version holds from its own rank to the rank of the subscriber's next
version; the last one to ``end``; what the store has of the subscriber from ``BEFORE`` on.  Ranks
are open at both ends: no right change has a subscribe's rank. Of the right changes in a window the
last one decides.  One after the window must not be answered under this version: the left row has
gone to another foreign key by then, or is another row, and a result would pair what never stood
side by side.

*Places.*  All windows are looked up by one binary search.  The place of a right change is
``number of its foreign key * width + rank``; places ascend, as right changes are sorted by key and
version.  ``width`` exceeds all ranks, ``end`` among them, so that a window that ends with the batch
stays below the next key's places, and one that begins at ``BEFORE`` above the places of the key
before. With a smaller width the search would find a change of another key, and answer with another
key's right row.
"""

from __future__ import annotations

import numpy as np

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bytes, Ints, stack

BEFORE = -1
"""The rank of what was there before the batch."""

NONE = -1
"""The number of no right change."""


class BatchOrder:
    """The ranks of a batch's right changes and subscribes.

    ``changed``: the foreign keys' numbers of the right changes, sorted by them and by version;
    ``rights``, ``subscribes``: the versions of both.  ``shared_log``: these come from one log.
    """

    def __init__(
        self, changed: Ints, rights: Bytes, subscribes: Bytes, *, shared_log: bool
    ) -> None:
        self.end = len(rights) + len(subscribes)
        """A rank above all others."""
        # Without one log, a rank is a position: all right changes first, then all subscribes.
        rank = np.arange(self.end)
        if shared_log:
            # ``rank`` is the least significant column: of equal versions a right change is first.
            columns = versions.sort_columns(stack(rights, subscribes))
            by_version = np.lexsort((rank, *columns))
            rank = np.empty_like(rank)
            rank[by_version] = np.arange(self.end)
        self.subscribes: Ints = rank[len(rights) :]
        """The ranks of subscribes."""
        self._width = self.end + 1
        self._places = changed * self._width + rank[: len(rights)]

    def last_change(self, code: Ints, after: Ints | int, before: Ints | int) -> Ints:
        """The number of the last right change of each foreign key whose rank lies between two.

        ``code``: the foreign keys; ``NONE`` where there is no such change.
        """
        if not len(self._places):
            return np.full(len(code), NONE)
        # ``searchsorted`` finds the first place at or above ``before``: the one below it is the
        # last before, of this key or an earlier one.  It counts only if it lies above ``after``.
        change = np.searchsorted(self._places, code * self._width + before) - 1
        inside = (change >= 0) & (self._places[change] > code * self._width + after)
        return np.where(inside, change, NONE)
