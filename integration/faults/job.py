"""``fkjoin run`` that may crash anywhere: ``python -m integration.faults.job run JOB.toml``."""

from __future__ import annotations

import fkjoin.foreign_key
import fkjoin.star_join
import fkjoin.stateful
from fkjoin.cli import main
from integration.faults.victims import Packing, Processor

fkjoin.stateful.StageProcessor = Processor  # type: ignore[misc]
fkjoin.foreign_key.PackChanges = fkjoin.star_join.PackChanges = Packing  # type: ignore[misc]
main()
