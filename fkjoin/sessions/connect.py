"""A session of Spark Connect: a client without a JVM, whose server answers DataFrames alone.

An expression that is a name is known; of others, the names in them are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.spark.spark_api import client_expression
from fkjoin.storage.files import Files
from fkjoin.storage.worker_files import of_client

_MANY = 100_000
"""More rows than a session has tasks."""
_OF_LINES, _OF_FILES = {"value"}, {"path", "modificationTime", "length", "content"}
"""Columns that Spark's readers of lines and of whole files have."""
_NAMING = {"ColumnReference": "_unparsed_identifier", "SQLExpression": "_expr"}
"""Parts of an expression that name columns, and where."""
_MADE_OF_PARTS = {
    *("CaseWhen", "ColumnAlias", "LiteralExpression", "CastExpression", "LambdaFunction"),
    *("UnresolvedFunction", "CommonInlineUserDefinedFunction", "CallFunction"),
    *("UnresolvedExtractValue", "UnresolvedNamedLambdaVariable"),
}
"""Parts that read nothing but what parts below them do."""


@dataclass(frozen=True)
class Connect:
    """See ``Access``."""

    spark: SparkSession

    def application(self) -> str:
        return str(self.spark.conf.get("spark.app.name", "fkjoin"))

    def parallelism(self) -> int:
        """Count the partitions of a range."""
        places = self.spark.range(_MANY).select(F.spark_partition_id().alias("place"))
        last = places.agg(F.max("place")).head()
        assert last is not None
        return int(last[0]) + 1

    def set_up(self, workers: Mapping[str, str], simple: tuple[str, str]) -> None:
        """Do nothing: the server's settings say how its workers are started (docs/connect.md)."""

    def analyzed(self, frame: DataFrame) -> None:
        return None

    def named(self, column: Column) -> str | None:
        expression = client_expression(column)
        is_name = type(expression).__name__ == "ColumnReference"
        return getattr(expression, _NAMING["ColumnReference"]) if is_name else None

    def text(self, column: Column) -> str | None:
        """Join what the parts of the expression name; None if one of them is of another kind."""
        parts: list[Any] = [client_expression(column)]
        texts: list[str] = []
        while parts:
            part = parts.pop()
            kind = type(part).__name__
            if kind not in (*_NAMING, *_MADE_OF_PARTS) or not hasattr(part, "children"):
                return None
            if kind in _NAMING:
                texts.append(getattr(part, _NAMING[kind]))
            parts += part.children
        return " , ".join(texts)

    def tried(self, column: Column) -> Column:
        """Use a function of SQL that Spark evaluates with ``TryEval``: a struct's text, or null."""
        text = F.try_to_binary(column.cast("string"), F.lit("utf-8"))
        return F.when(text.isNotNull(), column)

    def folders(self, lines: DataFrame, path: str, options: Mapping[str, Any]) -> list[str]:
        """Ask two readers with other columns of their own: a folder may have the name of one."""
        whole = self.spark.read.format("binaryFile").options(**options).load(path)
        names = [name for name in lines.columns if name not in _OF_LINES]
        names += [name for name in whole.columns if name not in _OF_FILES]
        return list(dict.fromkeys(names))

    def not_appended(self, frame: DataFrame) -> None:
        """Leave it to the server, which refuses the query when it starts."""

    def files(self, folder: str) -> Files:
        return of_client(self.spark, folder)

    def owned(self, name: str, checkpoint: str) -> AbstractContextManager[None]:
        """Do nothing: the workers cannot be told."""
        return contextlib.nullcontext()
