"""Keeps what the JVM and its workers write on standard error out of a command's output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fkjoin.errors import FkJoinError


@contextlib.contextmanager
def quiet_spark(log: Path) -> Iterator[None]:
    """Send what the JVM and its workers write on standard error to ``log``; shown when the command fails."""
    keep = os.dup(2)
    sys.stderr.flush()
    with log.open("wb") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    except FkJoinError:
        raise
    except BaseException:
        os.write(keep, log.read_bytes()[-20_000:])
        raise
    finally:
        sys.stderr.flush()
        os.dup2(keep, 2)
        os.close(keep)
