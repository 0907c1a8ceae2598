"""Source positions: the places that a record came from, in a header that travels with it.

The header ``fkjoin-positions`` is JSON: one chain for each root,
``[[{"topic": "raw", "partition": 0, "offset": 17, "timestamp": 1700000000000}, …], …]``, with the
record's milliseconds. A chain begins with the position of the record that everything came from, the
*root*, and continues with each topic on the way; the record's own position is not in it.  The
result of a join has the roots of its left row, then of its right row (``null`` where no right row
was ever seen), and of each only the root: what lies between is not kept in state.  The row of a
merge has the roots of each table's last change of its key (``null`` where there was none), and the
roots of the row that is shown are marked by ``"shown": true``.  The marked ones alone would not
order a reader's batch: roots in two topics have no order.

The roots are the record's version, so a record that a job upstream published twice is one.  A root
without a timestamp has the timestamp of the record with the header.  A topic whose name is not
known any more (a root that went through two joins) is written as ``#`` and the eight hex digits
that stand for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from fkjoin.codec import versions
from fkjoin.codec.arrays import Bytes, as_bytes, buffers, lengths, window
from fkjoin.kafka.formats import header
from fkjoin.spark.topic_records import RECORD_PLACE
from fkjoin.stages.merge import origins_of

HEADER = "fkjoin-positions"
CHAINS = (
    "array<array<struct<topic:string,partition:int,offset:bigint,timestamp:bigint,shown:boolean>>>"
)


def given_chains(roots: int) -> tuple[Column, Column]:
    """The chains in a record's header, and what is wrong with them.

    A record without the header is its own root.
    """
    text = header(HEADER).cast("string")
    chains = F.from_json(text, CHAINS)
    usable = F.forall(chains, lambda chain: chain.isNull() | _usable(chain))
    usable &= F.exists(chains, lambda chain: chain.isNotNull())
    lacking = None if roots == 1 else f"no header {HEADER}, and {roots} roots are expected"
    count, expected = F.size(chains), F.lit(f" roots, {roots} expected")
    problem = F.when(text.isNull(), F.lit(lacking))
    is_no_list = F.coalesce(count, F.lit(-1)) < 1
    problem = problem.when(is_no_list, F.lit(f"{HEADER} is not a list of chains"))
    wrong_count = F.concat(F.lit(f"{HEADER} has "), count, expected)
    problem = problem.when(count != roots, wrong_count)
    cut_off = F.lit(f"{HEADER} has a position without topic, partition or offset")
    problem = problem.when(~F.coalesce(usable, F.lit(False)), cut_off)
    own = F.array(F.array(_position()))
    return F.when(text.isNull(), own).otherwise(F.transform(chains, _timed)), problem


def column_of(chains: Column | None) -> Column:
    """The column that says where a record was read; with ``chains``, also how it came there."""
    columns = [F.col(name).alias(name) for name in RECORD_PLACE]
    if chains is not None:
        columns.append(chains.alias("chains"))
    return F.struct(*columns)


def version(chains: Column, roots: int) -> Column:
    """The version, as bytes (see ``versions``), that the roots of ``chains`` are."""
    return F.concat(*[_part(F.get(chains, number)) for number in range(roots)])


def numbers(chains: Column) -> Column:
    """Read the version of ``chains``: timestamp, partition and offset of each root."""

    def of_root(chain: Column) -> Column:
        return F.array(*[chain[0][name].cast("bigint") for name in versions.PLACE])

    return F.flatten(F.transform(chains, of_root))


@dataclass(frozen=True)
class RootsOf:
    """Versions, as bytes → texts of the header; each has so many ``parts``, which are roots."""

    parts: int
    known: Mapping[bytes, str]
    """Topics whose names are known, by the first bytes of their identities."""

    @classmethod
    def topics(cls, parts: int, topics: Sequence[str]) -> RootsOf:
        return cls(parts, {versions.identity(topic)[:4]: topic for topic in topics})

    def __call__(self, version: pa.Array) -> pa.Array:
        return headers(as_bytes(version), self.parts, self.known)


@dataclass(frozen=True)
class OriginsOf:
    """Versions of a merge, with their origins (see ``stages.merge``) → the header's texts."""

    tables: tuple[int, ...]
    """Number of roots of each table's rows."""
    known: Mapping[bytes, str]
    """See ``RootsOf``."""

    def __call__(self, version: pa.Array) -> pa.Array:
        table, last = origins_of(as_bytes(version))
        of_root = np.repeat(np.arange(len(self.tables)), self.tables)
        shown = [pa.array(table == number) for number in of_root]
        return headers(last, len(of_root), self.known, shown)


