"""The page of a running job, in a real browser, and its metrics as Prometheus reads them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fkjoin.checkpoint.progress import QueryPhase
from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, served
from fkjoin.metrics.report import Activity, Mode
from fkjoin.metrics.server import ClientAccess
from fkjoin.plan.describe.steps import Step, StepStage
from fkjoin.sinks import counts
from integration.machine import Process, free_port
from integration.tab import Tab
from tests.support.job_files import GOOD, job
from tests.support.progress import progress
from tests.support.queries import write_lines

SUBSCRIBERS = 1_200


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of the page of a running job, with a batch that has a hot key."""
    orders = [{"id": number, "customer": "Ada & <b>", "amount": 1, "lsn": number, "op": "u"} for number in range(SUBSCRIBERS)]
    write_lines(tmp_path / "orders", "1", orders)
    write_lines(tmp_path / "customers", "1", [{"customer": "Ada & <b>", "name": "Ada", "lsn": 1}])
    path = job(tmp_path, GOOD.replace('trigger = "available-now"', 'trigger = "1 second"'))
    port = free_port()
    here = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "fkjoin", "run", path, "--ui", str(port), "--spark-log", tmp_path / "spark.log"]
    process = Process(tmp_path, command)
    try:
        process.wait_for("each order's row", lambda: done_at(here)[1] == SUBSCRIBERS)
        write_lines(tmp_path / "customers", "2", [{"customer": "Ada & <b>", "name": "Grace", "lsn": 2}])
        process.wait_for("a second batch", lambda: done_at(here)[0] == 2)
        assert f"{here} shows the job" in (tmp_path / "out.txt").read_text()
        yield here
        assert process.terminate() == 0
    finally:
        process.kill()


def done_at(address: str) -> tuple[int, int]:
    """The number of batches that the page's query has had by now, and of rows that came out of its join."""
    try:
        query = json.loads(read(f"{address}status.json"))["queries"]["sink-out"]
        return query["batches"], query["totals"]["joined"]["out"]
    except (OSError, KeyError):  # the page, or the query, is not there yet
        return 0, 0


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def tab(browser: str) -> Iterator[Tab]:
    made = Tab(browser)
    yield made
    made.close()


def test_a_running_job_can_be_watched(address: str, tab: Tab) -> None:
    tab.open(address)
    tab.wait_for("hot", "Ada")
    assert tab.evaluate("document.title").startswith("orders · ")
    tab.wait_for("state", "Idle")
    text = tab.evaluate("document.body.innerText")
    for words in ("#1, ", "files have no lag", "1,202 rows since the start", "All numbers", "source customers"):
        assert words in text, words
    assert tab.each("#hot td", "it.innerHTML")[0] == '"Ada &amp; &lt;b&gt;"', "the hot key, as text"
    tab.each('[data-step="fk_join joined"]', 'it.dispatchEvent(new MouseEvent("click", {bubbles: true}))')
    tab.shows("detail", "Changes of left rows", "Results", f"{2 * SUBSCRIBERS:,}", "subscription")
    tab.shows("detail", "Rows and keys", "foreign key")
    assert tab.complaints == []

    samples = [sample for family in text_string_to_metric_families(read(f"{address}metrics")) for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}
    assert values["fkjoin_out_total", "joined", "sink-out"] == 2 * SUBSCRIBERS
    assert values["fkjoin_left_in_total", "joined", "sink-out"] == SUBSCRIBERS
    assert values["fkjoin_fan_out_max", "joined", "sink-out"] == SUBSCRIBERS
    assert values["fkjoin_state_bytes", "joined", "sink-out"] > 20 * SUBSCRIBERS


STAGE = StepStage(
    *("subscription", "foreign key", "joined-subscription"),
    readers=("out",),
    counted_as=("joined", "joined-answers-for-totals", "joined-answers-for-names"),
    subtopologies=(2,),
)
SHOP = [
    Step("source", "orders", "", (), (("from", "Kafka topic orders"),), (), 0),
    Step("source", "customers", "", (), (), (), 1),
    Step("fk_join", "joined", "inner", (("left", "orders"), ("right", "customers")), (("foreign key", "customer"),), (STAGE,)),
    Step("sink", "out", "postgres shop.out", (("of", "joined"),), (), ()),
]


def progress_at(time_s: float, batch: int = 0, **state: Any) -> dict[str, Any]:
    """The progress of a batch that began at a time of this day."""
    about: dict[str, Any] = json.loads(progress(batch, **state).json)
    moment = datetime.fromtimestamp(time_s, timezone.utc)
    return about | {"timestamp": moment.isoformat(timespec="milliseconds")}


def starting() -> Metrics:
    """Metrics of a query that has had no batch."""
    metrics = Metrics()
    metrics._start("sink-out")
    return metrics


def busy(**state: Any) -> Metrics:
    """Metrics of a query that has had a batch each second, up to this moment."""
    metrics, first = starting(), time.time() - 20
    for batch in range(20):
        metrics.take_json(json.dumps(progress_at(first + batch, batch, **state)), "sink-out")
    return metrics


