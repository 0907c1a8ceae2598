"""Questions that the engine asks of a Spark session, classic or of Spark Connect."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from fkjoin.spark.spark_api import is_connect
from fkjoin.storage.files import Files


class Access(Protocol):
    """The answers of one session."""

    def application(self) -> str:
        """The name of the application, by which the topics between staged operators are called."""
        ...

    def parallelism(self) -> int:
        """Count the tasks that run at once by default."""
        ...

    def set_up(self, workers: Mapping[str, str], simple: tuple[str, str]) -> None:
        """Prepare ``workers``, their environment; ``simple``: a setting and its variable."""
        ...

    def analyzed(self, frame: DataFrame) -> list[Any] | None:
        """Nodes of Spark's analyzer for the columns that the frame was selected of.

        None where it cannot be asked.  Little is known then of an expression that is more than a
        name: it may read what it names and it may throw, and Spark evaluates it.
        """
        ...

    def named(self, column: Column) -> str | None:
        """The name that the column is, where no more can be known of it; None if it is more."""
        ...

    def text(self, column: Column) -> str | None:
        """A text with the names of all that the column reads; None if it cannot be told."""
        ...

    def tried(self, column: Column) -> Column:
        """A struct, null where one of its fields throws."""
        ...

    def folders(self, lines: DataFrame, path: str, options: Mapping[str, Any]) -> list[str]:
        """The columns of a stream of lines that names of folders are, such as ``region=eu``.

        ``path``, ``options``: those of its source.
        """
        ...

    def not_appended(self, frame: DataFrame) -> str | None:
        """Say in Spark's words why rows of a streaming frame cannot be appended.

        None if they can, or Spark cannot be asked.
        """
        ...

    def files(self, folder: str) -> Files:
        """The files of a folder."""
        ...

    def owned(self, name: str, checkpoint: str) -> AbstractContextManager[None]:
        """Give queries that are started meanwhile this property, where workers can be told."""
        ...


def access(spark: SparkSession) -> Access:
    """The answers of the session."""
    if is_connect(spark):
        from fkjoin.sessions.connect import Connect

        return Connect(spark)
    from fkjoin.sessions.classic import Classic

    return Classic(spark)
