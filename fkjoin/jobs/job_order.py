"""The names of a job file's tables: each known, each once, and none made of itself.

Nothing of Spark is needed for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from fkjoin.errors import nearest
from fkjoin.jobs.job_kinds import JobError

if TYPE_CHECKING:
    from fkjoin.jobs.job_sections import JobSection


def in_order(spec: JobSection) -> list[tuple[str, str]]:
    """List what is made of other tables, each after those that it reads, by section and name.

    Raises ``JobError`` for a name that is unknown, or there twice, and for tables that read each
    other in a circle.  So it does for a topic without brokers, and for a sink in a folder that is
    taken.
    """
    operators = spec.operators
    known = [*spec.tables, *(name for _, name in operators)]
    names = [*known, *spec.events]
    streams = [name for (_, name), section in operators.items() if section.stream is not None]
    tables, events = [name for name in known if name not in streams], [*spec.events, *streams]
    for kind, name in [*(("events", name) for name in spec.events), *operators]:
        if names.count(name) > 1:
            raise JobError(f"{kind}.{name}: a table has this name already; choose another")
    for (kind, name), section in operators.items():
        for setting, table in section.reads.items():
            where = f"{kind}.{name}.{setting}"
            if setting != section.stream:
                _require_known(where, table, tables)
            elif table not in events:
                raise JobError(f"{where}: there are no events {table!r}; {nearest(table, events)}")
    for name, sink in spec.sinks.items():
        _require_known(f"sinks.{name}.table", sink.table, known)
    _require_brokers(spec)
    _require_own_folders(spec)
    kinds = {name: kind for kind, name in operators}
    reads = {name: section.reads.values() for (_, name), section in operators.items()}
    try:
        order = list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        circle = sorted({f"{kinds[name]}.{name}" for name in error.args[1]})
        raise JobError(
            f"tables and operators read each other in a circle: {', '.join(circle)}"
        ) from error
    return [(kinds[name], name) for name in order if name in kinds]


def _require_known(where: str, table: str, known: Sequence[str]) -> None:
    if table not in known:
        raise JobError(f"{where}: there is no table or join {table!r}; {nearest(table, known)}")


def _require_brokers(spec: JobSection) -> None:
    topics = {where: section.topic for where, section in _readers(spec).items()}
    topics |= {f"sinks.{name}": sink.topic for name, sink in spec.sinks.items()}
    topics["dead_letters"] = None if spec.dead_letters is None else spec.dead_letters.topic
    where = next((where for where, topic in topics.items() if topic is not None), None)
    if spec.kafka is None and where is not None:
        raise JobError(
            f'{where}: topics need a section [kafka] with bootstrap_servers = "host:port"'
        )


def _readers(spec: JobSection) -> dict[str, Any]:
    """The sections that read, by their names in the file."""
    tables = {f"tables.{name}": table for name, table in spec.tables.items()}
    return {**tables, **{f"events.{name}": events for name, events in spec.events.items()}}


def _require_own_folders(spec: JobSection) -> None:
    """Refuse a folder of files that is also another sink's, or a table's.

    Its readers could not tell whose rows they are.
    """
    taken = {}
    for where, section in _readers(spec).items():
        if section.path and section.format != "fkjoin":
            taken[_folder(section.path)] = where
    if (letters := spec.dead_letters) is not None and letters.path is not None:
        folders = [letters.path, *(str(letters.folder(sink.table)) for sink in spec.sinks.values())]
        taken |= {_folder(folder): "dead_letters" for folder in folders}
    for name, sink in spec.sinks.items():
        if sink.path:
            where, folder = f"sinks.{name}", _folder(sink.path)
            # Sinks may share a Delta table.
            of_folder = taken.get if sink.format == "delta" else taken.setdefault
            if (other := of_folder(folder, where)) != where:
                raise JobError(
                    f"{where}.path: this is the folder of {other}, too; give each a folder of its "
                    "own"
                )


def _folder(path: str) -> str:
    return path.removeprefix("file://").removeprefix("file:").rstrip("/")
