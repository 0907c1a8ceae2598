"""Where a machine has its indexes, and whose they are: beside those of a query, a file says where its checkpoint is.

The driver says so to the workers, by a local property of the thread that starts the query, which Spark hands on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

from pyspark import TaskContext

from fkjoin.state.private import private_folder

FILE = "checkpoint.json"

OWNER = "fkjoin.checkpoint"


def index_base(index_dir: str) -> Path:
    """Where the indexes of all queries are on a machine; ``index_dir`` empty: under the temporary folder."""
    return Path(index_dir) if index_dir else Path(tempfile.gettempdir()) / f"fkjoin-{os.geteuid()}"


def index_home(index_dir: str, query: str, operator: str, stage: str) -> Path:
    """Where a store's indexes are on a machine, a folder per bucket.

    Folders that are not there are made, and none below ``index_dir`` is another user's, nor open to one (``StateError``): the
    temporary folder is everybody's.
    """
    base = index_base(index_dir)
    place = base / query / f"{operator}-{stage}"
    for folder in (*(() if index_dir else (base,)), place.parent, place):
        private_folder(folder)
    return place


def note_owner(indexes: Path) -> None:
    """In a worker: write down whose the indexes of its query are."""
    context = TaskContext.get()
    checkpoint = None if context is None else context.getLocalProperty(OWNER)
    if checkpoint is not None:
        _note(indexes, checkpoint)


@cache
def _note(indexes: Path, checkpoint: str) -> None:
    file, text = indexes / FILE, json.dumps({"checkpoint": checkpoint, "host": socket.gethostname()})
    with contextlib.suppress(OSError):  # nothing but `prune` would miss it
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            draft = indexes / f".{FILE}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)
