"""What the rows of a group are summed up to, for ``Table.group_by(…).agg(…)``."""

from __future__ import annotations
