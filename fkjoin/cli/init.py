"""The first files of a job: ``fkjoin init``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fkjoin.errors import FkJoinError

FILES_JOB = {
    "init-orders.csv": "orders/1.csv",
    "init-customers.csv": "customers/1.csv",
    "init-files.toml": "job.toml",
}
"""The first files of a job from files: names in ``fkjoin.data``, and paths in the user's folder."""
KAFKA_JOB = {"init-kafka.toml": "job.toml"}


def write_job(folder: Path, templates: dict[str, str]) -> list[Path]:
    """Write a job's first files, and return them; a file of the user's is never replaced."""
    targets = {name: folder / path for name, path in templates.items()}
    if present := [target for target in targets.values() if target.exists()]:
        raise FkJoinError(
            f"{present[0]} already exists, so nothing was written; give another folder with --dir"
        )
    for name, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files("fkjoin.data").joinpath(name).read_text())
    return list(targets.values())
