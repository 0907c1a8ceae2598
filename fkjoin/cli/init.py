"""The first files of a job: ``fkjoin init``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fkjoin.errors import FkJoinError

FILES_JOB = {
    "orders/1.csv": "init-orders.csv",
    "customers/1.csv": "init-customers.csv",
    "job.toml": "init-files.toml",
}
"""The first files of a job from files: paths in the user's folder, and names in ``fkjoin.data``."""
KAFKA_JOB = {"job.toml": "init-kafka.toml"}


def write_job(folder: Path, templates: dict[str, str]) -> list[Path]:
    """Write a job's first files, and return them.

    It writes nothing if one of them, or its folder, exists: a job reads all files of a folder.
    """
    for path in templates:
        first = folder / Path(path).parts[0]
        if first.exists():
            raise FkJoinError(
                f"{first} already exists, so nothing was written; give another folder with --dir"
            )
    written = [folder / path for path in templates]
    for target, name in zip(written, templates.values(), strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files("fkjoin.data").joinpath(name).read_text())
    return written
