"""Folders of a machine's indexes.

Beside the indexes of a query, a file says where its checkpoint is.  The driver says so to the
workers, by a local property of the thread that starts the query, which Spark hands on.
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

from fkjoin.state.private import private_folder, write_private

HOME_FILE = "checkpoint.json"

OWNER = "fkjoin.checkpoint"


def index_base(index_dir: str) -> Path:
    """Return the folder of all queries' indexes on a machine.

    It is under the temporary folder if ``index_dir`` is empty.
    """
    return Path(index_dir) if index_dir else Path(tempfile.gettempdir()) / f"fkjoin-{os.geteuid()}"


def index_home(index_dir: str, query: str, operator: str, stage: str) -> Path:
    """Return the folder of a store's indexes on a machine, with a folder per bucket.

    Folders that are not there are made.  None below ``index_dir`` is another user's, nor open to
    one (``StateError``): the temporary folder is shared by all users.
    """
    base = index_base(index_dir)
    home = base / query / f"{operator}-{stage}"
    for folder in (*(() if index_dir else (base,)), home.parent, home):
        private_folder(folder)
    return home


def note_owner(indexes: Path) -> None:
    """Write down, in a worker, which query its indexes are of."""
    context = TaskContext.get()
    checkpoint = None if context is None else context.getLocalProperty(OWNER)
    if checkpoint is not None:
        _note(indexes, checkpoint)


@cache
def _note(indexes: Path, checkpoint: str) -> None:
    file = indexes / HOME_FILE
    text = json.dumps({"checkpoint": checkpoint, "host": socket.gethostname()})
    with contextlib.suppress(OSError):  # nothing but `prune` would miss it
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            draft = indexes / f".{HOME_FILE}.{os.getpid()}"
            write_private(draft, text.encode())
            draft.replace(file)