def served_shop(metrics: Metrics, steps: list[Step] = SHOP, **access: Any) -> contextlib.AbstractContextManager[str]:
    """The address of a page of these metrics, which is served meanwhile."""
    return served(ShownJob("shop", steps), metrics, 0, ClientAccess(**access), "--ui")


@contextlib.contextmanager
def shown(tab: Tab, metrics: Metrics, steps: list[Step] = SHOP, **look: Any) -> Iterator[None]:
    """Show the page in the tab, and assert in the end that it complained of nothing and asked its own server only."""
    with served_shop(metrics, steps) as address:
        tab.open(address, **look)
        tab.wait("""!document.getElementById("main").hidden""")
        yield
        assert tab.complaints == []
        assert {request.startswith(address) for request in tab.requests if not request.startswith("data:")} == {True}


@pytest.mark.parametrize(("width", "dark", "tiles"), [(1280, False, 1), (400, True, 3)])
def test_the_page_fits_in_wide_and_narrow_windows_light_and_dark(tab: Tab, width: int, dark: bool, tiles: int) -> None:
    """In a window of another scheme, charts are drawn anew."""
    swatch = """getComputedStyle(document.querySelector(".swatch")).backgroundColor"""
    numbers = "match(/\\d+/g).map(Number)"
    with shown(tab, busy(), width=width, dark=dark):
        tab.wait("""document.querySelectorAll(".uplot canvas").length === 6""")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, "it does not scroll sideways"
        assert len(set(tab.each(".tile", "it.offsetTop"))) == tiles
        (channels,) = tab.each("body", f"getComputedStyle(it).backgroundColor.{numbers}")
        ink = tab.each("#picture text", f"getComputedStyle(it).fill.{numbers}")[0]
        assert (max(channels) < 60) == dark
        assert (min(ink) > 120) == dark, "letters of the picture, too"
        charts = tab.each(".field", "it.getAttribute('aria-label')")
        assert charts[:2] == ["Left to read: records 14", "Rows a second: rows read 100, results of joined 50"]
        names = [chart.partition(":")[0] for chart in charts[2:]]
        assert names[:2] == ["Delay, and time of batches", "Each batch, by step"]
        assert names[2:] == ["Work in each batch, by stage", "Growth of state"]
        assert charts[4] == "Work in each batch, by stage: joined: subscription 250 ms, joined: rekey 100 ms"
        before = tab.evaluate(swatch)
        tab.scheme("light" if dark else "dark")
        tab.wait(f"{swatch} !== '{before}'")


def test_a_box_of_the_map_is_chosen_with_the_keyboard_and_the_headline_says_how_the_job_is(tab: Tab) -> None:
    """The rates on the map's arrows change meanwhile, and the focus stays.  What is below the headline says why."""
    with shown(tab, busy(**{"hot-key": '"C-1"', "fan-out-max": 2_000})):
        for _ in range(30):
            tab.press("Tab")
            if tab.evaluate("document.activeElement.dataset.step") == "fk_join joined":
                break
        rates = """[...document.querySelectorAll("text.rate")].map(text => text.textContent).join()"""
        before = tab.evaluate(rates)
        tab.evaluate("window.box = document.activeElement")
        tab.wait(f"{rates} !== '{before}'")
        assert tab.evaluate("document.activeElement === window.box"), "a click that begins on it ends on it"
        width = tab.evaluate("getComputedStyle(document.activeElement.querySelector('.box')).strokeWidth")
        assert width == "2.5px", "it is seen"
        tab.press("Enter")
        assert tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        tab.shows("detail", "Changes of left rows")
        titles = tab.each("#detail td span", "it.title")
        assert titles[0] == "fkjoin_left_in_total: changes of the left table that reached the join"
        tab.press("Enter")
        assert tab.text("detail") == "", "and it is let go"
        assert tab.text("state") == "Healthy"
        tab.shows("words", "100 rows read a second")
        tab.shows("hot", '"C-1"', "joiner")  # what to do
        counts.count("postgres shop.out", counts.LEFT_OUT, 1, ["id = 7: <b>too long</b>"])
        counts.count("postgres shop.out", counts.REPEATED, reasons=["connection refused"])
        tab.wait_for("state", "Failing")
        tab.shows("words", "connection refused")
        tab.shows("letters", "id = 7: <b>too long</b>")


def test_a_page_without_a_batch_says_what_will_be_there(tab: Tab) -> None:
    metrics = starting()
    with shown(tab, metrics, width=400):
        assert tab.text("state") == "Starting"
        empty = [words for words in tab.each(".empty", "it.offsetParent && it.innerText") if words]
        assert len(empty) == 8, "six charts, dead letters, hot keys"
        assert "No batch yet: the curves begin with the first one." in empty[1]
        metrics.take(progress(0), "sink-out")
        tab.wait_for("tiles", "#0")


