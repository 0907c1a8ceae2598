"""Foreign-key table joins on Spark, kept up to date through updates and deletes on both sides (KIP-213).

>>> joined = fk_join(orders, customers, extractor="customer_id")
"""

from fkjoin.errors import FkJoinError, FormatError, InvariantError, SessionError, TopologyError, TraceError
from fkjoin.join import fk_join
from fkjoin.spark.settings import session
from fkjoin.table import Table

__version__ = "0.1.0"

__all__ = [
    "FkJoinError",
    "FormatError",
    "InvariantError",
    "SessionError",
    "Table",
    "TopologyError",
    "TraceError",
    "fk_join",
    "session",
]
