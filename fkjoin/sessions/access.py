"""Questions that the engine asks of a Spark session, classic or of Spark Connect."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fkjoin.sessions import local
from fkjoin.spark.spark_api import (
    analyzed,
    client_expression,
    hadoop_settings,
    is_connect,
    java_column,
    jvm,
    listed,
)
from fkjoin.storage.files import Files
from fkjoin.storage.hadoop_files import HadoopFiles
from fkjoin.storage.local_files import LocalFiles

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
class Access(ABC):
    """The answers of one session; where it cannot be asked, what stands here."""

    spark: SparkSession

    @abstractmethod
    def application(self) -> str:
        """The name of the application, by which the topics between staged operators are called."""

    @abstractmethod
    def parallelism(self) -> int:
        """Count the tasks that run at once by default."""

    def set_up(self, workers: Mapping[str, str], simple: tuple[str, str]) -> None:  # noqa: B027
        """Prepare ``workers``, their environment; ``simple``: a setting and its variable.

        A server's settings say how its workers are started (docs/versions.md).
        """

    def analyzed(self, frame: DataFrame) -> list[Any] | None:
        """Nodes of Spark's analyzer for the columns that the frame was selected of.

        None where it cannot be asked.  Little is known then of an expression that is more than a
        name: it may read what it names and it may throw, and Spark evaluates it.
        """
        return None

    def named(self, column: Column) -> str | None:
        """The name that the column is, where the analyzer cannot be asked; None if it is more."""
        return None

    def text(self, column: Column) -> str | None:
        """A text with the names of all that the column reads; None if it cannot be told.

        It is for where the analyzer cannot be asked.
        """
        return None

    @abstractmethod
    def tried(self, column: Column) -> Column:
        """A struct, null where one of its fields throws."""

    @abstractmethod
    def folders(self, lines: DataFrame, path: str, options: Mapping[str, Any]) -> list[str]:
        """The columns of a stream of lines that names of folders are, such as ``region=eu``.

        ``path``, ``options``: of its source.
        """

    def not_appended(self, frame: DataFrame) -> str | None:
        """Say in Spark's words why rows of a streaming frame cannot be appended.

        None if they can, or Spark cannot be asked: a server refuses the query when it starts.
        """
        return None

    @abstractmethod
    def files(self, folder: str) -> Files:
        """The files of a folder."""

    def owned(self, name: str, checkpoint: str) -> AbstractContextManager[None]:
        """Give queries that are started meanwhile this property, where workers can be told."""
        return contextlib.nullcontext()


class Classic(Access):
    """A session whose JVM this process talks to: it can be asked for all that Spark knows."""

    def application(self) -> str:
        return str(self.spark.sparkContext.appName)

    def parallelism(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def set_up(self, workers: Mapping[str, str], simple: tuple[str, str]) -> None:
        context: Any = self.spark.sparkContext
        # Not in the environment of executors, whose JVM would have it, too.
        for name, value in workers.items():
            context.environment.setdefault(name, value)
        if self.spark.conf.get(simple[0], "true") == "true":
            context.environment.setdefault(simple[1], "1")
        if context.master.startswith("local"):
            local.complete(context)

    def analyzed(self, frame: DataFrame) -> list[Any]:
        return list(listed(analyzed(frame).expressions()))

    def tried(self, column: Column) -> Column:
        """Use Catalyst's ``TryEval``, which makes null of what throws."""
        sql = jvm().org.apache.spark.sql
        expressions, guard = sql.classic.ExpressionUtils, sql.catalyst.expressions.TryEval
        return Column(expressions.column(guard(expressions.expression(java_column(column)))))

    def folders(self, lines: DataFrame, path: str, options: Mapping[str, Any]) -> list[str]:
        columns = analyzed(lines).dataSource().sourceInfo().partitionColumns()
        return [name for name in columns.mkString("\n").split("\n") if name]

    def not_appended(self, frame: DataFrame) -> str | None:
        """Ask what Spark asks when a query starts."""
        sql = jvm().org.apache.spark.sql
        checker, mode = sql.catalyst.analysis.UnsupportedOperationChecker, sql.streaming.OutputMode
        plan = analyzed(frame)
        try:
            checker.checkForStreaming(plan, mode.Append())
        except AnalysisException as error:
            return str(error).partition("\n")[0].removesuffix(";")
        return None

    def files(self, folder: str) -> Files:
        path = jvm().org.apache.hadoop.fs.Path(folder)
        system = path.getFileSystem(hadoop_settings(self.spark.sparkContext))
        root = system.makeQualified(path)
        if system.getUri().getScheme() == "file":
            return LocalFiles(Path(root.toUri().getPath()))
        return HadoopFiles(str(root), system)

    @contextlib.contextmanager
    def owned(self, name: str, checkpoint: str) -> Iterator[None]:
        """Set a local property of the thread that starts the query: Spark hands it on."""
        self.spark.sparkContext.setLocalProperty(name, checkpoint)
        try:
            yield
        finally:
            self.spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]


class Connect(Access):
    """A session of Spark Connect: a client without a JVM, whose server answers DataFrames alone.

    An expression that is a name is known; of others, the names in them are.
    """

    def application(self) -> str:
        return str(self.spark.conf.get("spark.app.name", "fkjoin"))

    def parallelism(self) -> int:
        """Count the partitions of a range."""
        places = self.spark.range(_MANY).select(F.spark_partition_id().alias("place"))
        last = places.agg(F.max("place")).head()
        assert last is not None
        return int(last[0]) + 1

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

    def files(self, folder: str) -> Files:
        # Imported here: pyarrow's file systems take classic sessions a quarter of a second, too.
        from fkjoin.storage.worker_files import of_client

        return of_client(self.spark, folder)


def access(spark: SparkSession) -> Access:
    """The answers of the session."""
    return Connect(spark) if is_connect(spark) else Classic(spark)
