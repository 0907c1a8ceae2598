"""A query that fkjoin has started in a session of Spark Connect: see ``Query``."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.connect.streaming import query as connect

from fkjoin.checkpoint.query import Query, QueryDisplay
from fkjoin.spark.spark_api import client_query


class ConnectQuery(QueryDisplay, connect.StreamingQuery):
    """A running query: Spark Connect's, with a line for what it does.

    It fails by Spark's exception, or by a lost claim.
    """


def shown(query: Any) -> Query:
    """Return the query as ``to_…`` calls give it."""
    make: Any = ConnectQuery
    return cast(Query, make(*client_query(query)))
