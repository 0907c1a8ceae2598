"""Golden texts of plans with the code at hand: ``python -m tests.support.plans.write [NAME…]``, by default of all."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from fkjoin import Table, session
from tests.support.places import ROOT
from tests.support.plans.probe import Text, has_verdicts, quick, rules, told
from tests.support.plans.topologies import TOPOLOGIES, Sources, Topologies, Topology
from tests.support.sessions import small

GOLDEN = ROOT / "tests" / "golden" / "plans"


class Plans:
    """The plans of topologies under ``folder``.

    ``sources``: make the sources, once for each choice of rules; ``hidden``: what else of a machine is in texts, and its name.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        sources: Callable[[dict[str, Table]], Sources] | None = None,
        hidden: Mapping[str, str] | None = None,
    ) -> None:
        self._spark, self._folder = spark, folder
        self._sources = sources or (lambda read: Sources(spark, folder, read))
        self._hidden = {str(folder): "FOLDER", **(hidden or {})}
        self._made: dict[str, Sources] = {}
        self._read: dict[str, Table] = {}

    def text(self, topology: Topology, *, every_choice: bool = True, no_rules: bool = True) -> str:
        """The text of a topology's plan with all rules.

        ``every_choice``: also without those that it names, and, if any are for it and ``no_rules``, with none.
        """
        text = Text()
        choices = ["all rules", *(f"without {rule}" for rule in topology.without), "no rules"]
        for choice in choices if no_rules else choices[:-1]:
            with rules(self._spark, choice), quick(), text.under(choice):
                if choice not in self._made:
                    self._made[choice] = self._sources(self._read)
                built = topology.build(self._made[choice])
                told(built, text, self._folder, whole=choice in ("all rules", "no rules"))
            if not every_choice or not has_verdicts(built):
                break
        found = "\n".join(text.lines) + "\n"
        for what, name in self._hidden.items():
            found = found.replace(what, name)
        return found


def write(plans: Plans, topologies: Topologies, golden: Path, *names: str) -> None:
    """Write the texts of the topologies of those names, by default of all; texts of none are removed."""
    golden.mkdir(exist_ok=True)
    for name in names or topologies.known:
        (golden / f"{name}.txt").write_text(plans.text(topologies.known[name]))
    for path in golden.glob("*.txt"):
        if path.stem not in topologies.known:
            path.unlink()


def main(*names: str) -> None:
    spark = session("fkjoin plans", master="local[2]", ui_enabled="false")
    with tempfile.TemporaryDirectory() as folder:
        small(spark, Path(folder), partitions=2)
        write(Plans(spark, Path(folder)), TOPOLOGIES, GOLDEN, *names)


if __name__ == "__main__":
    main(*sys.argv[1:])
