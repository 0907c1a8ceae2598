"""Matrices of tests: whole in ``make faults``, in other runs a sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

EVERY = bool(os.environ.get("FKJOIN_EVERY_FAULT"))
"""Set by ``make faults``, which runs the tests marked ``faults``: matrices and laws, of which other runs try a sample."""

_T = TypeVar("_T")


def sampled(every: Sequence[_T], sample: Sequence[_T]) -> Sequence[_T]:
    """What of a matrix is to be tried."""
    return every if EVERY else sample


def examples(many: int) -> int:
    """How many examples of a law are to be tried: half as many where a sample is."""
    return many if EVERY else many // 2
