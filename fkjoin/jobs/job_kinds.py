"""Sections of a job file that are of several kinds, such as tables of topics and of files: which settings each kind has."""

from __future__ import annotations

import re
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


class LocatedError(JobError):
    """An error whose message begins with its place in the job file."""


_ARGUMENT = re.compile(r"(\w+(?:\[\d+\]|\.\w+)*): ")
"""The name of an argument, or of a call, with which a message of the library begins."""
_IN_JOB_FILES = (
    (re.compile(r"start the session with fkjoin\.session\(kafka=True\), in a job file "), "write "),
    (re.compile(r"write \.materialize\(\"[^\"]*\"\) first \(in a job file, (materialize = true)\)"), r"write \1"),
    (
        re.compile(r"(?:give it to group_by, with|put) fkjoin\.window\(…\) in(?:to the| its) key"),
        "give window = {time = …, size = …}",
    ),
    (re.compile(r"give it as table\.group_by\(…\)\.agg\(…\)"), "name one of aggregates"),
    (re.compile(r"group_by\(\"([^\"]*)\"\)"), r'group_by = "\1"'),
    (re.compile(r"Json\(…\) or Debezium\(…\)"), "{format = …, schema = …}"),
    (re.compile(r" \(Table\.from_kafka\)"), ""),
    (re.compile(r"\b(?:with|in) map_values"), "in the columns of a view"),
    (re.compile(r",? (?:each |with |or )?(?:give )?\w* ?(?:another|a) name= (?:of its own)?"), ""),
    (re.compile(r'options=\{"(\w+)": True\}'), r"options = {\1 = true}"),
    (re.compile(r"\b([a-z_]+)=(?=[\s,.;)]|$)"), r"\1"),
)
"""Words of the library's messages that speak of Python, and what a job file has in their place."""


@contextmanager
def located(where: str, section: Strict | None = None) -> Iterator[None]:
    """Put the place in the job file in front of what goes wrong inside, in the job file's words.

    ``section``: the one that is there, whose settings arguments of the library's calls are.
    """
    try:
        yield
    except LocatedError:
        raise
    except (TopologyError, JobError) as error:
        raise LocatedError(_in_job_file(where, section, str(error))) from error
    except UnreachableError as error:
        raise LocatedError(f"{where}: {error}") from error


def _in_job_file(where: str, section: Strict | None, text: str) -> str:
    for python, words in _IN_JOB_FILES:
        text = python.sub(words, text)
    argument = _ARGUMENT.match(text)
    if argument is None:
        return f"{where}: {text}"
    rest = text[argument.end() :]
    setting = None if section is None else section.setting(argument[1])
    if setting is not None:
        return f"{where}.{setting}: {rest}"
    return f"{where}: {rest}" if argument[1] in _CALLS else f"{where}: {text}"


_CALLS = ("from_files", "from_kafka", "from_delta", "Registry", "Debezium")
"""Names of calls and classes of the library with which messages begin."""


ANY = object()
"""A setting that is given, whatever it is."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False, use_attribute_docstrings=True)

    def setting(self, argument: str) -> str | None:
        """Return the setting that is an argument of the library's call for this section; None if none is."""
        name = argument.partition(".")[0]
        known = {self.shown(field) for field in type(self).model_fields}
        return argument if name in known else None

    def arguments(self, *settings: str) -> dict[str, Any]:
        """The values of settings that are arguments of the library's call, too."""
        return {name: getattr(self, name) for name in settings}

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
