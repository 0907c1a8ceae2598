"""Texts of keys in messages: ``fkjoin state get`` takes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

_json = functools.partial(json.dumps, ensure_ascii=False, default=str)

NOT_PLAIN = '"', "["
"""Beginnings of texts that would be read as JSON."""


def key_text(key: Any) -> str:
    """Write a key as people give it: the one column's value, several as a JSON list.

    Parameters
    ----------
    key
        The columns by name or in their order; or the value of the one column.
    """
    values = list(key.values()) if isinstance(key, Mapping) else list(key) if isinstance(key, tuple) else [key]
    if len(values) != 1:
        return _json(values)
    text = _json(values[0])
    plain = json.loads(text) if text.startswith('"') else text
    return _json([plain]) if plain.startswith(NOT_PLAIN) and isinstance(values[0], str) else plain
