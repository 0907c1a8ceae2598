"""The programs of docs/first-job.md, on a broker, as processes of their own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import ConfigResource, ResourceType

from tests.support.documents import blocks
from tests.support.places import ROOT

from .broker import Broker

ADDRESS = "localhost:9092"
"""The broker of the page."""


def test_the_programs_make_compacted_topics_and_write_their_records(broker: Broker, tmp_path: Path) -> None:
    found = list(blocks(ROOT / "docs" / "first-job.md"))
    topics, write = (block.text for block in found if block.language == "python")
    for name, program in (("topics.py", topics), ("write.py", write)):
        assert program.count(ADDRESS) == 1
        (tmp_path / name).write_text(program.replace(ADDRESS, broker.bootstrap))

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stderr

    assert run("write.py", "orders", "o1", "{}") == (1, "topic orders is not there: run topics.py first\n")
    assert "orders" not in broker.admin.list_topics(timeout=10).topics
    (commands,) = (block.text for block in found if block.text.startswith("python topics.py"))
    for command in commands.splitlines():
        assert run(*shlex.split(command)[1:]) == (0, ""), command
    made = ["orders", "customers"]
    asked = broker.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in made])
    policies = [settings.result(30)["cleanup.policy"].value for settings in asked.values()]
    assert policies == ["compact", "compact"]
    lines = re.findall(r"(\w+) (\w+) '(.*)'$", commands, re.MULTILINE)
    written = {(topic, key): json.loads(value) for topic, key, value in lines}

    def there() -> dict[tuple[str, str], object]:
        return {(name, key.decode()): json.loads(value) for name in made for key, value in broker.table(name).items()}

    assert there() == written
    assert run("write.py", "orders", "o3") == (0, "")
    assert there() == {place: record for place, record in written.items() if place != ("orders", "o3")}
    for deleted in broker.admin.delete_topics(made).values():
        deleted.result(30)
