"""The calls that made tables, so that they can be made again with other arguments of their sources."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from pyspark.sql.types import StructType

from fkjoin.errors import ColumnTypeError, TopologyError
from fkjoin.kafka.connection import Connection
from fkjoin.sessions.settings_of_call import KeptSettings, settings_of_call
from fkjoin.spark.copies import copied

_P = ParamSpec("_P")
_T = TypeVar("_T", bound="Remembered")


class Remembered:
    """Something that knows how it was made: a table, or rows by group."""

    _recipe: Recipe | None = None

    def _with_recipe(self: _T, recipe: Recipe) -> _T:
        """Return it with the recipe by which it was made."""
        made = copy.copy(self)
        made._recipe = recipe
        return made


@dataclass(frozen=True, eq=False)
class Recipe:
    """A function that made a table, or what a table is made with, and copies of its arguments, other tables among them."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...] = field(repr=False)
    named: Mapping[str, Any] = field(repr=False)
    """Options of sources, and the secrets in them, are among both."""
    learned: StructType | None = None
    """The columns that files had when the table was made of them, where the user gave none."""
    folders: StructType | None = None
    """Those of them that names of folders are, and such ones beside a schema; None where they are given, too."""
    connection: Connection | None = None
    """The topic that the table is."""
    folder: str | None = None
    """Place of what fkjoin wrote."""
    settings: KeptSettings = field(default_factory=dict, repr=False)
    """The session's settings as the call has read them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", copied(self.arguments))
        object.__setattr__(self, "named", copied(self.named))

    def learned_below(self) -> list[tuple[str, Any]]:
        """The names and paths of the files' tables, among the arguments and below, without a schema of the user's."""
        below = _below([*self.arguments, *self.named.values()], set())
        return [(table.name, recipe.arguments[1]) for table, recipe in below if recipe.learned is not None]


@contextlib.contextmanager
def telling_files(learned: Callable[[], Iterable[tuple[str, Any]]]) -> Iterator[None]:
    """Add the files to a ``ColumnTypeError`` if a type may be learned from them: others may have been there at the first start.

    ``learned``: names and paths of such tables.
    """
    try:
        yield
    except ColumnTypeError as error:
        tables = [f"{name} from {path}" for name, path in learned()]
        if not tables:
            raise
        raise TopologyError(
            f"{error}. The columns of {' and '.join(tables)} were learned: if a query has read these files before, give "
            'schema= as "fkjoin state columns CHECKPOINT" prints it'
        ) from error


def remembered(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, whose tables know how they were made; it gets the recipe's copies of the arguments."""
    of_recipe: Callable[..., _T] = make

    @functools.wraps(make)
    def made(*arguments: _P.args, **named: _P.kwargs) -> _T:
        with settings_of_call() as settings:
            recipe = Recipe(made, arguments, named, settings=settings)
            with telling_files(recipe.learned_below):
                return of_recipe(*recipe.arguments, **recipe.named)._with_recipe(recipe)

    return made


def recipes_below(table: Remembered) -> list[tuple[Any, Recipe]]:
    """The table and all that it was made of, each once, with how it was made."""
    return list(_below(table, set()))


def learned_sources(table: Remembered) -> dict[str, list[tuple[Any, Recipe]]]:
    """The tables below, and the table itself, of whose columns some were learned, by name.

    Those of the same files are together, and those without a schema come first.
    """
    found: dict[tuple[str, str], list[tuple[Any, Recipe]]] = {}
    for one, recipe in sorted(recipes_below(table), key=lambda item: item[1].learned is None):
        if recipe.learned is not None or recipe.folders is not None:
            of = repr((recipe.arguments[1:], recipe.named.get("key"), recipe.learned is None))
            found.setdefault((one.name, of), []).append((one, recipe))
    named: dict[str, list[tuple[Any, Recipe]]] = {}
    for (name, _), tables in found.items():
        number = sum(other.partition("#")[0] == name for other in named)
        named[f"{name}#{number + 1}" if number else name] = tables
    return named


def made_again(table: _T, others: Mapping[int, Mapping[str, Any]]) -> _T:
    """The table, with other arguments of the sources with these ``id`` and the settings of its calls.

    What is there twice is made once.
    """
    done: dict[int, Any] = {}

    def again(given: Any) -> Any:
        if type(given) in (list, tuple):  # tables stand in no others, such as a tuple with names
            return type(given)(map(again, given))
        recipe = getattr(given, "_recipe", None)
        if not isinstance(recipe, Recipe):
            return given
        if id(given) not in done:
            named = {name: again(one) for name, one in recipe.named.items()} | dict(others.get(id(given), {}))
            arguments = [again(one) for one in recipe.arguments]
            with settings_of_call(recipe.settings):
                done[id(given)] = recipe.make(*arguments, **named)
        return done[id(given)]

    made: _T = again(table)
    return made


def _below(given: Any, seen: set[int]) -> Iterator[tuple[Any, Recipe]]:
    """Find what has a recipe among all that something was made of, each once."""
    if type(given) in (list, tuple):
        for one in given:
            yield from _below(one, seen)
    recipe = getattr(given, "_recipe", None)
    if isinstance(recipe, Recipe) and id(given) not in seen:
        seen.add(id(given))
        yield given, recipe
        yield from _below([*recipe.arguments, *recipe.named.values()], seen)
