"""Archives of files."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(path: Path, folder: Path) -> None:
    """Extract an archive into a folder; Python 3.11 before 3.11.4 has no filter for what an archive may hold."""
    with tarfile.open(path) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
