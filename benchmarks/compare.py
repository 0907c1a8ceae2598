"""fkjoin, alone or beside other engines in turn, on one workload: of a file, then of topics; and what it does by itself.

    python -m benchmarks.compare [--peers FOLDER] [--rounds 3] [--right 100000 --left 500000 --updates 200000] [--alone]

FOLDER has the harnesses of the peers.  A peer is run if its Python is known: the environment variable PATHWAY_PYTHON or
FLINK_PYTHON, or FOLDER/venv-pathway, FOLDER/venv-flink; from topic to topic Kafka Streams, and fkjoin beside it, if the jars of
Kafka Streams and of a broker are in KAFKA_LIBS or FOLDER/kafka_streams/libs.  Every run of fkjoin is checked against a batch
join.  Then come small batches, restarts, growth and a hot key (``benchmarks.small``, ``restart``, ``endurance``); with --alone
only these.  Prints a line per run, then minimum, median and maximum, fkjoin's ratio to each, and a table of figures; a
page with bars and the table goes to benchmarks/report.html.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import streams
from benchmarks import workload as workloads
from benchmarks.memory import Footprint

RATE = "inputs_per_s_2_3"

ALONE = {
    "small": ["benchmarks.small"],
    "restart": ["benchmarks.restart"],
    "growth": ["benchmarks.endurance", "growth"],
    "hot": ["benchmarks.endurance", "hot"],
}
"""Benchmarks without other engines; the lines that one prints are put together, the later ones over the earlier."""


@dataclass(frozen=True)
class Summary:
    """An engine's runs: inputs a second; and, where they are measured, peak memory (MiB; pages that processes share count once)
    and processor seconds per million inputs, start included.
    """

    name: str
    rates: list[float]
    memory_mib: float | None = None
    processor_s: float | None = None

    @classmethod
    def of(cls, name: str, runs: list[dict[str, Any]], millions: float) -> Summary:
        rates, memory, processor = ([float(run[key]) for run in runs] for key in (RATE, "peak_mib", "cpu_s"))
        return cls(name, rates, statistics.median(memory), statistics.median(processor) / millions)

    def line(self, ours: Summary) -> str:
        low, middle, high = min(self.rates), statistics.median(self.rates), max(self.rates)
        memory = "" if self.memory_mib is None else f"{self.memory_mib:6,.0f} MiB   "
        processor = "" if self.processor_s is None else f"{self.processor_s:5.1f} cpu s per million   "
        return (
            f"{self.name:13} inputs/s  min {low:9,.0f}  median {middle:9,.0f}  max {high:9,.0f}   {memory}{processor}"
            f"fkjoin is {statistics.median(ours.rates) / middle:.2f} x"
        )


Row = tuple[str, str]
"""A line of the table of figures: what, and its figures."""


def compared(what: str, summary: list[Summary]) -> list[Row]:
    """Engines' medians, the range of their runs, and how fkjoin compares."""
    rows = []
    for row in summary:
        beside = statistics.median(summary[0].rates) / statistics.median(row.rates)
        figures = f"{statistics.median(row.rates):,.0f} ({min(row.rates):,.0f} to {max(row.rates):,.0f})"
        rows.append(
            (f"{what}, inputs/s: {row.name}", figures + (f"; fkjoin is {beside:.2f} ×" if row is not summary[0] else ""))
        )
    for row in summary:
        if row.memory_mib is not None and row.processor_s is not None:
            figures = f"{row.memory_mib:,.0f} MiB, {row.processor_s:.0f} s"
            rows.append((f"{what}, peak memory and processor time per million inputs: {row.name}", figures))
    return rows


def by_itself(found: dict[str, dict[str, Any]]) -> list[Row]:
    """The findings of the benchmarks of ``ALONE``."""
    rows: list[Row] = []
    if small := found.get("small"):
        rows.append(
            ("a batch of 1,000 changes", _spread(small["join_s"], "s") + "; Spark's own " + _spread(small["bare_s"], "s"))
        )
        rows.append(("the same, before the JVM has compiled what it runs", f"{small['new_join_s']} s"))
        rows.append(("the first batch of a session", f"{small['first_s']} s"))
    if restart := found.get("restart"):
        rows.append(("a store of 500,000 rows opened again, its index reused", _spread(restart["reused_s"], "s")))
        rows.append(("the same, its index rebuilt from the log", _spread(restart["rebuilt_rows_per_s"], "rows/s")))
    if growth := found.get("growth"):
        for side, (index, log) in growth["index_and_log_bytes_per_row"].items():
            rows.append((f"state of a {side} row, all stages together", f"{index} bytes in indexes, {log} in change logs"))
        rows.append(
            (f"updates/s with {growth['left_rows']:,} left rows, of those with 500,000", f"{growth['last_of_first']} ×")
        )
    if hot := found.get("hot"):
        rows.append((f"a right row with {hot['subscribers']:,} subscribers changes", f"{hot['answers_per_s']:,} answers/s"))
        rows.append(("the same, of those a second with 500,000 subscribers", f"{hot['last_of_first']} ×"))
    return rows


