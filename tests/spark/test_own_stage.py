"""A stage outside of fkjoin, one class and one entry in ``STAGES``: what counts and what names stages knows it.

That its rows are shown, read and looked up: tests/lowering/test_toy_operator.py.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from fkjoin.checkpoint.entries import Entries
from fkjoin.checkpoint.stores import Identified
from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, prefixed
from fkjoin.codec.rows import KeyCodec
from fkjoin.errors import FkJoinError
from fkjoin.metrics.collector import families_of
from fkjoin.metrics.report import JobReport
from fkjoin.plan.physical import Counted
from fkjoin.spark import on_spark
from fkjoin.spark.specs import STAGES
from fkjoin.spark.specs.shown import Described
from fkjoin.stages.emit_on_change import HAS_RESULT
from fkjoin.state import MemoryStore
from tests.support.distinct import DistinctSpec

KEY = pa.schema([("name", pa.string())])


class Stored(Identified):
    """A store of the stage."""

    checkpoint = "the test"
    identity = {"join": "names", "stage": "distinct", "buckets": 2}, {}


def test_its_counters_are_summed_and_have_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "distinct", DistinctSpec)
    monkeypatch.setattr(DistinctSpec, "greatest", ("longest-key",))
    functions = MagicMock()
    monkeypatch.setattr(on_spark, "F", functions)
    on_spark._observed(MagicMock(), Counted(MagicMock(), "names", ("distinct",)))
    summed = [call.args[0] for call in functions.sum.return_value.alias.call_args_list]
    most = [call.args[0] for call in functions.max.return_value.alias.call_args_list]
    assert {"stale-dropped", "seen-again", "distinct-ms"} <= set(summed)
    assert "longest-key" in most
    texts = {family.name: family.documentation for family in families_of(JobReport(0))}
    assert texts["fkjoin_seen_again"] == "Rows whose columns another row has."


def test_a_stage_that_is_not_known_is_named() -> None:
    with pytest.raises(FkJoinError, match="^store names-distinct in the test belongs to a stage that this release does not"):
        Stored().described()


def test_a_row_of_no_columns_is_shown() -> None:
    """An aggregate that only counts keeps none of its rows' columns."""
    store, group = MemoryStore(), KeyCodec(KEY).encode([pa.array(["g"])], 1)
    body = pa.array([len(group[0].as_py()).to_bytes(4, "little") + group[0].as_py()], BYTES)
    flags, ts = np.full(1, HAS_RESULT, np.uint8), np.zeros(1, np.int64)
    version = versions.encode(versions.identity("names"), [ts])
    store.write(prefixed(tags.ROW, group), records.encode(flags, ts, version, body))
    schemas = {"key": KEY, "row_key": KEY, "value": pa.schema([])}
    entries: Any = Entries(Described("n-regroup", STAGES["regroup"], schemas, False, (("version", 1),)))
    (found,) = [row for batch in entries(store, 0) for row in batch.to_pylist()]
    assert (found["kind"], found["key"], found["foreign_key"], found["row"]) == ("contribution", '"g"', '"g"', "{}")
