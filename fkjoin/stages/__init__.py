"""The stages of joins and aggregates, as pure functions: messages + store → messages, with writes
to the store.

No clock, no Spark, no Kafka, no logging in here: the time is an argument and counters are returned.
"""

from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.children import children
from fkjoin.stages.close import close
from fkjoin.stages.counters import Counters
from fkjoin.stages.enrich import enrich
from fkjoin.stages.gather import gather
from fkjoin.stages.join_rows import How, HowByKey, join_rows, split_rows
from fkjoin.stages.merge import merge
from fkjoin.stages.owners import owners
from fkjoin.stages.pace import pace
from fkjoin.stages.pair import answers_by_key, pair
from fkjoin.stages.regroup import regroup
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.scatter import answered, scatter
from fkjoin.stages.spread import spread
from fkjoin.stages.subscription import subscription

__all__ = [
    "Counters",
    "How",
    "HowByKey",
    "aggregate",
    "answered",
    "answers_by_key",
    "children",
    "close",
    "enrich",
    "gather",
    "join_rows",
    "merge",
    "owners",
    "pace",
    "pair",
    "regroup",
    "rekey",
    "resolve",
    "scatter",
    "split_rows",
    "spread",
    "subscription",
]
