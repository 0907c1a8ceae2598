"""A job as a TOML file: read, filled in, and checked strictly."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from fkjoin.errors import nearest
from fkjoin.jobs.job_kinds import JobError, Section
from fkjoin.jobs.job_sections import JobSection, job_section

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors.

    It says of each kind of table, sink and format what it has.
    """
    schema = job_section().model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_job(path: Path) -> JobSection:
    """Parse a job file.

    ``JobError`` names the setting that is wrong, and the nearest one that there is.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobError(f"{path}: cannot be read as TOML: {error}") from error
    data = _filled(data, str(path))
    try:
        spec = job_section().model_validate(data)
        spec.in_order()
        return spec
    except JobError as error:
        raise JobError(f"{path}: {error}") from None
    except ValidationError as error:
        # What is wrong within a section says more than the other readings of the same place.
        # Each section takes one line.
        ranks = {"extra_forbidden": 0, "value_error": 1}
        worst: dict[Any, Any] = {}
        for mistake in sorted(
            error.errors(),
            key=lambda mistake: (ranks.get(mistake["type"], 2), -len(mistake["loc"])),
        ):
            worst.setdefault(_section(data, mistake["loc"]), mistake)
        raise JobError(f"{path}: " + "\nand ".join(map(_explained, worst.values()))) from None


def _section(data: dict[str, Any], path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The beginning of a path into the file's data that is a section of its own.

    Such as tables and a table's name.
    """
    first = data.get(path[0]) if path else None
    inner = isinstance(first, dict) and len(path) > 1 and isinstance(first.get(path[1]), dict)
    return path[: 2 if inner else 1]


def _filled(value: Any, where: str) -> Any:
    """The data with variables and files filled into its texts.

    ``${NAME}`` is replaced by a variable of the environment, ``${file:PATH}`` by a file's contents.
    """
    if isinstance(value, dict):
        return {name: _filled(item, f"{where}: {name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, where) for item in value]

    def content(match: re.Match[str]) -> str:
        if match[1]:
            return _contents(Path(match[1]), where)
        if match[2] not in os.environ:
            raise JobError(f"{where}: the environment has no variable {match[2]}")
        return os.environ[match[2]]

    return (
        re.sub(r"\$\{(?:file:([^}]+)|(\w+))\}", content, value) if isinstance(value, str) else value
    )


def _contents(path: Path, where: str) -> str:
    """The text of a file with a secret.

    Without the end of its last line, which editors and Docker write.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise JobError(f"{where}: {path} cannot be read: {reason}") from None


_NEEDED = {
    "string": "a text in quotes is needed",
    "bool": "true or false is needed",
    "int": "a whole number is needed",
    "float": "a number is needed",
    "list": "a list in brackets is needed",
    "dict": "settings in braces, or a section of their own, are needed",
    "model": "settings in braces, or a section of their own, are needed",
}
"""Values that are needed, by the first words of the types of pydantic's errors."""


def _explained(error: Any) -> str:
    """A pydantic error as a line: where, what, and the nearest setting for an unknown one."""
    section, inner = error["loc"][:2], error["loc"][2:]
    path = [*map(str, section), *(part for part in map(str, inner) if not _ALTERNATIVE.match(part))]
    where = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such setting; {nearest(path[-1], _settings(path[:-1]))}"
    if error["type"] == "missing":
        return f"{where}: must be given"
    if error["type"] == "too_short":
        return f"{where}: {error['ctx']['min_length']} or more are needed"
    kind, _, _ = error["type"].partition("_")
    message = _NEEDED.get(kind, error["msg"].removeprefix("Value error, "))
    return f"{where}: {message.replace('Input should be', 'it must be')}".removeprefix(": ")


_ALTERNATIVE = re.compile(r"str$|int$|float$|bool$|list\[|literal\[|\w*Section$|function-")
"""Names that pydantic gives to one of several types."""


def _settings(path: list[str]) -> list[str]:
    """The settings that may stand in a section of the file."""
    model: Any = job_section()
    for part in path:
        name = model.fields_by_setting().get(part)
        if name is not None:  # else it is the name of a table or sink
            kind = model.model_fields[name].annotation
            types = [kind, *get_args(kind)]
            model = next(
                item for item in types if inspect.isclass(item) and issubclass(item, Section)
            )
    return list(model.fields_by_setting())
