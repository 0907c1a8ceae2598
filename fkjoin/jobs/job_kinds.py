"""Sections of a job file: their settings are arguments of the library's calls.

A section names its calls.  ``of_calls`` gives it their arguments as settings, with the types and
defaults that they have there, and with what the calls' numpydoc says of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from fkjoin.analysis.emission import Emission, Emit
from fkjoin.errors import FkJoinError, TopologyError
from fkjoin.sinks import RETRY_S
from fkjoin.spark.query_start import UnreachableError

Value = str | int | float | bool
Values = Value | list[Value]
Texts = str | list[str]


class JobError(FkJoinError, ValueError):
    """A job file is wrong; the message says where in it, and what may stand there."""


class LocatedError(JobError):
    """An error whose message begins with its place in the job file."""


_ARGUMENT = re.compile(r"(\w+(?:\[\d+\]|\.\w+)*): ")
"""The name of an argument, with which a message of the library begins."""
_IN_JOB_FILES = (
    (re.compile(r"^(?:from_files|from_kafka|from_delta|Registry|Debezium): "), ""),
    (re.compile(r"start the session with fkjoin\.session\(kafka=True\), in a job file "), "write "),
    (
        re.compile(
            r"write \.materialize\(\"[^\"]*\"\) first \(in a job file, (materialize = true)\)"
        ),
        r"write \1",
    ),
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
def located(where: str, section: Section | None = None) -> Iterator[None]:
    """Put the place in the job file in front of what goes wrong inside, in the job file's words.

    ``section``: the one that is there, whose settings arguments of the library's calls are.
    """
    try:
        yield
    except LocatedError:
        raise
    except (TopologyError, JobError) as error:
        raise LocatedError(_in_job_file(where, section, str(error))) from error
    except UnreachableError as error:  # its words are a server's
        raise LocatedError(f"{where}: {error}") from error


def _in_job_file(where: str, section: Section | None, text: str) -> str:
    for python, words in _IN_JOB_FILES:
        text = python.sub(words, text)
    argument = _ARGUMENT.match(text)
    setting = section.setting(argument[1]) if argument and section else None
    if argument is None or setting is None:
        return f"{where}: {text}"
    return f"{where}.{setting}: {text[argument.end() :]}"


def understood(setting: str, understand: Callable[[str], object]) -> AfterValidator:
    """Turn a library's error about a text into one about its place in the file."""

    def checked(text: str) -> str:
        try:
            understand(text)
        except FkJoinError as error:
            raise ValueError(str(error).removeprefix(f"{setting}: ")) from error
        return text

    return AfterValidator(checked)


_EmitText = Annotated[Emit, understood("emit", partial(Emission.of, windows=True))]

_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("Expression", "RowsExpression", "Column", "Path", "StructType"), str),
    **dict.fromkeys(("Table", "Self", "Planned", "Enriched", "DataFrame"), str),
    **dict.fromkeys(("Expressions", "Extractor", "Joiner"), Texts),
    "Emit": _EmitText,
}
"""Names of types of arguments, and what a job file has in their place; of a table its name."""

_Count = Annotated[int, Field(ge=1)]

_SHAPES: Mapping[str, tuple[Any, Any]] = {
    **dict.fromkeys(("options", "registry_settings"), (dict[str, Value], {})),
    "units": (dict[str, str], {}),
    "partition_by": (Texts, []),
    "retry_s": (Annotated[float, Field(ge=0, allow_inf_nan=False)], RETRY_S),
    "spread": (_Count, 1),
    **dict.fromkeys(("roots", "optimize_every", "vacuum_every"), (_Count | None, None)),
}
"""Types and defaults of settings whose arguments have another form, or say less."""

_OF_PROGRAMS = {
    *("self", "spark", "bootstrap_servers", "name", "application", "settings"),
    *("checkpoint", "trigger", "query_name"),
}
"""Arguments that no setting is: a job gives them."""


@dataclass(frozen=True, eq=False)
class FaceCall:
    """A call of the library whose arguments are settings of a section."""

    function: Callable[..., Any]
    names: Mapping[str, str | None] = field(default_factory=dict)
    """Settings that are not called as their arguments are; None for an argument that is none."""

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """The arguments, with the types that they have in a job file."""
        return inspect.signature(self.function, locals=dict(_TYPES), eval_str=True).parameters

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings by argument."""
        public = [name for name in self.parameters if not name.startswith("_")]
        own = {name: name for name in public if name not in _OF_PROGRAMS}
        names: Mapping[str, str | None] = {**own, **self.names}
        return {argument: setting for argument, setting in names.items() if setting is not None}


@cache
def documents(function: Callable[..., Any]) -> dict[str, str]:
    """The texts of a call's numpydoc about its arguments."""
    _, _, text = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")
    texts: dict[str, str] = {}
    entries = re.findall(r"^(\S.*)\n((?: {4}.*\n|\n(?= {4}))+)", f"{text}\n", re.MULTILINE)
    for head, body in entries:
        about = " ".join(body.split()).replace("``", "`")
        texts.setdefault(head.partition(" : ")[0].lstrip("*"), about)
    return texts


ANY = object()
"""A setting that is given, whatever it is."""


