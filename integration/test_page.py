"""The page of a running job, in a real browser, and its metrics as Prometheus reads them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.test_job import GOOD, job
from tests.test_spark_engine import write_lines

SUBSCRIBERS = 1_200


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of the page of a job that is running, with a batch that has a hot key."""
    orders = [{"id": number, "customer": "Ada & <b>", "amount": 1, "lsn": number, "op": "u"} for number in range(SUBSCRIBERS)]
    write_lines(tmp_path / "orders", "1", orders)
    write_lines(tmp_path / "customers", "1", [{"customer": "Ada & <b>", "name": "Ada", "lsn": 1}])
    path = job(tmp_path, GOOD.replace('trigger = "available-now"', 'trigger = "1 second"'))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "fkjoin.cli",
        "run",
        str(path),
        "--ui",
        str(port),
        "--spark-log",
        str(tmp_path / "spark.log"),
    ]
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    here = f"http://127.0.0.1:{port}/"
    try:
        wait_until(here, process, lambda query: query["totals"]["joined"]["out"] == SUBSCRIBERS)
        write_lines(tmp_path / "customers", "2", [{"customer": "Ada & <b>", "name": "Grace", "lsn": 2}])
        wait_until(here, process, lambda query: query["batches"] == 2)
        assert f"{here} shows the job" in (tmp_path / "out.txt").read_text()
        yield here
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_until(address: str, process: subprocess.Popen[bytes], there: Any) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "the job has ended"
        with contextlib.suppress(urllib.error.URLError, KeyError):
            query = json.loads(read(f"{address}status.json"))["queries"]["sink-out"]
            if there(query):
                return
        time.sleep(0.3)
    raise AssertionError("the job did not come to it within two minutes")


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_running_job_can_be_watched(address: str, browser: str) -> None:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom", address]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "<title>orders · fkjoin</title>" in page
    assert "sink-out: batch 1" in page
    assert re.search(r"<svg[^>]*>.*fk_join joined.*</svg>", page, re.DOTALL)
    for words in ("left-in", f"{SUBSCRIBERS:,}", "answers in a batch", "rows, about", "inputs/s"):
        assert words in page, words
    assert '<td>"Ada &amp; &lt;b&gt;"</td>' in page, "the hot key, as text"

    families = {family.name: family for family in text_string_to_metric_families(read(f"{address}metrics"))}
    values = {
        (name, *sorted(sample.labels.values())): sample.value for name, family in families.items() for sample in family.samples
    }
    assert values["fkjoin_out", "joined", "sink-out"] == 2 * SUBSCRIBERS
    assert values["fkjoin_left_in", "joined", "sink-out"] == SUBSCRIBERS
    assert values["fkjoin_fan_out_max", "joined", "sink-out"] == SUBSCRIBERS
    assert values["fkjoin_batches", "sink-out"] == 2
    assert values["fkjoin_state_bytes", "joined", "sink-out"] > 20 * SUBSCRIBERS
    assert {values["fkjoin_stage_seconds", "joined", "sink-out", stage] > 0 for stage in ("subscription",)} == {True}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(f"{address}nothing")
