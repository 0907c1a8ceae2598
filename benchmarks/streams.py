"""From topic to topic, beside Kafka Streams: one broker, emptied before each run, on the same cores as what is measured.

The harness is the peers' folder ``kafka_streams``: a broker, the workload as records, Kafka Streams without cache, and a batch
join that every output topic is compared with.  Phase 1 is joined first and not timed, phases 2 and 3 are in the topics before
the time is taken: by Kafka Streams from its first record, by fkjoin from the start of its query.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

BOOTSTRAP = "127.0.0.1:19092"
RATE = "inputs_per_s"
_FETCH_JARS = Path(__file__).parent.parent / "docker" / "jars.py"


def jars_of(peers: Path) -> Path:
    """The folder of the jars of Kafka Streams and its broker, if it is there: KAFKA_LIBS, or ``libs`` in the harness."""
    return Path(os.environ.get("KAFKA_LIBS") or peers / "kafka_streams" / "libs").absolute()


class Harness:
    """The scripts of ``peers/kafka_streams``, copied into ``work``: they write beside themselves.

    ``sizes``: the workload's, as its script takes them.  A script that fails ends the program with what was said, and so does a
    result that is not the batch join's.
    """

    def __init__(self, peers: Path, work: Path, sizes: Sequence[str]) -> None:
        self._folder, self._work, self._sizes = work / "kafka_streams", work, list(sizes)
        ours = {"KAFKA_LIBS": jars_of(peers), "PYTHON": sys.executable, "DATA": work / "broker", "STATE": work / "streams"}
        self._environment = os.environ | {name: str(value) for name, value in ours.items()}
        shutil.copytree(peers / "kafka_streams", self._folder, ignore=shutil.ignore_patterns("libs", "build", "data", "state"))
        self.engines = {"fkjoin": self.fkjoin, "kafka streams": self.streams}
        """The figures of a run of each."""

    def stop(self) -> None:
        """Stop the broker."""
        self._run("./broker.sh", "stop")

    def streams(self) -> dict[str, Any]:
        """A run of Kafka Streams; what it says."""
        said = json.loads(self._run("./bench.sh", *self._sizes, "--", "--no-cache").splitlines()[-1])
        return {**said["bench"], **said["verify"]}

    def emptied(self) -> None:
        """Have a broker with empty topics, and no state."""
        for place in ("checkpoint", "streams"):
            shutil.rmtree(self._work / place, ignore_errors=True)
        self._run("./broker.sh", "reset")
        self._run(sys.executable, "load.py", "--create", "customers", "orders", "joined")

    @contextmanager
    def serving(self, engine: str, module: str) -> Iterator[Callable[[], dict[str, Any]]]:
        """Have an engine join the topics as records come; the function ends it, and returns what it says.

        ``module``: what joins them on Spark, until its input ends, given ``--serve BOOTSTRAP FOLDER JARS ENGINE``.
        """
        checkpoint = self._work / "checkpoint"
        command = [sys.executable, "-m", module, "--serve", BOOTSTRAP, str(checkpoint), self._jars(), engine]
        if engine == "kafka streams":
            build, libs = self._folder / "build", f"{self._environment['KAFKA_LIBS']}/*"
            build.mkdir(exist_ok=True)
            self._run("javac", "-nowarn", "-cp", libs, "-d", "build", "Bench.java")
            quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
            command = [
                "java",
                "-Xmx1g",
                quiet,
                "-cp",
                f"{build}:{libs}",
                "Bench",
                "--serve",
                "--no-cache",
                "--state-dir",
                str(self._work / "streams"),
            ]
        with (self._work / "errors").open("w+") as errors:
            run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

            def ended() -> dict[str, Any]:
                said, _ = run.communicate()
                if run.returncode:
                    raise SystemExit(f"{engine} failed:\n{said[-2000:]}\n{Path(errors.name).read_text()[-4000:]}")
                lines = [line for line in said.splitlines() if line.startswith("{")]
                return dict(json.loads(lines[-1])) if lines else {}

            try:
                yield ended
            finally:
                run.kill()
                run.wait()

    def _jars(self) -> str:
        connector = Path(self._run(sys.executable, str(_FETCH_JARS), "connector").strip())
        return ",".join(str(jar) for jar in sorted(connector.glob("*.jar")))

    def fkjoin(self) -> dict[str, Any]:
        """A run of fkjoin; what it says."""
        jars, checkpoint = self._jars(), self._work / "checkpoint"
        self.emptied()
        self._load("1")
        options = ["--kafka", BOOTSTRAP, "--prime", "--folder", str(checkpoint), "--jars", jars]
        with ExitStack() as over:
            errors = over.enter_context((self._work / "errors").open("w+"))
            join = over.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.fk_join", *options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            )
            over.callback(join.kill)
            assert join.stdout is not None
            said = join.stdout.readline()
            if said:
                self._load("23")
                said = join.communicate("\n")[0]
            if join.wait() or not said:
                raise SystemExit(f"fkjoin failed:\n{said[-2000:]}\n{Path(errors.name).read_text()[-4000:]}")
        return {**json.loads(said.splitlines()[-1]), **self._verified()}

    def _load(self, phase: str) -> None:
        """Produce the records of these phases."""
        make = [sys.executable, "workload.py", *self._sizes, "--phase", phase]
        with subprocess.Popen(make, stdout=subprocess.PIPE, cwd=self._folder) as made:
            self._run(sys.executable, "load.py", stdin=made.stdout)
        if made.returncode:
            raise SystemExit(f"workload.py ended with status {made.returncode}")

    def _verified(self) -> dict[str, Any]:
        """Compare the output topic, compacted, with the batch join, which it must be."""
        return dict(json.loads(self._run(sys.executable, "verify.py", *self._sizes).splitlines()[0]))

    def _run(self, *command: str, stdin: Any = subprocess.DEVNULL) -> str:
        """Run one of the scripts; what it prints."""
        run = subprocess.run(
            command, stdin=stdin, capture_output=True, text=True, cwd=self._folder, env=self._environment, check=False
        )
        if run.returncode:
            said = f"{run.stdout[-2000:]}\n{run.stderr[-4000:]}"
            raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}:\n{said}")
        return run.stdout
