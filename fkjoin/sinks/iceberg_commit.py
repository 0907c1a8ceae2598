"""Commits of batches to an Iceberg table: a snapshot each, and the batch's name as a property.

Properties outlive snapshots, which are expired.  *Law*: a commit is on top of the snapshot in which
the batch was looked for, or it fails.  So a batch without rows is a snapshot, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertTableUUID

from fkjoin.sinks.table_sink import BatchId

_PROPERTY = "fkjoin.batch."
"""Before a query's name: the property with its last batch."""
_QUERY, _BATCH = "fkjoin.query", "fkjoin.batch"
"""Entries of a snapshot's summary, for readers of the table's history."""


class _SingleAttempt(Transaction):
    """A transaction that does not repeat itself.

    The package's own repetition puts added rows on top of what another writer has committed: also
    rows with the same keys, and rows of another attempt at the batch.
    """

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table._do_commit(updates=self._updates, requirements=requirements)
        return self._table


def last_batch(table: Table, query: str) -> BatchId | None:
    """Return the query's last batch that the table has; None also if it was rolled back."""
    text = table.properties.get(f"{_PROPERTY}{query}")
    if text is None:
        return None
    facts = json.loads(text)
    if _is_undone(table, facts["snapshot"]):
        return None
    return BatchId(query, facts["number"], facts["began_ms"])


def _is_undone(table: Table, snapshot_id: int) -> bool:
    """Tell whether a snapshot is there, and is none of those that the current one came from."""
    known = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table.snapshots()}
    current = table.metadata.current_snapshot_id
    while current is not None and current != snapshot_id:
        current = known.get(current)
    return current is None and snapshot_id in known


def commit(
    table: Table, batch: BatchId, gone: Sequence[DataFile], portions: Iterable[pa.Table]
) -> None:
    """Commit a batch: the table loses some files, and gets the rows.

    The last batch must have been read from the same ``table`` object: whatever was committed since
    then makes it fail, with ``CommitFailedException``.
    """
    transaction = _SingleAttempt(table)
    update = transaction.update_snapshot({_QUERY: batch.query, _BATCH: str(batch.number)})
    snapshot = update.overwrite() if gone else update.merge_append()
    numbers = itertools.count()
    about, uuid = table.metadata, snapshot.commit_uuid
    for rows in portions:
        for file in _dataframe_to_data_files(about, rows, table.io, uuid, numbers):
            snapshot.append_data_file(file)
    for file in gone:
        snapshot.delete_data_file(file)
    snapshot.commit()
    facts = {"number": batch.number, "began_ms": batch.began_ms, "snapshot": snapshot.snapshot_id}
    transaction.set_properties({f"{_PROPERTY}{batch.query}": json.dumps(facts)})
    transaction.commit_transaction()
