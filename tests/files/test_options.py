"""Options of Spark's file source: what it does not take, and what looks misspelt."""

from __future__ import annotations

from typing import Any

import pytest

from fkjoin.errors import TopologyError
from fkjoin.files.options import require_options
from fkjoin.kafka.options import source_options


@pytest.mark.parametrize(
    ("wrong", "says", "right"),
    [
        ({"maxFilesPerTrigger": "x"}, "maxFilesPerTrigger is 'x': give a whole number from 1 on", {"maxFilesPerTrigger": "5"}),
        ({"MAXFILESPERTRIGGER": 0}, "MAXFILESPERTRIGGER is 0: give a whole number from 1 on", {"maxfilespertrigger": 1}),
        ({"maxCachedFiles": "-1"}, "maxCachedFiles is '-1': give a whole number from 0 on", {"maxCachedFiles": 0}),
        ({"latestFirst": "yes"}, "latestFirst is 'yes': give one of true, false", {"latestFirst": True}),
        ({"cleanSource": "remove"}, "cleanSource is 'remove': give one of off, delete, archive", {"cleanSource": "DELETE"}),
        ({"maxFilePerTrigger": 1}, "has no option 'maxFilePerTrigger'; did you mean 'maxFilesPerTrigger'?", {}),
        ({"multiline": True, "heder": True}, "has no option 'heder'; did you mean 'header'?", {"multiline": True}),
    ],
)
def test_an_option_is_taken_when_it_is_as_the_message_says(wrong: dict[str, Any], says: str, right: dict[str, Any]) -> None:
    with pytest.raises(TopologyError) as found:
        require_options(wrong)
    assert str(found.value).startswith("options: ")
    assert str(found.value).endswith(says)
    require_options(right)


def test_options_of_file_systems_pass() -> None:
    require_options({"fs.s3a.endpoint": "x", "spark.hadoop.fs.s3a.path.style.access": "true", "rowTag": "row", "mode": "x"})


def test_numbers_of_topics_are_checked() -> None:
    with pytest.raises(TopologyError, match="^options: maxOffsetsPerTrigger is 'x': give a whole number from 1 on$"):
        source_options({"maxOffsetsPerTrigger": "x"})
    assert source_options({"maxOffsetsPerTrigger": 5})["maxOffsetsPerTrigger"] == "5"
