"""``fkjoin run`` that may crash anywhere: ``python -m integration.faults.job run JOB.toml``."""

from __future__ import annotations

from fkjoin.cli.main import main
from integration.faults.victims import take_the_place_of_the_engines

take_the_place_of_the_engines()
main()
