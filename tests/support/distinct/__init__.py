"""An operator that the package does not know: the rows of a table by some columns, each once."""

from tests.support.distinct.operator import distinct, plan_distinct
from tests.support.distinct.stage import DistinctSpec

__all__ = ["DistinctSpec", "distinct", "plan_distinct"]
