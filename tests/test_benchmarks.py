"""The comparison with other engines: what it prints and draws. How fast anything is, is no test's affair."""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

from benchmarks.compare import Summary, report
from benchmarks.memory import Footprint


def test_a_summary_has_medians_and_ratios_and_a_picture() -> None:
    runs = [{"inputs_per_s_2_3": rate, "peak_mib": 100 + rate, "cpu_s": 8.0} for rate in (30, 10, 20)]
    ours = Summary.of("fkjoin", runs, 0.8)
    other = Summary("<other>", [5.0, 40.0, 8.0], 900.0, 4.0)
    assert (ours.rates, ours.memory_mib, ours.processor_s) == ([30.0, 10.0, 20.0], 120.0, 10.0)
    assert "min        10  median        20  max        30" in ours.line(ours)
    assert other.line(ours).endswith("fkjoin is 2.50 x")
    beside = Summary("third", [5.0])
    assert beside.line(ours) == "third         inputs/s  min         5  median         5  max         5   fkjoin is 4.00 x"
    page = report([ours, other], [ours, beside], "a & b")
    charts = [ElementTree.fromstring(f"<svg{part.split('</svg>')[0]}</svg>") for part in page.split("<svg")[1:]]
    assert [[text.text for text in chart.iter("text")] for chart in charts] == [
        ["fkjoin", "20", "<other>", "8"],
        ["fkjoin", "20", "third", "5"],
        ["fkjoin", "120", "<other>", "900"],
        ["fkjoin", "10", "<other>", "4"],
    ]
    widths = [float(bar.get("width") or 0) for bar in charts[0].iter("rect") if bar.get("height") == "26" and bar.get("fill")]
    assert widths == [250.0, 100.0]
    assert "a &amp; b" in page


def test_a_footprint_counts_all_processes_of_a_tree() -> None:
    script = """
import os, sys, time
data, end = bytearray(80 << 20), time.process_time() + 0.4
while time.process_time() < end:
    pass
os.fork()
print(flush=True)
sys.stdin.read()
"""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"
    tree = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    footprint = Footprint(tree.pid)
    footprint.start()
    assert tree.stdout is not None
    tree.stdout.readline()
    tree.stdout.readline()
    time.sleep(0.9)  # until all are seen twice
    found = footprint.stop()
    tree.communicate()
    assert 80 <= found.pss_mib < 160 <= found.rss_mib < 400  # the two after the fork share what was there before it
    assert found.cpu_s >= 0.4
