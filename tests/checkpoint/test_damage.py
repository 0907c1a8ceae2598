"""Checkpoints that are damaged, in use, or another job's: what is said, and what is noticed before anything runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fkjoin import FkJoinError
from fkjoin.checkpoint import claim
from fkjoin.checkpoint.claim import claimed
from fkjoin.checkpoint.claim_files import CLAIM_FILE
from fkjoin.checkpoint.damage import explain
from fkjoin.checkpoint.saved import check_logs
from fkjoin.checkpoint.upkeep import verify
from tests.support.golden import CHECKPOINTS, unpack


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("terminated with exception: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred", "is damaged.*restore it from"),
        ("terminated with exception: [STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed", "is damaged.*restore it from"),
        ("File file:/ck/state/1/_stateSchema/default/0_e does not exist", "is damaged.*restore it from"),
        ("Multiple streaming queries are concurrently using file:/ck/commits", "another query is writing to checkpoint /ck"),
        ("There are [2] sources in the checkpoint offsets and now there are [3] sources", "reads another number of tables"),
    ],
)
def test_errors_that_come_from_a_checkpoint_say_what_to_do(error: str, says: str) -> None:
    found = explain(f"{error}\n=== Streaming Query ===\nplan", "/ck")
    assert found is not None
    assert re.search(says, ": ".join(found))
    for mine in ("json.decoder: Unexpected character", "fkjoin.state.errors.StoreError: CANNOT_LOAD_STATE_STORE"):
        assert explain(f"PythonException: {mine}", "/ck") is None
    for elsewhere in (
        "Checksum error: file:/in/orders/2.json at 0",
        "[MALFORMED_RECORD] Unexpected character",
        "[CANNOT_LOAD_STATE_STORE] caused by: No space left on device",
        "[CANNOT_LOAD_STATE_STORE] caused by: Connection refused",
    ):
        assert explain(elsewhere, "/ck") is None
    assert explain("Checksum error: file:/ck/offsets/2 at 0", "/ck") is not None
    assert explain("ArithmeticException: / by zero\n=== Streaming Query ===\nCANNOT_LOAD_STATE_STORE", "/ck") is None


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """Some letters are patterns to Spark, which reads the files."""
    folder = tmp_path / "my [a] {b}*?" / "100%" / "state" / "0" / "7"
    folder.mkdir(parents=True)
    checkpoint = unpack(CHECKPOINTS / "join-1.tar.gz", folder)
    assert verify(spark, checkpoint) == []


def test_damage_is_named_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Logs whose damage Spark would not notice, and state that cannot be read."""
    checkpoint = unpack(CHECKPOINTS / "join-1.tar.gz", tmp_path)
    saved = tmp_path / "saved"
    shutil.copytree(checkpoint, saved)
    check_logs(spark, str(checkpoint))
    for name in ("offsets/0", "commits/0"):
        data = bytearray((checkpoint / name).read_bytes())
        data[len(data) // 2] ^= 1
        (checkpoint / name).write_bytes(data)
        with pytest.raises(FkJoinError, match=f"checkpoint .* is damaged: {name} is not as it was written; restore it"):
            check_logs(spark, str(checkpoint))
        shutil.rmtree(checkpoint)
        shutil.copytree(saved, checkpoint)
    (state,) = checkpoint.glob("state/1/0/1_*.zip")
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(FkJoinError, match="checkpoint .* is damaged.* restore it from a backup"):
        verify(spark, checkpoint)

    # A byte of a data file: Hadoop's checksum beside it tells, and RocksDB's in it.
    shutil.rmtree(checkpoint)
    shutil.copytree(saved, checkpoint)
    file = next(checkpoint.glob("state/1/0/SSTs/*.sst"))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    damaged = rf"checkpoint .* is damaged: state/1/0/SSTs/{file.name} is not as it was written; restore it from a backup"
    with pytest.raises(FkJoinError, match=damaged):
        verify(spark, checkpoint)
    (file.parent / f".{file.name}.crc").unlink()
    with pytest.raises(FkJoinError, match="a snapshot in state/1/0 is damaged: .*; restore it from a backup"):
        verify(spark, checkpoint)

    # Two partitions' files in each other's place, alone and with all that vouches for them.
    for patterns in (("1_*.zip",), ("1_*.zip*", ".1_*.zip*", "1_*.changelog*", ".1_*.changelog*")):
        shutil.rmtree(checkpoint)
        shutil.copytree(saved, checkpoint)
        for pattern in patterns:
            pairs = zip(*(sorted(checkpoint.glob(f"state/1/{partition}/{pattern}")) for partition in (0, 1)), strict=True)
            for one, other in pairs:
                content = one.read_bytes()
                one.write_bytes(other.read_bytes())
                other.write_bytes(content)
        with pytest.raises(FkJoinError, match="checkpoint .* is damaged.* restore it from a backup"):
            verify(spark, checkpoint)


def test_a_claim_is_renewed_and_whole_whenever_its_owner_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEWED_EVERY_S", 0.02)
    (tmp_path / "metadata").touch()
    file = tmp_path / f"{CLAIM_FILE}.1"
    deadline = time.monotonic() + 20

    def waiting() -> bool:
        assert time.monotonic() < deadline, "the claim is not renewed"
        return True

    with claimed(spark, str(tmp_path)):
        for _ in range(20):
            before = file.stat().st_mtime_ns
            while waiting() and file.stat().st_mtime_ns == before:
                assert json.loads(file.read_text())["process"] == os.getpid()
        file.unlink()  # somebody else's doing
        while waiting() and not file.exists():
            pass
        file.write_text("")
        while waiting() and not file.read_text():
            pass
    assert file.read_text() == ""
