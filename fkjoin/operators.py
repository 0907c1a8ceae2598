"""What makes another table of a table; ``Table`` has these methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fkjoin.analysis import views
from fkjoin.analysis.aggregates import Options
from fkjoin.analysis.checks import Deployment, Extractor
from fkjoin.analysis.emission import Emit
from fkjoin.analysis.joins import planned_children
from fkjoin.analysis.unions import merged
from fkjoin.grouped import Grouped
from fkjoin.lowering.handle import Handle, planned_of
from fkjoin.lowering.recipes import remembered
from fkjoin.spark.schemas import Expression, Expressions

if TYPE_CHECKING:
    from fkjoin.table import Table


class Operators(Handle):
    """Each returns a new table; nothing runs."""

    @remembered
    def filter(self, condition: Expression, *, name: str | None = None, emit: Emit = "on-change") -> Table:
        """The table's rows for which a condition (SQL text or Column over its columns) holds; null does not.

        A row for which it no longer holds is deleted.  ``name``: names state and metrics.  ``emit``: to sinks, ``on-change``
        drops changes that leave a row as it was (KIP-557), ``on-update`` does not; ``periodic``: see ``fk_join``.  The
        tombstone of a row that was not there is never sent.  Raises ``TopologyError``.
        """
        return self._of(views.filtered(self._planned, condition, name, emit))

    @remembered
    def map_values(self, columns: Expressions, *, name: str | None = None, emit: Emit = "on-change") -> Table:
        """The table with rows of these columns (names, SQL texts, Columns) in place of its own; the key stays.

        ``name``, ``emit``: as for ``filter``.  Raises ``TopologyError``.
        """
        return self._of(views.mapped(self._planned, columns, name, emit))

    def group_by(
        self,
        key: Expressions,
        value: Expressions | None = None,
        *,
        name: str | None = None,
        emit: Emit = "on-change",
        deployment: Deployment = "fused",
        application: str | None = None,
        upgrade_from: str | None = None,
        validate: bool | None = None,
    ) -> Grouped:
        """The table's rows by group, to be summed up: ``.agg(…)``, ``.count()``, ``.sum("amount")``, ``.aggregate(…)``, ….

        ``key``: column, SQL text or Column, or several, over the table's columns; they become the result's key.  A row with a
        null among them is in no group.  ``value``: what a row contributes; without it, what the aggregate is of.
        ``name``: names state and metrics.  ``emit``: ``on-change`` sends a group's row if its value or its timestamp (the
        latest of its rows' changes) differs from what was sent last (KIP-557); ``on-update`` whenever one of its rows was
        updated; ``periodic``: see ``fk_join``.

        ``deployment``: ``fused``, in one query; or ``staged``, of tables made from topics: ``Table.stages`` has the query that
        writes what rows contribute to the topic ``APPLICATION-NAME-repartition``, in KIP-904's format; the aggregate reads it.
        ``upgrade_from``: a release of Kafka Streams of before KIP-904, such as ``"3.4"``: write its two records, for as long as
        there are readers that know no other; either form is read always.

        ``validate``: as for ``fk_join``.  Raises ``TopologyError``.
        """
        return Grouped(self, key, value, Options(name, emit, deployment, application, upgrade_from, validate))

    @remembered
    def with_children(
        self,
        left: Table,
        extractor: Extractor,
        *,
        column: str = "children",
        name: str | None = None,
        emit: Emit = "on-change",
        validate: bool | None = None,
    ) -> Table:
        """This table's rows, each with the map of ``left``'s rows by their key whose foreign key names it.

        KIP-213's alternative B: a user's own group-by into a map.  ``extractor``: the foreign key of a left row, as for
        ``fk_join``.  ``column``: what the map is called; empty where there are none.  The map is whole in every result, in byte
        order of the left keys; in the store each left row is an entry of its own, and a change writes that entry alone.
        ``name``, ``emit``, ``validate``: as for ``fk_join``.  Raises ``TopologyError``.
        """
        children = planned_of("left", left)
        return self._of(planned_children(self._planned, children, extractor, column, name, emit, validate))

    @remembered
    def merge(self, *others: Table, name: str | None = None, emit: Emit = "on-change", validate: bool | None = None) -> Table:
        """This table's rows and those of others with the same key and columns, as one table.

        Of a key that several have, this table's row is shown, then the first other's, and so on, whatever came first: a row
        that moves from one table to another is not lost to a late tombstone.  ``_version`` is a counter of the row.
        ``name``, ``emit``, ``validate``: as for ``fk_join``.  Raises ``TopologyError``.
        """
        tables = [self._planned, *(planned_of(f"others[{at}]", other) for at, other in enumerate(others))]
        return self._of(merged(tables, name, emit, validate))

    @remembered
    def materialize(self, name: str) -> Table:
        """The same table, its rows kept in state under ``name`` for ``fkjoin.read_state``.

        A checkpoint that was begun without it, or under another name, is refused.  Of a source, changes that leave a row as it
        was are then dropped, its older timestamp stays (KIP-557), and ``_operation`` tells inserts from updates.
        """
        return self._of(views.materialized(self._planned, name))
