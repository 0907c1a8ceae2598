"""Golden texts of plans with the code at hand: ``python -m tests.support.plans.write [NAME…]``, by default of all."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin import Table, session
from tests.support.places import ROOT
from tests.support.plans.probe import Text, has_verdicts, quick, rules, told
from tests.support.plans.topologies import TOPOLOGIES, Sources, Topology
from tests.support.sessions import small

GOLDEN = ROOT / "tests" / "golden" / "plans"


class Plans:
    """The plans of topologies under ``folder``."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._sources: dict[str, Sources] = {}
        self._read: dict[str, Table] = {}

    def text(self, topology: Topology, *, no_rules: bool = True) -> str:
        """The text of a topology's plan with all rules, without those that it names, and, if any are for it, with none."""
        text = Text()
        choices = ["all rules", *(f"without {rule}" for rule in topology.without), "no rules"]
        for choice in choices if no_rules else choices[:-1]:
            with rules(self._spark, choice), quick(), text.under(choice):
                if choice not in self._sources:
                    self._sources[choice] = Sources(self._spark, self._folder, self._read)
                built = topology.build(self._sources[choice])
                told(built, text, self._folder, whole=choice in ("all rules", "no rules"))
            if not has_verdicts(built):
                break
        return "\n".join([*text.lines, ""]).replace(str(self._folder), "FOLDER")


def main(*names: str) -> None:
    """Write the texts of the topologies of those names, by default of all; texts of none are removed."""
    spark = session("fkjoin plans", master="local[2]", ui_enabled="false")
    with tempfile.TemporaryDirectory() as folder:
        small(spark, Path(folder), buckets=2, partitions=2)
        plans = Plans(spark, Path(folder))
        for name in names or TOPOLOGIES:
            (GOLDEN / f"{name}.txt").write_text(plans.text(TOPOLOGIES[name]))
    for path in GOLDEN.glob("*.txt"):
        if path.stem not in TOPOLOGIES:
            path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