def test_the_page_of_a_program_lists_its_operators_and_its_queries(tab: Tab) -> None:
    """There is no picture: only the program knows the topology.  Figures are those of the query that is chosen."""
    metrics = busy()
    metrics.take(progress(3), "other")
    metrics._end("other", "ValueError: no number")
    with shown(tab, metrics, []):
        assert tab.text("words") == "other: It has failed: ValueError: no number"
        tab.shows("tiles", "#3")
        tab.each('[data-key="sink-out"]', "it.click()")
        tab.shows("tiles", "#19")
        tab.each('[data-step="joined"]', "it.click()")
        tab.shows("detail", "Changes of left rows")


DRAWN = """(() => {
  const canvas = document.querySelector(".chart:not([hidden]) canvas"), {width, height} = canvas;
  const dots = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  for (let at = 0; at < dots.length; at += 4) if (dots[at] === 37 && dots[at + 1] === 99 && dots[at + 2] === 235) return true;
  return false;
})()"""
"""JavaScript that tells whether the first series of the first chart is in its picture."""


def test_names_are_those_of_tables_and_the_batch_at_work_is_seen(tab: Tab) -> None:
    """Operators of one table are shown as one, results count where they leave it, and a single point is drawn."""
    metrics = starting()
    about = progress_at(time.time() - 2, **{"hot-key": '"C-1"', "fan-out-max": 2_000}) | {"sources": []}
    observed = about["observedMetrics"]
    for prefix in ("fkjoin", "fkjoin-state"):
        observed[f"{prefix}:joined-answers-for-totals"] = observed.pop(f"{prefix}:joined")
        observed[f"{prefix}:joined-answers-for-names"] = observed[f"{prefix}:joined-answers-for-totals"]
    metrics.take_json(json.dumps(about), "sink-out")
    query = metrics._query("sink-out")
    query.activity = Activity(QueryPhase.BATCH, time.time(), tasks=(3, 8))
    with shown(tab, metrics):
        tab.wait_for("now", "3 of 8 tasks")
        tab.shows("now", "started ")
        tab.wait("document.querySelector('.uplot') !== null")
        assert tab.evaluate(DRAWN), "a point through which no line goes"
        labels = ",".join(tab.each(".chart:not([hidden]) .field", "it.getAttribute('aria-label')"))
        assert "answers-for" not in labels
        assert "results of joined 100" in labels, "several readers get the same results"
        assert "joined: subscription 500 ms" in labels, "but each has its work"
        assert "Left to read" not in labels, "no topic: no chart"
        tab.shows("hot", "joined")
        assert "answers-for" not in tab.text("hot")
        query.activity = Activity(QueryPhase.WAITS)
        tab.wait("""!document.getElementById("now").textContent.includes("batch")""")


@pytest.mark.parametrize("why", ["", "query sink-out failed: ValueError: no <b>number</b>"])
def test_a_page_whose_job_has_ended_says_why_and_keeps_what_it_has(tab: Tab, why: str) -> None:
    """The server of a job that fails stays for as long as an open page takes to ask once more."""
    metrics = busy()
    with served_shop(metrics) as address:
        tab.open(address)
        tab.wait("document.querySelector('.tile') !== null")
        if why:
            metrics._turn(Mode.FAILED, why)
    tab.wait("document.body.classList.contains('lost')")
    tab.shows("tiles", "#19")
    if not why:
        assert tab.text("state") == "No answer"
        tab.shows("words", "has ended, or cannot be reached")
        return
    assert tab.text("state") == "Failed"
    assert re.fullmatch(rf"The job ended: it failed after \d.* s: {re.escape(why)}", tab.text("words"))
    assert tab.evaluate("document.title") == "shop · failed · fkjoin"


def test_a_page_with_a_token_asks_for_it(tab: Tab) -> None:
    submit = """document.getElementById("token").value = "{}"; document.querySelector("#ask button").click()"""
    with served_shop(busy(), [], token="c2VjcmV0") as address:
        tab.open(address)
        tab.wait_for("words", "The job is shown to those that have its token.")
        assert tab.each("#main, #ask", "it.hidden") == [False, True]
        tab.evaluate(submit.format("wrong"))
        tab.wait_for("words", "This is not the job's token.")
        tab.evaluate(submit.format("c2VjcmV0"))
        tab.wait_for("tiles", "#19")
        assert tab.each("#main, #ask", "it.hidden") == [True, False]
        assert tab.evaluate("location.href") == address, "the token is in no address"


def test_nothing_but_the_page_itself_runs_in_it(tab: Tab) -> None:
    """The picture is styled, and the page's Content-Security-Policy lets nothing run that a name brings in."""
    with served_shop(Metrics()) as address:
        tab.open(address)
        tab.wait("document.querySelector('.title') !== null")
        assert tab.evaluate("getComputedStyle(document.querySelector('.title')).fontWeight") == "600"
        tab.each("#picture", """it.innerHTML = '<img src="data:," onerror="window.ran = 1">'""")
        tab.evaluate("""document.body.append(Object.assign(document.createElement("script"), {text: "window.ran = 2"}))""")
        tab.wait("document.querySelector('img') !== null")
        assert tab.evaluate("window.ran") is None
