"""The page of a running job, in a real browser, and its metrics as Prometheus reads them."""

from __future__ import annotations

import contextlib
import json
import os
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

from fkjoin.jobs.web import served
from fkjoin.metrics import Metrics
from fkjoin.metrics.server import Access
from fkjoin.plan.describe.steps import Step
from tests.support.job_files import GOOD, job
from tests.support.progress import progress
from tests.support.queries import write_lines

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
        "fkjoin",
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


class Tab:
    """A page in a browser, in which expressions of JavaScript are evaluated (Chrome's DevTools protocol, over pipes)."""

    def __init__(self, browser: str) -> None:
        (to_read, self._write), (self._read, to_write) = os.pipe(), os.pipe()
        shell = f'exec "$0" --headless --no-sandbox --disable-gpu --remote-debugging-pipe 3<&{to_read} 4>&{to_write}'
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", shell, browser], pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number = b"", 0
        self._session: dict[str, str] = {}

    def open(self, address: str) -> None:
        target = self._call("Target.createTarget", url=address)["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        until = time.monotonic() + 60
        there = 'location.href !== "about:blank" && document.readyState === "complete"'
        while not self.evaluate(f"{there} && {condition}"):
            assert time.monotonic() < until, f"not so within a minute: {condition}; {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)

    def close(self) -> None:
        os.close(self._write)
        self._process.wait(30)
        os.close(self._read)

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        call = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._read, 1 << 16)
                assert more, "the browser has ended"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]


def test_a_page_with_a_token_asks_for_it(browser: str) -> None:
    metrics = Metrics()
    metrics.take(progress(0), "sink-out")
    tab = Tab(browser)
    submit = """document.getElementById("token").value = "{}"; document.querySelector("#ask button").click()"""
    state = """document.getElementById("state").textContent"""
    with contextlib.closing(tab), served("shop", [], metrics, 0, Access(token="c2VjcmV0")) as address:
        tab.open(address)
        tab.wait(f'{state} === "the job is shown to those that have its token"')
        tab.evaluate(submit.format("wrong"))
        tab.wait(f"""{state} === "this is not the job's token" """)
        tab.evaluate(submit.format("c2VjcmV0"))
        tab.wait(f'{state} === "sink-out: batch 0"')
        assert tab.evaluate("document.title") == "shop · fkjoin"
        assert tab.evaluate("""document.getElementById("ask").hidden""") is True
        assert tab.evaluate("location.href") == address, "the token is in no address"


def test_nothing_but_the_page_itself_runs_in_it(browser: str) -> None:
    """Its picture is styled; what a name brought in from outside would not run (its Content-Security-Policy)."""
    step = Step("source", "orders", "", (), (), ())
    tab = Tab(browser)
    with contextlib.closing(tab), served("shop", [step], Metrics(), 0, Access()) as address:
        tab.open(address)
        tab.wait("document.querySelector('.title') !== null")
        assert tab.evaluate("getComputedStyle(document.querySelector('.title')).fontWeight") == "600"
        assert tab.evaluate("getComputedStyle(document.querySelector('h1')).margin") == "0px 0px 3.2px"
        tab.evaluate("""document.getElementById("picture").innerHTML = '<img src="data:," onerror="window.ran = 1">'""")
        tab.evaluate("""document.body.append(Object.assign(document.createElement("script"), {text: "window.ran = 2"}))""")
        tab.wait("document.querySelector('img') !== null")
        assert tab.evaluate("window.ran") is None
