"""fkjoin, alone or beside other engines in turn, on one workload file.

    python -m benchmarks.compare [--peers FOLDER] [--rounds 3] [--right 100000 --left 500000 --updates 200000]

FOLDER has the harnesses of the peers.  A peer is run if its Python is known: the environment variable PATHWAY_PYTHON or
FLINK_PYTHON, or FOLDER/venv-pathway, FOLDER/venv-flink.  Every run of fkjoin is checked against a batch join.  Prints a line
per run, then minimum, median and maximum, and fkjoin's ratio to each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import workload as workloads

RATE = "inputs_per_s_2_3"


def peer_commands(peers: Path, workload: Path) -> dict[str, list[str]]:
    """What to run for each peer that is installed."""
    options = {"pathway": ["--input", "python", "--out", "/dev/null"], "flink": ["--backend", "rocksdb"]}
    found: dict[str, list[str]] = {}
    for name, arguments in options.items():
        given = os.environ.get(f"{name.upper()}_PYTHON")
        python = Path(given) if given else peers / f"venv-{name}" / "bin" / "python"
        if python.exists():
            found[name] = [str(python), str(peers / f"{name}_peer.py"), str(workload), *arguments]
    return found


def commands(peers: Path | None, workload: Path, result: Path, batch: int) -> dict[str, list[str]]:
    """What to run for each engine."""
    here = [sys.executable, "-m", "benchmarks.fk_join", str(workload), "--out", str(result), "--batch", str(batch)]
    return {"fkjoin": here, **(peer_commands(peers, workload) if peers is not None else {})}


def measure(name: str, command: list[str], work: Path) -> dict[str, object]:
    """Run one engine; the JSON object of its last line."""
    environment = os.environ | {"PATHWAY_THREADS": "2"}
    place = Path.cwd() if name == "fkjoin" else work
    if name == "pathway":
        command = [*command, "--work", str(work / "pathway")]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        raise SystemExit(f"{name} failed with status {run.returncode}:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return dict(json.loads(lines[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the harnesses of other engines")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000)
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        work = Path(folder)
        workload, result = work / "workload.jsonl", work / "result.jsonl"
        workloads.write(workload, given.right, given.left, given.updates)
        for number in range(given.rounds):
            for name, command in commands(given.peers, workload, result, given.batch).items():
                found = measure(name, command, work)
                rates.setdefault(name, []).append(float(str(found[RATE])))
                print(json.dumps({"round": number + 1, **found}), flush=True)
                if name == "fkjoin" and (wrong := workloads.wrong_keys(workload, result)):
                    raise SystemExit(f"fkjoin's result differs from the batch join in {wrong} keys")
    for name, all_of in rates.items():
        low, middle, high = min(all_of), statistics.median(all_of), max(all_of)
        ratio = statistics.median(rates["fkjoin"]) / middle
        print(f"{name:8} inputs/s  min {low:9,.0f}  median {middle:9,.0f}  max {high:9,.0f}   fkjoin is {ratio:.2f} x")


if __name__ == "__main__":
    main()
