"""Laws: property tests whose examples are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings

from tests.support.sampling import examples


def law(many: int, *strategies: Any, **named: Any) -> Callable[[Any], Any]:
    """Try a test with so many examples, or a sixth of them where a sample of a matrix would do."""

    def tried(test: Any) -> Any:
        return settings(max_examples=examples(many))(given(*strategies, **named)(test))

    return tried