def _spread(values: list[float], unit: str) -> str:
    low, middle, high = values
    return f"{middle:,} {unit} ({low:,} to {high:,})"


def markdown(rows: Sequence[Row]) -> str:
    """The table of figures, as Markdown."""
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {figures} |" for what, figures in rows)])


def report(files: list[Summary], topics: list[Summary], workload: str, rows: Sequence[Row] = ()) -> str:
    """A page with bars, the median of each engine's runs, the runs as ticks; and a table of ``rows``."""
    charts = [
        ("Inputs a second, file to Parquet, phases 2 and 3", [(row.name, row.rates) for row in files]),
        ("Inputs a second, topic to topic, phases 2 and 3", [(row.name, row.rates) for row in topics]),
        ("Peak memory of all processes, MiB", [(row.name, [row.memory_mib]) for row in files if row.memory_mib is not None]),
        (
            "Processor seconds per million inputs, start included",
            [(row.name, [row.processor_s]) for row in files if row.processor_s is not None],
        ),
    ]
    body = "".join(f"<h2>{html.escape(title)}</h2>{_bars(rows)}" for title, rows in charts if rows)
    style = "body{font:16px sans-serif;margin:2em;color:#222}text{font:14px sans-serif}"
    head = f"<title>fkjoin beside its peers</title><style>{style}</style>"
    cells = "".join(f"<tr><td>{html.escape(what)}<td>{html.escape(figures)}" for what, figures in rows)
    title = f"<h1>fkjoin beside its peers</h1><p>{html.escape(workload)}</p>"
    return f"<!doctype html><meta charset=utf-8>{head}{title}{body}<table>{cells}</table>\n"


def _bars(rows: list[tuple[str, list[float]]]) -> str:
    top = max(max(values) for _, values in rows)
    made = []
    for place, (name, values) in enumerate(rows):
        y, middle = 34 * place, statistics.median(values)
        color = "#2a6f97" if name == "fkjoin" else "#a9a9a9"
        made.append(f'<text x="0" y="{y + 18}">{html.escape(name)}</text>')
        made.append(f'<rect x="110" y="{y}" width="{500 * middle / top:.0f}" height="26" fill="{color}"/>')
        made.append(f'<text x="{120 + 500 * max(values) / top:.0f}" y="{y + 18}">{middle:,.0f}</text>')
        made += [f'<rect x="{109 + 500 * value / top:.0f}" y="{y}" width="2" height="26"/>' for value in values]
    return f'<svg width="700" height="{34 * len(rows)}" role="img">{"".join(made)}</svg>'


def peer_commands(peers: Path, workload: Path) -> dict[str, list[str]]:
    """The commands of the peers that are installed."""
    options = {"pathway": ["--input", "python", "--out", "/dev/null"], "flink": ["--backend", "rocksdb"]}
    found: dict[str, list[str]] = {}
    for name, arguments in options.items():
        given = os.environ.get(f"{name.upper()}_PYTHON")
        python = Path(given) if given else peers / f"venv-{name}" / "bin" / "python"
        if python.exists():
            found[name] = [str(python), str(peers / f"{name}_peer.py"), str(workload), *arguments]
    return found


def commands(peers: Path | None, workload: Path, result: Path, batch: int) -> dict[str, list[str]]:
    """The command of each engine."""
    here = [sys.executable, "-m", "benchmarks.fk_join", str(workload), "--out", str(result), "--batch", str(batch)]
    return {"fkjoin": here, **(peer_commands(peers, workload) if peers is not None else {})}


def measure(name: str, command: list[str], work: Path) -> dict[str, Any]:
    """Run one engine; the JSON object of its last line."""
    environment = os.environ | {"PATHWAY_THREADS": "2"}
    place = Path.cwd() if name == "fkjoin" else work
    if name == "pathway":
        command = [*command, "--work", str(work / "pathway")]
    with (work / "errors").open("w+") as errors:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=place)
        # Who says itself what it took, until its last batch and without the comparison of its result, is not watched twice.
        footprint = None if name == "fkjoin" else Footprint(run.pid)
        if footprint is not None:
            footprint.start()
        output, _ = run.communicate()
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if run.returncode or not lines:
            errors.seek(0)
            raise SystemExit(f"{name} failed with status {run.returncode}:\n{output[-2000:]}\n{errors.read()[-4000:]}")
    return {**(footprint.stop().named() if footprint is not None else {}), **json.loads(lines[-1])}


SINK_COLUMNS = 'OUTCOLS = "'
QUERY = 'Q = "INSERT INTO S '
"""Beginnings of lines of FOLDER/flink_peer.py that another query replaces."""


