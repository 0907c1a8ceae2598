"""Checks that several operators make of what they are given, and how it reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeGuard, get_args

from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from fkjoin.analysis.planned import Planned
from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.sessions.access import access
from fkjoin.spark.schemas import Expressions, arrow_schema, listed, spark_schema, text
from fkjoin.spark.spark_api import require_classic

Deployment = Literal["fused", "staged"]
"""All stages in one query, or each one a query of its own, with topics between them."""

Extractor = Expressions | Callable[[Any, Any], Any]
Joiner = Expressions | Callable[[Any, Any], Any]


def is_function(value: Any) -> TypeGuard[Callable[[Any, Any], Any]]:
    """Tell whether an extractor or joiner is a Python callable.

    A Column, which can be called too, is not one.
    """
    return callable(value) and not isinstance(value, Column)


def name_of(function: Any) -> str:
    """The name of a function, or of the class of what is called like one."""
    return getattr(function, "__name__", type(function).__name__)


def described(function: Extractor | Joiner, *arguments: str) -> str:
    """The text of an extractor or joiner in ``describe()``."""
    if is_function(function):
        return f"{name_of(function)}({', '.join(arguments)})"
    return ", ".join(text(item) for item in listed(function))


def require_takes(argument: str, function: Callable[..., Any], *names: str) -> None:
    """Raise ``TopologyError`` if a function cannot be called with so many arguments.

    A function that does not say what it takes passes.
    """
    # A Spark UDF has the function that it calls in ``func``.
    called = getattr(function, "func", function) if hasattr(function, "returnType") else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # such as of what is written in C
        return
    try:
        signature.bind(*names)
    except TypeError:
        takes = f"{name_of(called)}({', '.join(signature.parameters)})"
        raise TopologyError(
            f"{argument}: {takes} must be callable with ({', '.join(names)})"
        ) from None


def require_callables(arguments: str, other: Any = (), /, **callables: Any) -> None:
    """Raise ``TopologyError`` if one is not a function that takes the arguments.

    A value of a type among ``other`` is taken as well.
    """
    for argument, function in callables.items():
        if not callable(function) and not isinstance(function, other):
            raise TopologyError(
                f"{argument}: {function!r} is not callable; give a function of ({arguments})"
            )
        if callable(function):
            require_takes(argument, function, *arguments.split(", "))


def staged_application(spark: SparkSession, deployment: str, application: str | None) -> str | None:
    """The application whose topics a staged operator has; None for a fused one.

    Raises ``TopologyError``.
    """
    if deployment not in get_args(Deployment):
        raise TopologyError(f'deployment: {deployment!r} is not one of "fused", "staged"')
    if deployment == "fused":
        return None
    require_classic(spark, 'deployment="staged"', "leave the deployment fused")
    return application or access(spark).application()


def require_same_timestamps(left: Planned, right: Planned) -> None:
    """Raise ``TopologyError`` if both tables have timestamps, of two types."""
    if left.timestamps and right.timestamps and left.timestamps != right.timestamps:
        raise ColumnTypeError(
            f"right: timestamps are {right.timestamps} here and {left.timestamps} in left; make "
            "both the same type"
        )


def as_emitted(argument: str, kind: StructType) -> StructType:
    """The type that rows have after a stage: everything in it may be null."""
    return spark_schema(arrow_schema(argument, kind))


def refuse_to_start_over(argument: str, table: Planned) -> None:
    """Raise ``TopologyError`` if a topic that the table is made of is to start over.

    The staged deployment cannot.
    """
    if any(source.starts_over for source in table.sources):
        raise TopologyError(
            f'{argument}: a table with on_new_topic="start-over" cannot be in a staged deployment, '
            "which is several queries; leave it out, and give the queries new checkpoints when a "
            "topic is created again"
        )
