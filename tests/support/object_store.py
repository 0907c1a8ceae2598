"""An object store that speaks S3, on this machine, which may go away and come back with all that it has."""

from __future__ import annotations

import contextlib
import logging
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType, S3FileSystem

BUCKET = "lake"
SECRET = "CaNaRy17"


def options_of(port: int) -> dict[str, str]:
    """Options for a store at this port, also of another process."""
    keys = {"access_key": "me", "secret_key": SECRET}
    return {**keys, "region": "us-east-1", "scheme": "http", "endpoint_override": f"127.0.0.1:{port}"}


class ObjectStore:
    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = _server(0)
        self.port = self._server.get_host_and_port()[1]
        self.files = S3FileSystem(**self.options, allow_bucket_creation=True)
        self.files.create_dir(BUCKET)

    @property
    def options(self) -> dict[str, str]:
        return options_of(self.port)

    def names(self, folder: str) -> list[str]:
        """The objects in a folder of the bucket, without it, in order."""
        place = f"{BUCKET}/{folder}"
        found = self.files.get_file_info(FileSelector(place, recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix(f"{place}/") for info in found if info.type == FileType.File)

    def rows(self, folder: str) -> list[dict[str, Any]]:
        """The rows that a reader of the folder sees, the oldest batch first."""
        files = [f"{BUCKET}/{folder}/{name}" for name in self.names(folder) if not name.startswith("_")]
        return [row for file in files for row in pq.ParquetFile(file, filesystem=self.files).read().to_pylist()]

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """Stop the server meanwhile, so that no request is answered."""
        self._server.stop()
        yield
        self._server = _server(self.port)

    @contextlib.contextmanager
    def asking_for_keys(self) -> Iterator[None]:
        """It knows no keys, and refuses all."""
        self._authenticate_after("0")
        yield
        self._authenticate_after("inf")

    def _authenticate_after(self, requests: str) -> None:
        address, plain = f"http://127.0.0.1:{self.port}/moto-api/reset-auth", {"content-type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(address, requests.encode(), plain, method="POST")) as answer:
            answer.read()

    def stop(self) -> None:
        self._server.stop()


def _server(port: int) -> Any:
    from moto.server import ThreadedMotoServer  # processes that only write there do without it

    made = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    made.start()
    return made


def serving() -> Iterator[ObjectStore]:
    """One for all tests of a run."""
    made = ObjectStore()
    yield made
    made.stop()
