"""Expressions of Spark's, bound as the engine binds a user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from fkjoin.analysis.bound import Bound, Scope, bound_columns, for_workers
from fkjoin.codec.expressions import Part
from fkjoin.codec.vectors import Columns


def bound(column: Column, rows: DataFrame, names: Iterable[str]) -> Bound:
    """A column over those of ``rows`` that have these names."""
    (found,) = bound_columns([column], [column], Scope(rows, (), "rows", pa.schema([(name, pa.null()) for name in names])))
    return found


def vector(column: Column, rows: DataFrame, names: Iterable[str]) -> Part | None:
    """The column for workers."""
    return bound(column, rows, names).vector


def vectors(columns: Mapping[str, Column], rows: DataFrame, names: Iterable[str]) -> Columns | None:
    """The columns for workers."""
    known = list(names)
    return for_workers({name: bound(column, rows, known) for name, column in columns.items()})
