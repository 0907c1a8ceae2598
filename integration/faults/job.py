"""``fkjoin run`` that may crash anywhere: ``python -m integration.faults.job run JOB.toml``."""

from __future__ import annotations

import fkjoin.join
import fkjoin.stateful
from fkjoin.cli import main
from integration.faults.victims import Packing, Processor

fkjoin.stateful.StageProcessor = Processor  # type: ignore[misc]
fkjoin.join.PackChanges = Packing  # type: ignore[misc]
main()
