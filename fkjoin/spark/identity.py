"""Facts that bind a checkpoint, stored with every bucket in a form that reads well in an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ABOUT = "about"
_HOME = "home"
_TABLES = "tables"
_SETTINGS = {"buckets": "spark.fkjoin.buckets"}
"""Facts that are settings."""


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


def difference(stored: bytes, now: bytes) -> str | None:
    """Say how the facts of a checkpoint differ from a job's; None if they do not.

    A fact that only one of them has counts as null: a release may add one without refusing older
    checkpoints.
    """
    was, is_ = _by_name(stored), _by_name(now)
    names = [name for name in sorted({*was, *is_}) if was.get(name) != is_.get(name)]
    if not names:
        return None
    changes = [_change(name, was.get(name), is_.get(name)) for name in names]
    # Facts of rows alone differ: the same join, perhaps under other rules.
    if {"left", "right", "together"}.issuperset(names):
        changes.append(
            "if the tables are the same, a rule of the optimizer is not: "
            "set spark.fkjoin.optimizer.excludedRules"
        )
    where = f"of store {is_['join']}-{is_['stage']}, " if "join" in is_ else ""
    return f"{where}{'; '.join(changes)}"


def _by_name(identity: bytes) -> dict[str, Any]:
    """The facts of an identity; a fact of a table has the name of both."""
    facts, _ = read_identity(identity)
    tables = facts.get(_TABLES, {})
    facts[_TABLES] = sorted(tables)
    for table, own in tables.items():
        facts |= {f"{name} of {table}": value for name, value in own.items()}
    return facts


def _change(name: str, was: Any, is_: Any) -> str:
    """Say how a fact has changed; of lists, such as columns, only the items that differ."""
    if isinstance(was, list) and isinstance(is_, list):
        gone = [item for item in was if item not in is_]
        new = [item for item in is_ if item not in was]
        if gone or new:
            was, is_ = gone, new
    return f"{_SETTINGS.get(name, name)} was {json.dumps(was)} and is now {json.dumps(is_)}"
