"""Facts that bind a checkpoint, stored with every bucket in a form that reads well in an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fkjoin.spark.schemas import kept_type

_ABOUT = "about"
_HOME = "home"
_RESULT = "result"


def identity_text(facts: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Text of ``facts``, which must stay the same as long as the checkpoint lives.

    ``about`` is only kept for tools that read the state.
    """
    return json.dumps({**facts, _ABOUT: about}, sort_keys=True)


def read_identity(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and about, as ``identity_text`` was given them."""
    facts = json.loads(data or b"{}")
    return facts, facts.pop(_ABOUT, {})


def with_home(identity: str, home: str) -> str:
    """The identity text, and the name of the folder that a bucket's index has to itself."""
    facts, about = read_identity(identity.encode())
    return identity_text(facts, {**about, _HOME: home})


def bucket_folder(bucket: int, home: str) -> str:
    """Folder of a bucket's index under its stage's: operators of one name have one each."""
    return f"{bucket}-{home}"


def home_of(identity: bytes) -> str:
    """The home that a stored identity names."""
    return str(read_identity(identity)[1][_HOME])


def difference(stored: bytes, now: bytes, tables: Mapping[str, str]) -> str | None:
    """Say how the facts of a checkpoint differ from a job's; None if they do not.

    A fact that only one of them has counts as null: a release may add one without refusing older
    checkpoints.  ``tables``: the names of the tables that types are of.
    """
    (was, was_about), (is_, is_about) = read_identity(stored), read_identity(now)
    names = [name for name in sorted({*was, *is_}) if was.get(name) != is_.get(name)]
    if not names:
        return None
    before, after = _named(was, was_about), _named(is_, is_about)
    changes = _other_types(before, after, tables, str(is_.get("join")))
    if changes:
        names = [name for name in names if name.rstrip("0123456789") not in _WITH_TYPES]
    changes += [
        f"{name} was {json.dumps(was.get(name))} and is now {json.dumps(is_.get(name))}"
        for name in names
    ]
    # Facts of rows alone differ: the same join, perhaps under other rules.
    if names and {"left", "right", "together"}.issuperset(names):
        changes.append(
            "if the tables are the same, a rule of the optimizer is not: "
            "set spark.fkjoin.optimizer.excludedRules"
        )
    return f"of store {is_.get('join')}-{is_.get('stage')}, {'; '.join(changes)}"


_WITH_TYPES = {"key", "foreign_key", "left", "right", "row", "row_key", "value", "columns", _RESULT}
"""Facts that differ if a type of a column does."""


def _named(facts: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The columns of each type that is known, and their types.

    Values of an aggregate go by what the user has written.
    """
    columns = {name: _columns(kind) for name, kind in about.items()}
    texts = [text.rpartition(": ")[0] for text in facts.get("value", [])]
    if texts:
        columns["value"] = dict(zip(texts, columns.get("value", {}).values(), strict=False))
    return columns


def _other_types(
    was: Mapping[str, Any], now: Mapping[str, Any], tables: Mapping[str, str], operator: str
) -> list[str]:
    """Say which columns have other types than they had.

    Results count only where no column that leads to them has another type.
    """
    changes: dict[tuple[str, str], str] = {}
    for name in [*sorted({*was, *now} - {_RESULT}), _RESULT]:
        if name == _RESULT and changes:
            break
        before, after = was.get(name, {}), now.get(name, {})
        for column in before.keys() & after.keys():
            if before[column] != after[column]:
                table = tables.get(name, operator)
                kinds = f"was {before[column]} and is now {after[column]}"
                changes[table, column] = f"column {column} of {table} {kinds}"
    return sorted(changes.values())


def _columns(kind: Any) -> dict[str, str]:
    """The columns and their types, if it is a struct's type."""
    if not isinstance(kind, dict) or kind.get("type") != "struct":
        return {}
    return {field.name: field.dataType.simpleString() for field in kept_type(kind)}
