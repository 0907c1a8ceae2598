"""Sections of a job file for operators, and the settings that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

from fkjoin.analysis.emission import Emission, Emit
from fkjoin.errors import FkJoinError
from fkjoin.jobs.job_kinds import Strict


def understood(setting: str, understand: Callable[[str], object]) -> AfterValidator:
    """Turn a library's error about a text into one about its place in the file."""

    def checked(text: str) -> str:
        try:
            understand(text)
        except FkJoinError as error:
            raise ValueError(str(error).removeprefix(f"{setting}: ")) from error
        return text

    return AfterValidator(checked)


EmitSpec = Annotated[Emit, understood("emit", Emission.of)]


class FlatMapSpec(Strict):
    """The rows that a table's rows make, under a key of their own; without ``rows``, the rows themselves."""

    of: str
    key: str | list[str]
    rows: str | None = None
    emit: EmitSpec = "on-change"
