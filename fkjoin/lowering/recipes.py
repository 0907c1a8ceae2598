"""How tables were made, so that they can be made again with other arguments of the sources that they are read from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ParamSpec

from pyspark.sql.types import StructType

from fkjoin.errors import TopologyError

if TYPE_CHECKING:
    from fkjoin.kafka.connection import Connection
    from fkjoin.table import Table

_P = ParamSpec("_P")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A function that made a table, or what a table is made with, and its arguments, other tables among them."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = field(repr=False)
    named: Mapping[str, Any] = field(repr=False)
    """Options of sources, and the secrets in them, are among both."""
    learned: StructType | None = None
    """The columns that files had when the table was made of them, where nobody gave any."""
    connection: Connection | None = None
    """The topic that the table is."""


def remembered(make: Callable[_P, Table]) -> Callable[_P, Table]:
    """The function, whose tables know how they were made."""

    @functools.wraps(make)
    def made(*arguments: _P.args, **named: _P.kwargs) -> Table:
        return replace(make(*arguments, **named), recipe=Recipe(made, arguments, named))

    return made


def below(table: Table) -> list[Any]:
    """The table and all that it was made of, each once."""
    return list(_below(table, set()))


def refuse_to_start_over(argument: str, table: Table) -> None:
    """``TopologyError`` if a topic that the table is made of is to start over: the staged deployment cannot."""
    if any(one.recipe.named.get("on_new_topic") == "start-over" for one in below(table)):
        raise TopologyError(
            f'{argument}: a table with on_new_topic="start-over" cannot be in a staged deployment, which is several queries; '
            "leave it out, and give the queries new checkpoints when a topic is made anew"
        )


def learned_sources(table: Table) -> dict[str, list[Table]]:
    """The tables below, and the table itself, whose columns were learned, by name; those of the same files are together."""
    found: dict[tuple[str, str], list[Table]] = {}
    for one in below(table):
        if one.recipe.learned is not None:
            of = repr((one.recipe.arguments[1:], one.recipe.named.get("key")))
            found.setdefault((one.name, of), []).append(one)
    named: dict[str, list[Table]] = {}
    for (name, _), tables in found.items():
        number = sum(other.partition("#")[0] == name for other in named)
        named[f"{name}#{number + 1}" if number else name] = tables
    return named


def made_again(table: Table, others: Mapping[int, Mapping[str, Any]]) -> Table:
    """The table, with other arguments of the sources with these ``id``; what is there twice is made once."""
    done: dict[int, Any] = {}

    def again(given: Any) -> Any:
        if isinstance(given, list | tuple):
            return type(given)(map(again, given))
        recipe = getattr(given, "recipe", None)
        if not isinstance(recipe, Recipe):
            return given
        if id(given) not in done:
            named = {name: again(one) for name, one in recipe.named.items()} | dict(others.get(id(given), {}))
            done[id(given)] = recipe.make(*map(again, recipe.arguments), **named)
        return done[id(given)]

    made: Table = again(table)
    return made


def _below(given: Any, seen: set[int]) -> Iterator[Any]:
    """What has a recipe among all that something was made of, each once."""
    if isinstance(given, list | tuple):
        for one in given:
            yield from _below(one, seen)
    recipe = getattr(given, "recipe", None)
    if isinstance(recipe, Recipe) and id(given) not in seen:
        seen.add(id(given))
        yield given
        yield from _below([*recipe.arguments, *recipe.named.values()], seen)
