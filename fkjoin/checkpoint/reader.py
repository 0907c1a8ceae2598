"""Rows of a table by their keys, from a checkpoint, for a service without a Spark session."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fkjoin.checkpoint.entries import StoredRows
from fkjoin.checkpoint.replica import Replica
from fkjoin.checkpoint.saved_files import Commit, SavedFiles, at_commit
from fkjoin.checkpoint.user_keys import encoded, rows_of
from fkjoin.errors import FkJoinError
from fkjoin.sessions.own_folder import held_folder
from fkjoin.state import BYTES


class CacheSize(NamedTuple):
    """The size of what a reader keeps."""

    entries: int
    """Records in the copy, an estimate.

    A row has one, a map of left rows one for each left row and two more.
    """
    disk_bytes: int
    """Files of the copy, under the temporary folder."""
    memory_bytes: int
    """Blocks and filters of these files that are in memory.

    Readers of a process share 32 MiB for blocks.
    """


class StateReader:
    """Look-ups by key in a materialized table, without a Spark session.

    The table's query may be running or not. The reader copies the table's state into a folder under
    the temporary folder. It updates the copy from the change files of each later batch.
    All answers of a ``get_many`` are of one committed batch. Threads may share a reader; after a
    fork, each process makes its own copy. Close the reader, or use it in a ``with`` block: this
    removes its folder.

    Parameters
    ----------
    checkpoint : str or pathlib.Path
        The checkpoint folder of the query: a path of this machine, or a URL that pyarrow reads, for
        example ``s3://…``.
    name : str
        The name that ``Table.materialize`` was given, or the name of the table.
    max_age : float or None, default 1.0
        How many seconds an answer may be behind. A call looks for a newer batch if the last look is
        longer ago. An answer is of the newest batch that was committed ``max_age`` seconds before
        the call, or of a later one. With 0 each call looks, with None only ``refresh`` does.

    Raises
    ------
    FkJoinError
        If the checkpoint does not contain such a table, or contains files that only Spark can read.
        Any method raises it if a file is damaged.

    Examples
    --------
    >>> with fkjoin.StateReader("ck/joined", "joined") as reader:
    ...     reader.get("o1")
    {'order_id': 'o1', 'amount': 10.0, 'name': 'Ada',
     '_left_version': [7], '_right_version': [3], '_timestamp': None}
    """

    def __init__(self, checkpoint: str | Path, name: str, *, max_age: float | None = 1.0) -> None:
        if max_age is not None and (
            isinstance(max_age, bool) or not isinstance(max_age, int | float) or not max_age >= 0
        ):
            raise FkJoinError(
                f"max_age: {max_age!r} is not a number of seconds; give one of at least 0, or None"
            )
        self._name, self._max_age = name, max_age
        self._files = SavedFiles.without_spark(checkpoint)
        self._reading, self._looking = threading.RLock(), threading.Lock()
        self._looked = float("-inf")
        self._replica: Replica | None = None
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(held_folder())
            self._look()
            stack.callback(self._drop)
            self._opened = stack.pop_all()

    def __repr__(self) -> str:
        return f"StateReader[{self._name} of {self._files.checkpoint}]"

    def get(self, key: Any) -> dict[str, Any] | None:
        """Look up the row of a key.

        Parameters
        ----------
        key : object
            The value of the key's column; for several columns a tuple, or a dict by their names.

        Returns
        -------
        dict or None
            The columns of ``read_state`` by their names; None if the table does not contain the
            row. Timestamps are in UTC if their type has a zone. Structs and maps are dicts; a
            struct that is a map's key is a tuple.

        Raises
        ------
        FkJoinError
            If it cannot be a key of the table.

        Examples
        --------
        >>> reader.get("o1")["name"]
        'Ada'
        """
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Look up the rows of several keys, all as of one committed batch.

        Parameters
        ----------
        keys : iterable
            Keys as ``get`` takes them; a key may occur twice.

        Returns
        -------
        list of dict or None
            The row of each key, in the order of the keys.

        Raises
        ------
        FkJoinError
            If one of them cannot be a key of the table, or if ``keys`` is a single key.

        Examples
        --------
        >>> [row and row["name"] for row in reader.get_many(["o1", "o9"])]
        ['Ada', None]
        """
        if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
            raise FkJoinError(
                f"keys: {keys!r:.60} is one key: give it to get, or give a list of keys"
            )
        asked = time.monotonic()
        if self._max_age is not None and asked - self._looked > self._max_age:
            self.refresh()
        with self._reading:
            replica = self._there()
            wanted = encoded(replica.described.key, keys)
            distinct = pa.array(list(dict.fromkeys(wanted)), BYTES)
            stored = StoredRows(replica.described, distinct)
            rows: dict[bytes, dict[str, Any]] = {}
            for row_keys, batch in stored.keyed(replica.index):
                rows.update(zip(row_keys.to_pylist(), rows_of(batch), strict=True))
        return [rows.get(key) for key in wanted]

    def refresh(self) -> int:
        """Look for the newest committed batch, and answer from it.

        Returns
        -------
        int
            The number of that batch.

        Examples
        --------
        >>> reader.refresh()
        0
        """
        asked = time.monotonic()
        with self._looking:
            self._there()
            if self._looked < asked:  # else another thread has looked meanwhile
                self._look()
        return self.batch

    @property
    def batch(self) -> int:
        """The number of the batch that answers come from.

        Returns
        -------
        int

        Examples
        --------
        >>> reader.batch
        0
        """
        return self._there().held.commit.batch

    @property
    def cache_size(self) -> CacheSize:
        """The size of the copy.

        Returns
        -------
        CacheSize
            ``entries``, ``disk_bytes`` and ``memory_bytes``.

        Examples
        --------
        >>> reader.cache_size.disk_bytes < 64 << 20
        True
        """
        with self._reading:
            index = self._there().index
            return CacheSize(*index.size(), index.memory_bytes())

    def close(self) -> None:
        """Remove the copy; the reader answers no more.

        Returns
        -------
        None

        Examples
        --------
        >>> reader.close()
        """
        with self._looking:
            self._opened.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _there(self) -> Replica:
        if self._replica is None:
            raise FkJoinError(f"the StateReader of {self._name} was closed: make a new one")
        return self._replica

    def _look(self) -> None:
        """Go to the newest batch."""
        looked = time.monotonic()
        at_commit(self._files, None, self._go)
        self._looked = looked

    def _go(self, commit: Commit) -> None:
        replica = self._replica
        if replica is not None:
            if commit == replica.held.commit:
                return
            if (following := replica.next(commit)) is not None:
                with self._reading:
                    replica.go(following)
                return
        fresh = Replica(self._files, self._name, self._folder, commit)
        self._drop(fresh)

    def _drop(self, instead: Replica | None = None) -> None:
        """Let go of the copy, and read another one from then on."""
        with self._reading:
            replica, self._replica = self._replica, instead
            if replica is not None:
                replica.index.give_up()
