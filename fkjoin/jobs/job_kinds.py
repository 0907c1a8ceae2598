"""Sections of a job file that are of several kinds, such as tables of topics and of files: which settings each kind has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.metrics.server import ClientAccess
from fkjoin.spark.query_start import UnreachableError

Value = str | int | float | bool
Values = Value | list[Value]


class JobError(FkJoinError, ValueError):
    """A job file is wrong; the message says where in it, and what may stand there."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put the place in the job file in front of what goes wrong inside."""
    try:
        yield
    except (TopologyError, JobError) as error:
        raise JobError(f"{where}.{error}") from error
    except UnreachableError as error:
        raise JobError(f"{where}: {error}") from error


ANY = object()
"""A setting that is given, whatever it is."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False, use_attribute_docstrings=True)

    @classmethod
    def shown(cls, name: str) -> str:
        """A field as it is called in a job file."""
        return cls.model_fields[name].alias or name


@dataclass(frozen=True)
class Kind:
    """One kind of a section."""

    words: str
    when: Mapping[str, Any]
    """Settings by which it is known, ``ANY`` or of this value."""
    own: tuple[str, ...] = ()
    """Settings that not all kinds have, and this one has."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be given, and what is said where they are not."""


class Section(Strict):
    """A section that is of the first of ``kinds`` that it is known as.

    Settings of others are refused, unless they are as by default.
    """

    kinds: ClassVar[tuple[Kind, ...]]
    this_is: ClassVar[str]
    """Words before those of the kind."""
    places: ClassVar[tuple[str, ...]] = ()
    """Settings of which one is given."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Section:
        if self.places and sum(getattr(self, name) is not None for name in self.places) != 1:
            raise ValueError(f"give either {_alternatives(self.places)}")
        kind = next(kind for kind in self.kinds if self._is(kind))
        for name in type(self).model_fields:
            others = [other.words for other in self.kinds if name in other.own]
            if others and name not in kind.own and getattr(self, name) != self.default(name):
                meant = next((f"give {own}" for own in kind.own if own.endswith(f"_{name}")), "leave it out")
                said = f"it is a setting of {_alternatives(others)}, and {self.this_is} {kind.words}; {meant}"
                raise ValueError(f"{self.shown(name)}: {said}")
        for name, says in kind.needs.items():
            if getattr(self, name) is None:
                raise ValueError(says)
        return self

    @classmethod
    def default(cls, name: str) -> Any:
        """The value of a field that is not given."""
        return cls.model_fields[name].get_default(call_default_factory=True)

    def _is(self, kind: Kind) -> bool:
        return all(
            getattr(self, name) is not None and wanted in (ANY, getattr(self, name)) for name, wanted in kind.when.items()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """For editors: the same as conditions."""
        made = handler.resolve_ref_schema(handler(schema))
        properties, rest = made["properties"], dict[str, Any]()
        for kind in reversed(cls.kinds):
            given = {cls.shown(name): wanted for name, wanted in kind.when.items()}
            sign = {
                "properties": {name: {"const": wanted} for name, wanted in given.items() if wanted is not ANY},
                "required": [name for name in given if properties[name].get("default") is None],
            }
            others = {cls.shown(name) for other in cls.kinds for name in other.own if name not in kind.own}
            left_out = {name: {"const": properties[name]["default"]} for name in sorted(others)}
            own = {"properties": left_out, "required": [cls.shown(name) for name in kind.needs]}
            rest = {"if": sign, "then": own, **({"else": rest} if rest else {})}
        made |= rest
        if cls.places:
            made["oneOf"] = [{"required": [name]} for name in cls.places]
        return made


def _alternatives(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


class PageSection(Strict):
    """The access to the page of ``fkjoin run --ui``: the names of its host, and the token that is asked for."""

    names: list[str] = []
    """Names of the host, besides `localhost` and its addresses."""
    token: str | None = Field(default=None, repr=False)
    """The token that the page asks for."""

    @model_validator(mode="after")
    def _usable(self) -> PageSection:
        try:
            ClientAccess(names=tuple(self.names), token=self.token)
        except FkJoinError as error:
            raise ValueError(str(error)) from error
        return self


class SparkSection(BaseModel):
    """The session: settings of Spark under their full names, and whether it has Spark's Kafka connector."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    __pydantic_extra__: dict[str, Value] = Field(init=False)

    kafka: bool = False
    """Have Spark's Kafka connector, the newest published one that fits this Spark."""

    @property
    def settings(self) -> dict[str, Value]:
        """Those of Spark."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="after")
    def _named(self) -> SparkSection:
        for name in self.settings:
            if not name.startswith("spark."):
                raise ValueError(f'{name!r} is no setting of Spark: write "spark.…" = …, or kafka = true')
        return self
