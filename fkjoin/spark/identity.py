"""Facts that bind a checkpoint, stored with every bucket in a form that reads well in an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ABOUT = "about"
_HOME = "home"


def identity_text(facts: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """``facts`` must stay the same as long as the checkpoint lives; ``about`` is only kept for tools that read the state."""
    return json.dumps({**facts, _ABOUT: about}, sort_keys=True)


def read_identity(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and about, as ``identity_text`` was given them."""
    facts = json.loads(data or b"{}")
    return facts, facts.pop(_ABOUT, {})


def with_home(identity: str, home: str) -> str:
    """The identity text, and the name of the folder that a bucket's index has to itself; ``home`` empty: none."""
    facts, about = read_identity(identity.encode())
    return identity_text(facts, {**about, **({_HOME: home} if home else {})})


def bucket_folder(bucket: int, home: str) -> str:
    """Under its stage's folder, the folder of a bucket's index: of two operators of the same name each has its own."""
    return f"{bucket}-{home}" if home else str(bucket)


def home_of(identity: bytes) -> str:
    """The home that a stored identity names; empty for one of before there were homes."""
    return str(read_identity(identity)[1].get(_HOME, ""))


def difference(kept: bytes, now: bytes) -> str | None:
    """Say how the facts of a checkpoint differ from a job's; None if they do not.

    A fact that only one of them has counts as null: a release may add one without refusing older checkpoints.
    """
    (was, _), (is_, _) = read_identity(kept), read_identity(now)
    names = [name for name in sorted({*was, *is_}) if was.get(name) != is_.get(name)]
    changes = [f"{name} was {json.dumps(was.get(name))} and is now {json.dumps(is_.get(name))}" for name in names]
    where = f"{is_.get('join')}-{is_.get('stage')}"
    if names and {"left", "right"}.issuperset(names):  # of rows alone: the same join, perhaps under other rules
        changes.append("if the tables are the same, a rule of the optimizer is not: set spark.fkjoin.optimizer.excludedRules")
    return f"of store {where}, {'; '.join(changes)}" if changes else None