def relayed(chains: Column | None, raw: Column) -> Column:
    """The header's text for a record ``raw`` that is passed on.

    It is the chains that the record had, if any, and where it was read.
    """
    own = F.array(_position(raw))
    if chains is None:
        return F.to_json(F.array(own))

    def longer(chain: Column) -> Column:
        return F.when(chain.isNotNull(), F.concat(chain, own))

    return F.to_json(F.transform(chains, longer))


def _position(raw: Column | None = None) -> Column:
    def field(name: str) -> Column:
        return F.col(name) if raw is None else raw[name]

    names = [field(name).alias(name) for name in RECORD_PLACE]
    shown = F.lit(None).cast("boolean").alias("shown")  # left out of a header
    return F.struct(*names, F.unix_millis(field("timestamp")).alias("timestamp"), shown)


def _usable(chain: Column) -> Column:
    def is_whole(item: Column) -> Column:
        return item["topic"].isNotNull() & (item["partition"] >= 0) & (item["offset"] >= 0)

    return (F.size(chain) > 0) & F.forall(chain, is_whole)


def _timed(chain: Column) -> Column:
    """The chain, its root with a timestamp."""
    own = F.unix_millis(F.col("timestamp"))

    def timed(item: Column) -> Column:
        return item.withField("timestamp", F.coalesce(item["timestamp"], own))

    return F.transform(chain, timed)


def _part(chain: Column) -> Column:
    """A part of a version: its head, what stands for the topic, and the root's place."""
    root = F.get(chain, 0)
    topic = root["topic"]
    hashed = F.substring(F.md5(topic.cast("binary")), 1, 8)
    is_stem = topic.rlike("^#[0-9a-f]{8}$")
    stem = F.when(is_stem, F.substring(topic, 2, 8)).otherwise(hashed)
    head = F.concat(F.lit(f"{versions.PLACED | len(versions.PLACE):02x}"), stem, F.lit("00000000"))
    # Sign bits are flipped, so that bytes have the order of the numbers.
    sign = F.lit(-(1 << 63))
    signed = [root[name].cast("bigint").bitwiseXOR(sign) for name in versions.PLACE]
    part = F.unhex(F.concat(head, *[F.lpad(F.hex(number), 16, "0") for number in signed]))
    return F.coalesce(part, F.lit(bytearray(versions.absent(1))))


def headers(
    version: Bytes, parts: int, topics: Mapping[bytes, str], shown: Sequence[pa.Array] = ()
) -> pa.Array:
    """The headers' texts for versions of so many parts: each is a position in a topic or absent.

    ``shown``: whether the row that is shown is of the part, of each part of a merge's rows.
    """
    rest, chains = version, []
    for number in range(parts):
        own, rest = versions.split(rest, 1)
        is_there = pa.array(lengths(own) > versions.HEAD_BYTES)
        data, bounds = buffers(own)
        # A part begins with a byte of its kind; the next four stand for the topic.
        raw = np.ascontiguousarray(window(data, bounds[:-1] + 1, 4))
        stems, numbers_of_stems = np.unique(raw.view(">u4").reshape(-1), return_inverse=True)
        known = [topics.get(int(stem).to_bytes(4, "big"), f"#{int(stem):08x}") for stem in stems]
        titles = pa.array([json.dumps(name) for name in known], pa.string())
        names = titles.take(pa.array(numbers_of_stems))
        position = versions.first_places(own)
        time, partition, offset = (pc.cast(pa.array(item), pa.string()) for item in position)
        timed = pc.binary_join_element_wise(', "timestamp": ', time, "")
        timed = pc.if_else(pa.array(position.timestamp != versions.OLDEST), timed, "")
        mark = pc.if_else(shown[number], ', "shown": true', "") if shown else ""
        pieces = ['[{"topic": ', names, ', "partition": ', partition, ', "offset": ', offset]
        chain = pc.binary_join_element_wise(*pieces, timed, mark, "}]", "")
        chains.append(pc.if_else(is_there, chain, "null"))
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*chains, ", "), "]", "")
