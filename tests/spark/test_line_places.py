"""Places of lines in files: they are found once a line stops a query, and only then."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from fkjoin.spark import line_places
from fkjoin.spark.line_places import line_place, local_pattern


def written(file: Path, data: bytes, at: int) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    os.utime(file, (at, at))
    return file


def test_a_line_is_found_as_a_whole_in_the_newest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = written(tmp_path / "in" / "1.json", b'{"id":"o1"}\n{"id":\n', 1)
    written(tmp_path / "in" / "2.json", b'{"id":"o2"}\r\n{"id":\r\nx', 2)
    written(tmp_path / "in" / "_3.json", b'{"id":\n', 3)
    packed = written(tmp_path / "in" / "4.json.gz", gzip.compress(b"\nnone"), 4)
    written(tmp_path / "in" / "5.json.gz", b"none", 5)
    folder = str(tmp_path / "in")
    assert line_place(b'{"id":', folder) == f"{folder}/2.json, line 2"
    assert line_place(b"x", folder) == f"{folder}/2.json, line 3"
    assert line_place(b'{"id":"o1"}', f"{folder}/*.json") == f"{old}, line 1"
    assert line_place(b"none", folder) == f"{packed}, line 2"
    assert line_place(b'"o1"', folder) is None
    assert line_place(b"x", str(tmp_path / "gone")) is None
    newest = written(tmp_path / "in" / "6.json", b"y\rz\r", 6)
    assert line_place(b"z", folder) == f"{newest}, line 2"
    with monkeypatch.context() as limited:
        limited.setattr(line_places, "_MOST_BYTES", 4)
        assert line_place(b"z", folder) == f"{newest}, line 2"
        assert line_place(b"x", folder) is None
    monkeypatch.setattr(line_places, "_MOST_FILES", 1)
    assert line_place(b"x", folder) is None


def test_files_of_this_machine_are_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_pattern("in/*.json") == f"{tmp_path}/in/*.json"
    assert local_pattern("file:///in") == local_pattern("file:/in") == "/in"
    assert local_pattern("s3a://bucket/in") is None
