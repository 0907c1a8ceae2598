"""``fkjoin run`` that may crash anywhere: ``python -m integration.faults.job run JOB.toml``."""

from __future__ import annotations

import fkjoin.lowering.foreign_keys
import fkjoin.lowering.multi_join
import fkjoin.spark.on_spark
from fkjoin.cli.main import main
from integration.faults.victims import Packing, Processor

fkjoin.spark.on_spark.StageProcessor = Processor  # type: ignore[misc]
fkjoin.lowering.foreign_keys.PackChanges = fkjoin.lowering.multi_join.PackChanges = Packing  # type: ignore[misc]
main()