def flink_command(
    peers: Path | None, workload: Path, work: Path, lines: dict[str, str], options: list[str]
) -> dict[str, list[str]]:
    """The command of Flink, if it is there: its harness with other lines, by the beginnings of those that they replace."""
    if peers is None or "flink" not in (found := peer_commands(peers, workload)):
        return {}
    harness = (peers / "flink_peer.py").read_text().splitlines()
    for begin, line in lines.items():
        (place,) = [number for number, old in enumerate(harness) if old.startswith(begin)]
        harness[place] = line
    (work / "flink_peer.py").write_text("\n".join(harness))
    shutil.copy(peers / "rss.py", work / "rss.py")
    python, _, *rest = found["flink"]
    return {"flink": [python, str(work / "flink_peer.py"), *rest, *options]}


Runs = dict[str, list[dict[str, Any]]]
"""The lines of each engine's runs."""


def in_turn(
    engines: dict[str, list[str]], work: Path, rounds: int, check: Callable[[str], None] | None = None, **about: Any
) -> Runs:
    """Run the engines in turn, and print a line for each run, with ``about`` in it; ``check`` is called after each."""
    runs: Runs = {}
    for number in range(rounds):
        for name, command in engines.items():
            found = measure(name, command, work)
            runs.setdefault(name, []).append(found)
            print(json.dumps({"round": number + 1, **about, **found}), flush=True)
            if check is not None:
                check(name)
    return runs


def summary_lines(runs: Runs, millions: float) -> list[str]:
    """A line for each engine; the first is compared with all."""
    rows = [Summary.of(name, all_of, millions) for name, all_of in runs.items()]
    return [row.line(rows[0]) for row in rows]


def of_files(peers: Path | None, work: Path, rounds: int, batch: int, sizes: dict[str, int]) -> list[Summary]:
    """From a file to Parquet, and the peers' own files."""
    workload, result = work / "workload.jsonl", work / "result.jsonl"
    workloads.write(workload, **sizes)

    def check(name: str) -> None:
        if name == "fkjoin" and (wrong := workloads.wrong_keys(workload, result)):
            raise SystemExit(f"fkjoin's result differs from the batch join in {wrong} keys")

    runs = in_turn(commands(peers, workload, result, batch), work, rounds, check)
    millions = sum(sizes.values()) / 1e6
    return [Summary.of(name, all_of, millions) for name, all_of in runs.items()]


def of_topics(peers: Path, work: Path, rounds: int, sizes: dict[str, int]) -> list[Summary]:
    """From topic to topic; nothing where there is no Kafka Streams to compare with."""
    if not list(streams.jars_of(peers).glob("kafka-streams-*.jar")):
        return []
    harness = streams.Harness(peers, work, [f"--{name}={size}" for name, size in sizes.items()])
    rates: dict[str, list[float]] = {name: [] for name in harness.engines}
    try:
        for number in range(rounds):
            for name, run in harness.engines.items():
                found = run()
                rates[name].append(found[streams.RATE])
                print(json.dumps({"round": number + 1, **found}), flush=True)
    finally:
        harness.stop()
    return [Summary(name, all_of) for name, all_of in rates.items()]


def measured_alone(name: str, work: Path) -> dict[str, Any]:
    """The lines that one of ``ALONE`` prints."""
    with (work / "errors").open("w+") as errors:
        run = subprocess.run(
            [sys.executable, "-m", *ALONE[name]], stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
        if run.returncode:
            errors.seek(0)
            raise SystemExit(f"{name} failed with status {run.returncode}:\n{run.stdout[-2000:]}\n{errors.read()[-4000:]}")
    print(run.stdout, end="", flush=True)
    found: dict[str, Any] = {}
    for line in run.stdout.splitlines():
        found |= json.loads(line) if line.startswith("{") else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the harnesses of other engines")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500_000)
    parser.add_argument("--alone", action="store_true", help="no comparison: small batches, restarts, growth, a hot key")
    for size, default in (("right", 100_000), ("left", 500_000), ("updates", 200_000)):
        parser.add_argument(f"--{size}", type=int, default=default)
    given = parser.parse_args()
    sizes = {name: getattr(given, name) for name in ("right", "left", "updates")}
    files: list[Summary] = []
    topics: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="fkjoin-compare-") as folder:
        if not given.alone:
            files = of_files(given.peers, Path(folder), given.rounds, given.batch, sizes)
            topics = of_topics(given.peers, Path(folder), given.rounds, sizes) if given.peers is not None else []
        found = {name: measured_alone(name, Path(folder)) for name in ALONE}
    for title, summary in (("file to Parquet", files), ("topic to topic", topics)):
        for row in summary:
            print(f"{title}: {row.line(summary[0])}")
    rows = [*compared("files", files), *compared("topics", topics), *by_itself(found)]
    print(markdown(rows))
    page = Path(__file__).with_name("report.html")
    page.write_text(
        report(files, topics, "{right:,} right rows, {left:,} left rows, {updates:,} updates".format(**sizes), rows)
    )
    print(f"see {page}")


if __name__ == "__main__":
    main()