@dataclass(frozen=True)
class Kind:
    """One kind of a section."""

    words: str
    when: Mapping[str, Any] = field(default_factory=dict)
    """Settings by which it is known, ``ANY`` or of this value."""
    calls: tuple[FaceCall, ...] = ()
    """Calls whose arguments it has as settings."""
    more: tuple[str, ...] = ()
    """Further settings that not all kinds have, and this one has."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be given, and what is said where they are not."""

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The settings that other kinds may lack."""
        settings: list[str] = []
        for call in self.calls:
            settings += call.settings.values()
        return (*settings, *self.when, *self.more)


class Section(BaseModel):
    """A section, with no settings but its own, of the first of ``kinds`` that it is known as.

    Settings of other kinds are refused, unless they are as by default.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=False, use_attribute_docstrings=True
    )
    kinds: ClassVar[tuple[Kind, ...]] = (Kind("a section"),)
    this_is: ClassVar[str] = "this is"
    """Words before the kind's words."""
    places: ClassVar[tuple[str, ...]] = ()
    """Settings of which one is given."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # arguments of calls

    @classmethod
    def fields_by_setting(cls) -> dict[str, str]:
        """The fields by the names that they have in a job file."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @property
    def of_kind(self) -> Kind:
        """The kind that the section is of."""
        return next(
            kind for kind in self.kinds if all(map(self._has, kind.when, kind.when.values()))
        )

    def value_of(self, setting: str) -> Any:
        """The value of a setting, by the name that it has in a job file."""
        return getattr(self, self.fields_by_setting()[setting])

    def _has(self, setting: str, wanted: Any) -> bool:
        value = self.value_of(setting)
        return value is not None and wanted in (ANY, value)

    def setting(self, argument: str) -> str | None:
        """Return the setting that is an argument of a call of this section; None if none is."""
        head = re.split(r"[.\[]", argument, maxsplit=1)[0]
        names = {name: name for name in self.fields_by_setting()}
        for call in self.of_kind.calls:
            names |= call.settings
        return names[head] + argument[len(head) :] if head in names else None

    def call_of(self, function: Callable[..., Any]) -> FaceCall:
        """The section's call of a function."""
        return next(call for call in self.of_kind.calls if call.function == function)

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The values of the settings that are arguments of a function."""
        settings = self.call_of(function).settings
        return {argument: self.value_of(setting) for argument, setting in settings.items()}

    @model_validator(mode="after")
    def _of_one_kind(self) -> Section:
        if self.places and sum(self._has(name, ANY) for name in self.places) != 1:
            raise ValueError(f"give either {_alternatives(self.places)}")
        kind, fields = self.of_kind, self.fields_by_setting()
        for setting, name in fields.items():
            others = [other.words for other in self.kinds if setting in other.own]
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            foreign = others and setting not in (*kind.own, *self.places)
            if foreign and getattr(self, name) != default:
                near = [own for own in kind.own if own.endswith(f"_{setting}")]
                meant = f"give {near[0]}" if near else "leave it out"
                here = f"{self.this_is} {kind.words}; {meant}"
                raise ValueError(
                    f"{setting}: it is a setting of {_alternatives(others)}, and {here}"
                )
        for setting, says in kind.needs.items():
            if self.value_of(setting) is None:
                raise ValueError(says)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """For editors: the same as conditions."""
        about = handler.resolve_ref_schema(handler(schema))
        properties, rest = about["properties"], dict[str, Any]()
        # Docstrings have lines, where editors and the page of settings show a text.
        for item in (about, *properties.values()):
            if "description" in item:
                item["description"] = " ".join(item["description"].split())
        own_of_all = set[str]().union(*(kind.own for kind in cls.kinds))
        for kind in reversed(cls.kinds if len(cls.kinds) > 1 else ()):
            when = kind.when.items()
            values = {name: {"const": value} for name, value in when if value is not ANY}
            signs = [name for name in kind.when if properties[name].get("default") is None]
            others = own_of_all - {*kind.own, *cls.places}
            left_out = {name: {"const": properties[name]["default"]} for name in sorted(others)}
            own = {"properties": left_out, "required": list(kind.needs)}
            rest = {"if": {"properties": values, "required": signs}, "then": own, "else": rest}
        about |= rest
        if cls.places:
            about["oneOf"] = [{"required": [name]} for name in cls.places]
        return about


S = TypeVar("S", bound=Section)


def of_calls(section: type[S]) -> type[S]:
    """Give a section the arguments of its calls as settings, but for those that it has itself."""
    known = section.fields_by_setting()
    parameters: dict[str, Parameter] = {}
    texts: dict[str, dict[str, str]] = {}
    for kind in section.kinds:
        for call in kind.calls:
            for argument, setting in call.settings.items():
                if setting not in known:
                    parameters.setdefault(setting, call.parameters[argument])
                    text = documents(call.function).get(argument, "")
                    texts.setdefault(setting, {})[kind.words] = text
    fields: dict[str, Any] = {}
    for setting, parameter in parameters.items():
        shape: Any
        shape, default = _SHAPES.get(setting, (parameter.annotation, parameter.default))
        if parameter.kind is Parameter.VAR_POSITIONAL:
            shape, default = list[Any], ...
        elif default is Parameter.empty and len(texts[setting]) < len(section.kinds):
            shape, default = shape | None, None
        elif default is Parameter.empty:
            default = ...
        fields[setting] = shape, Field(default, repr=False, description=_about(texts[setting]))
    about: Any = {"__module__": section.__module__, "__doc__": section.__doc__}
    return create_model(section.__name__, __base__=section, **about, **fields)


def _about(texts: Mapping[str, str]) -> str | None:
    """The description of a setting: what all kinds say of it, or what each does."""
    by_text: dict[str, list[str]] = {}
    for words, text in texts.items():
        by_text.setdefault(text, []).append(words)
    if len(by_text) == 1:
        return next(iter(by_text)) or None
    parts = [f"{_alternatives(words)}: {text}" for text, words in by_text.items()]
    return " ".join(part[0].upper() + part[1:] for part in parts)


def _alternatives(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
