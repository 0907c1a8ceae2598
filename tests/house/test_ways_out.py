"""Messages that name a way out: tests look for their words."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.support.places import ROOT
from tools.messages import raised

NOT_QUOTED = {
    "Iceberg table {} cannot be made for {}: {}": "tests/sinks/test_iceberg.py",
    "a Table has no {}; call {}": "tests/api/test_inspection.py",
    "change log meta has format {}, this release": "tests/state/test_bucket_store.py",
    "change log meta has {} bytes, at least {}": "tests/state/test_bucket_store.py",
    "change log segment {} has format {}, this": "tests/state/test_bucket_store.py",
    "deleted: {} is {}, a boolean is needed: write": "tests/files/test_malformed_lines.py",
    'deployment="staged" needs a classic Spark': "integration/test_connect.py",
    'emit="{}" needs a classic Spark session, and': "integration/test_connect.py",
    "give either {}": "tests/jobs/test_ways_out.py",
    'how: {} is not one of {}; write "{}"': "tests/testing/test_kits.py",
    "options: {} is {}: give one of {}": "tests/files/test_options.py",
    "rebuild needs a classic Spark session, and this": "tests/checkpoint/test_saved_state.py",
    'record {}-{} offset {}: {}; with on_error="dead-letter"': "tests/spark/test_topic_records.py",
    "remote: {} is a server with a master of its": "integration/test_connect.py",
    "rescale needs a classic Spark session, and this": "tests/checkpoint/test_saved_state.py",
    "row: {} is not a dict of columns; delete(…)": "tests/testing/test_driver.py",
    'table {}{}: {}: {}; with on_error="dead-letter"': "tests/files/test_malformed_lines.py",
    "verify needs a classic Spark session, and this": "tests/checkpoint/test_saved_state.py",
    "{} cannot be made for {}: {}": "tests/sinks/test_types.py",
    "{} of {}: a result does not fit; cast to": "tests/spark/test_adder_expressions.py",
    "{}: the {} of {} is {}, and the {} of {} is": "tests/api/test_ways_out_while_building.py",
    "{}: {}:{} cannot be used ({}); choose": "tests/metrics/test_page_server.py",
}
"""Messages of which no test has words that are theirs, by their beginnings, and the tests that go these ways out."""

IMPERATIVES = (
    "add ask begin build call cast change choose compare configure copy create delete drop end free get give go group "
    "install keep leave let make map move name open order pass pick put read rebuild remove rename repeat replace restart "
    "restore run say see select set split start stop take try unset update upgrade use wait write"
)
"""The verbs that ways out begin with."""

_WAY_OUT = re.compile(
    rf"(?:^|[;:.(,]\s+|\b(?:or|and|else|then|first)\s+)(?:or\s+|and\s+|either\s+|else\s+)?(?:{IMPERATIVES.replace(' ', '|')})\b"
    "|with on_error=",
    re.IGNORECASE,
)


def triples(text: str) -> set[tuple[str, str, str]]:
    """Three words after one another, of twelve characters at least."""
    words = re.findall(r"\w+", text)
    return {part for part in zip(words, words[1:], words[2:], strict=False) if len(" ".join(part)) >= 12}


def of_message(text: str) -> set[tuple[str, str, str]]:
    """The triples of a message without those that go over what is filled in."""
    return set().union(*map(triples, text.split("{}")))


def test_a_test_quotes_every_message_that_names_a_way_out() -> None:
    """A new message needs a test that looks for words which at most one other message has."""
    every = {message.text: message.place for message in raised()}
    owners = Counter(words for text in every for words in of_message(text))
    tests = {*(ROOT / "tests").rglob("*.py"), *(ROOT / "integration").rglob("*.py")} - {Path(__file__)}
    quoted = set().union(*(triples(path.read_text()) for path in tests))
    missing = set()
    for text, place in every.items():
        own = {words for words in of_message(text) if owners[words] <= 2}
        if _WAY_OUT.search(text) and not own & quoted and not text.startswith(tuple(NOT_QUOTED)):
            missing.add((place, text))
    assert missing == set()
    for beginning in NOT_QUOTED:
        assert any(_WAY_OUT.search(text) for text in every if text.startswith(beginning)), beginning
