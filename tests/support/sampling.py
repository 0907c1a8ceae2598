"""Matrices of tests: whole in ``make faults``, in other runs a sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

EVERY = bool(os.environ.get("FKJOIN_EVERY_FAULT"))
"""Set by ``make faults``, which runs the tests marked ``faults``: matrices and laws, of which other runs try a sample."""

_T = TypeVar("_T")


def sampled(every: Sequence[_T], sample: Sequence[_T]) -> Sequence[_T]:
    """The part of a matrix that is to be tried."""
    return every if EVERY else sample


def examples(many: int) -> int:
    """The number of a law's examples to try: a sixth of them where a sample of a matrix would do."""
    return many if EVERY else many // 6
