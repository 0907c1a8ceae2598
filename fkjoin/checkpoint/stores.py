"""Stores in a checkpoint, by what the job wrote down of them in each bucket's log."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa

from fkjoin.codec.arrays import Bytes
from fkjoin.errors import FkJoinError, nearest
from fkjoin.spark.buckets import bucket_ids, buckets_of, places_of
from fkjoin.spark.schemas import arrow_schema, kept_type
from fkjoin.spark.specs import STAGES, StageSpec
from fkjoin.spark.specs.shown import Described
from fkjoin.stages.multi_join import MultiJoin

_JSON = "key", "foreign_key", "version", "row"
"""Columns of readable records that are JSON."""


class Identified(ABC):
    """A stage's store, with what its identity says; subclasses have ``checkpoint`` and ``identity``."""

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
            raise FkJoinError(f"store {self.name} in {self.checkpoint} is of a stage that this release does not know")
        return STAGES[self.stage]

    @property
    def buckets(self) -> int:
        return int(self.identity[0]["buckets"])

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the schemas of keys and rows, see ``Described``."""
        _, about = self.identity
        kinds = {name: kind for name, kind in about.items() if isinstance(kind, dict) and kind.get("type") == "struct"}
        return {name: arrow_schema(name, kept_type(kind)) for name, kind in kinds.items()}

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
        return Described(self.name, self.kind, self.schemas(), both_rows, self.versions, self.multi_join, collected)

    @property
    def multi_join(self) -> MultiJoin | None:
        """Return, for stores of a multi-way join, what its rows are made of."""
        _, about = self.identity  # stores call it "star"
        return MultiJoin.from_facts(about["star"], self.schemas()) if "star" in about else None


class SavedRecords(Identified):
    """A stage's store in a checkpoint, whose records can be looked up."""

    @abstractmethod
    def in_bucket(self, bucket: int, names: tuple[bytes, ...]) -> list[dict[str, Any]]:
        """Read the records (``ENTRIES``) stored under ``names`` in the bucket with this id."""

    def some(self, of: Bytes, names: tuple[bytes, ...], subscriber: Bytes | None = None) -> list[dict[str, Any]]:
        """The records stored under ``names``, all in the bucket that the one key of ``of`` belongs to.

        ``subscriber``: the left key, if ``of`` is a foreign key, whose records may be spread.
        """
        (number,) = buckets_of(of, self.buckets) if subscriber is None else places_of(of, subscriber, self.buckets, self.spread)
        records = self.in_bucket(bucket_ids(self.buckets)[number], names)
        return [{name: json.loads(one) if name in _JSON and one else one for name, one in row.items()} for row in records]

    @property
    def spread(self) -> int:
        """Return the number of buckets over which the subscriptions of one foreign key are spread."""
        return int(self.identity[0].get("spread", 1))


_Store = TypeVar("_Store", bound=Identified)


def kept_as(name: str, stores: Sequence[_Store], checkpoint: str) -> _Store:
    """Find the store that keeps the rows of the table materialized as ``name``; ``FkJoinError`` if there is none."""
    kept = {store.identity[0].get("materialized"): store for store in stores if store.kind.keeps}
    if name in kept:
        return kept[name]
    names = [str(item) for item in kept if item]
    if any(store.identity[0]["join"] == name and not store.kind.of_events for store in stores):
        raise FkJoinError(f"{name} keeps only hashes of its rows in {checkpoint}: start it with .materialize(…)")
    raise FkJoinError(f"no table is materialized as {name!r} in {checkpoint}; {nearest(name, names)}")
