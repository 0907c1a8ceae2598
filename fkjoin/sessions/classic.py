"""A session whose JVM this process talks to: it can be asked for everything that Spark knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession

from fkjoin.sessions import local
from fkjoin.spark.spark_api import analyzed, hadoop_settings, java_column, jvm, listed
from fkjoin.storage.files import Files
from fkjoin.storage.hadoop_files import HadoopFiles
from fkjoin.storage.local_files import LocalFiles


@dataclass(frozen=True)
class Classic:
    """See ``Access``."""

    spark: SparkSession

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

    def named(self, column: Column) -> None:
        """Leave it to the analyzer."""

    def text(self, column: Column) -> None:
        """Leave it to the analyzer."""

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
