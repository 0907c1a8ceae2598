"""Tables that events can be enriched by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fkjoin.errors import TopologyError
from fkjoin.lowering.enrich import require_fused
from fkjoin.plan.nodes import Aggregate, Join, Source


def test_a_table_that_is_deployed_in_stages_is_refused() -> None:
    """A staged join is refused below other operators, too; a fused one is taken."""
    orders, customers = (
        Source(name, ("id",), ("lsn",), None, None, (), "files", topic="t") for name in ("orders", "customers")
    )
    join = Join("joined", orders, customers, "inner", "customer", None, topics=("there", "back"))
    sums = Aggregate("sums", join, ("team",), ("team",), (), (), "on-change")
    for staged in (join, sums, replace(sums, table=replace(join, topics=None), topic="repartition")):
        with pytest.raises(TopologyError, match=r"^table: \w+ is deployed in stages, .*; leave deployment=\"staged\" out"):
            require_fused(staged)
    require_fused(replace(sums, table=replace(join, topics=None)))
