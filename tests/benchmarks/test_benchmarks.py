"""The comparison with other engines: what it prints and draws. How fast anything is, is no test's affair."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.compare import Summary, compared, report
from benchmarks.operators import require_same
from benchmarks.queries import QUERIES, dated
from benchmarks.workload import write_phases


def test_a_summary_has_medians_and_ratios_and_a_picture() -> None:
    runs = [{"inputs_per_s_2_3": rate, "peak_mib": 100 + rate, "cpu_s": 8.0} for rate in (30, 10, 20)]
    ours = Summary.of("fkjoin", runs, 0.8)
    other = Summary("<other>", [5.0, 40.0, 8.0], 900.0, 4.0)
    assert (ours.rates, ours.memory_mib, ours.processor_s) == ([30.0, 10.0, 20.0], 120.0, 10.0)
    assert other.line(ours).endswith("fkjoin is 2.50 x")
    beside = Summary("third", [5.0])
    rows = [*compared("files", [ours, other]), *compared("topics", [Summary("fkjoin", ours.rates), beside])]
    assert rows[1] == ("files, inputs/s: <other>", "8 (5 to 40); fkjoin is 2.50 ×")
    assert len(rows) == 6
    page = report([ours, other], [ours, beside], "a & b", rows)
    assert "<td>files, inputs/s: &lt;other&gt;<td>8 (5 to 40)" in page
    chart = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", page, re.DOTALL)[0])
    assert [text.text for text in chart.iter("text")] == ["fkjoin", "20", "<other>", "8"]
    assert "a &amp; b" in page


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_a_workload_in_three_phases_and_a_recomputation(name: str, tmp_path: Path) -> None:
    query, out = QUERIES[name], tmp_path / "w.jsonl"
    write_phases(out, dated(query.phases(20, 2000, 200)))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    first, second, last = json.loads(Path(f"{out}.meta.json").read_text())["phase_end"]
    assert 0 < first < second < last == len(lines)
    assert [line["seq"] for line in lines] == list(range(last))
    wanted = query.wanted([lines])
    assert {(len(key), len(row)) for key, row in wanted.items()} == {(len(query.key), len(query.columns))}
    require_same(name, wanted, dict(wanted))
    del lines[first - 1 :]
    with pytest.raises(SystemExit, match=f"{name}: .* differ from a recomputation"):
        require_same(name, query.wanted([lines]), wanted)
