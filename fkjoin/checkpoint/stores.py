"""Stores in a checkpoint, by what the job wrote down of them in each bucket's log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from fkjoin.checkpoint.saved_files import Commit, SavedFiles, at_commit, is_ours
from fkjoin.checkpoint.saved_log import SavedPartition
from fkjoin.errors import FkJoinError, nearest
from fkjoin.sessions.own_folder import held_folder
from fkjoin.spark.buckets import spark_hash
from fkjoin.spark.change_log import unpacked_metas
from fkjoin.spark.identity import read_identity
from fkjoin.spark.schemas import arrow_schema, kept_type
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.spark.specs.shown import Described
from fkjoin.stages.multi_join import MultiJoin
from fkjoin.state.segments import Meta

_T = TypeVar("_T")

StoreReader = Callable[[Any, int], Iterator[pa.RecordBatch]]
"""Function from a bucket's store, and the bucket's id, to rows."""


class Identified(ABC):
    """A stage's store, with what its identity says.

    Subclasses have ``checkpoint`` and ``identity``.
    """

    checkpoint: str

    @property
    @abstractmethod
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Facts and about, as the job stored them."""

    @property
    def name(self) -> str:
        return f"{self.operator_name}-{self.stage}"

    @property
    def operator_name(self) -> str:
        return str(self.identity[0]["join"])

    @property
    def stage(self) -> str:
        return str(self.identity[0]["stage"])

    @property
    def kind(self) -> type[StageSpec]:
        """The kind of the stage; ``FkJoinError`` if this release knows none of its name."""
        if self.stage not in STAGES:
            raise FkJoinError(
                f"store {self.name} in {self.checkpoint} belongs to a stage that this release does "
                "not know"
            )
        return STAGES[self.stage]

    @property
    def buckets(self) -> int:
        return int(self.identity[0]["buckets"])

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the schemas of keys and rows, see ``Described``."""
        _, about = self.identity
        return {
            name: arrow_schema(name, kept_type(kind))
            for name, kind in about.items()
            if isinstance(kind, dict) and kind.get("type") == "struct"
        }

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """Return the names of a version's parts, and the number of parts of each."""
        _, about = self.identity
        if "versions" in about:
            return tuple((name, parts) for name, parts in about["versions"])
        return tuple(zip(("left_version", "right_version"), about["parts"], strict=True))

    def described(self) -> Described:
        """Return the reader of the store's bytes."""
        facts, about = self.identity
        both_rows = facts.get("joiner", "none") is None
        collected = about.get("collected", {})
        return Described(
            self.name,
            self.kind,
            self.schemas(),
            both_rows,
            self.versions,
            self.multi_join,
            collected,
        )

    @property
    def spread(self) -> int:
        """Return the number of buckets that a foreign key's subscriptions are spread over."""
        return int(self.identity[0].get("spread", 1))

    @property
    def multi_join(self) -> MultiJoin | None:
        """Return, for stores of a multi-way join, what its rows are made of."""
        _, about = self.identity  # stores call it "star"
        return MultiJoin.from_facts(about["star"], self.schemas()) if "star" in about else None


@dataclass(frozen=True)
class SavedStore(Identified):
    """A stage's store in a checkpoint after a batch."""

    checkpoint: str
    operator: int
    """The number of the stateful operator."""
    number: int
    """The number of the stage in the operator."""
    partitions: tuple[SavedPartition, ...]
    identity_data: bytes
    """The identity, as it stands in a bucket's log."""

    @property
    def identity(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return read_identity(self.identity_data)

    def read(self, bucket: int, reader: StoreReader) -> list[pa.RecordBatch]:
        """Read the store of the bucket with this id; no rows if it has none."""
        partition = self.partitions[spark_hash(bucket) % len(self.partitions)]
        with partition.opened() as log, held_folder() as folder:
            meta = log.metas().get(bucket)
            if meta is None:
                return []
            with log.store(bucket, meta, folder) as store:
                return list(reader(store, bucket))


def with_stores(files: SavedFiles, batch: int | None, work: Callable[[list[SavedStore]], _T]) -> _T:
    """Return what ``work`` makes of the stores after a batch; see ``at_commit``."""
    return at_commit(files, batch, lambda commit: work(stores_of(files, commit)))


def stores_of(files: SavedFiles, commit: Commit) -> list[SavedStore]:
    """Find the stores with anything in them, those next to the sources first.

    ``FkJoinError`` without any.
    """
    stores = []
    for operator in sorted(commit.versions, reverse=True):  # Spark counts from the sink
        if is_ours(files, operator):
            for stage, identity in _identities(partitions_of(files, commit, operator)).items():
                partitions = partitions_of(files, commit, operator, stage)
                stores.append(SavedStore(files.checkpoint, operator, stage, partitions, identity))
    if not stores:
        raise FkJoinError(
            f"checkpoint {files.checkpoint} contains no store of fkjoin that has data"
        )
    return stores


def partitions_of(
    files: SavedFiles, commit: Commit, operator: int, stage: int = 0
) -> tuple[SavedPartition, ...]:
    """The partitions of a stage's store after a batch; none without the operator."""
    versions = enumerate(commit.versions.get(operator, ()))
    return tuple(
        SavedPartition(files, f"state/{operator}/{n}", version, stage) for n, version in versions
    )


def _identities(partitions: Sequence[SavedPartition]) -> dict[int, bytes]:
    """Read what the stores of an operator say of themselves, by the number of the stage.

    It stands in the change files after a snapshot, or else in that.
    """
    for partition in partitions:
        for changes in partition.after_snapshot():
            for record, data in changes.written.items():
                if record.number is None and data is not None:
                    return _in(data)
    for partition in partitions:
        with partition.opened() as log:
            for data in log.all_metas().values():
                return _in(data)
    return {}


def _in(metas: bytes) -> dict[int, bytes]:
    records = enumerate(unpacked_metas(metas))
    return {stage: Meta.decode(meta).identity for stage, meta in records if meta}


def named(name: str, stores: Sequence[SavedStore]) -> SavedStore:
    """Find the store of that name; ``FkJoinError`` if there is none."""
    by_name = {store.name: store for store in stores}
    if name not in by_name:
        hint = nearest(name, list(by_name))
        raise FkJoinError(f"there is no store {name!r} in {stores[0].checkpoint}; {hint}")
    return by_name[name]


_Store = TypeVar("_Store", bound=Identified)


def kept_as(name: str, stores: Sequence[_Store], checkpoint: str) -> _Store:
    """Find the store that keeps the rows of the table materialized as ``name``.

    ``FkJoinError`` if there is none.
    """
    keepers = [store for store in stores if store.kind.keeps]
    by_name = {store.identity[0].get("materialized"): store for store in keepers}
    if name in by_name:
        return by_name[name]
    names = [str(item) for item in by_name if item]
    if any(store.identity[0]["join"] == name and not store.kind.of_events for store in stores):
        raise FkJoinError(
            f"{name} keeps only hashes of its rows in {checkpoint}: start it with .materialize(…)"
        )
    raise FkJoinError(
        f"no table is materialized as {name!r} in {checkpoint}; {nearest(name, names)}"
    )
