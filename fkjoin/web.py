"""``fkjoin run --ui``: a page that shows a job as it runs, and its metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from fkjoin.errors import FkJoinError
from fkjoin.metrics import Metrics
from fkjoin.picture import svg
from fkjoin.stages import counters
from fkjoin.steps import Step

_ROLES = {"left": counters.LEFT_IN, "right": counters.RIGHT_IN}
_PARTS = ("-regroup", "-answers", "-rekey", "-subscription", "")
"""What the names of operators end in that count what comes to a step: its first stage, or the step as a whole."""


def rates_on_arrows(steps: Sequence[Step], snapshot: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What flows, in rows a second of the last batches, as far as operators count it: see ``picture.svg``."""
    operators: dict[str, dict[str, float]] = {}
    for query in snapshot.values():
        operators |= query["rates"]
    found = {}
    for step in steps:
        for role, name in step.reads:
            together = role == "right" and any(stage.name == "scatter" for stage in step.stages)
            if together or (len(step.reads) > 1 and role not in _ROLES):  # it counts the rows of all its tables together
                continue
            told = [(name, counters.OUT)]
            if step.kind != "sink":
                item = _ROLES.get(role, counters.ROWS_IN)
                read = [
                    operator
                    for operator in operators
                    if operator.startswith((f"{step.name}-answers-for-", f"{step.name}-for-"))
                ]
                told = [(operator, item) for operator in (*(f"{step.name}{part}" for part in _PARTS), *read)] + told
            rates = [operators[operator][item] for operator, item in told if item in operators.get(operator, {})]
            if rates:
                found[f"{step.kind} {step.name}", role] = f"{rates[0]:,.0f}/s"
    return found


@contextlib.contextmanager
def served(job: str, steps: Sequence[Step], metrics: Metrics, address: tuple[str, int]) -> Iterator[str]:
    """The page's address, for as long as it is served.  Raises ``FkJoinError`` when nobody may listen there."""
    page = resources.files("fkjoin").joinpath("data/page.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._answer(page, "text/html; charset=utf-8")
            elif self.path == "/status.json":
                snapshot = metrics.snapshot()
                status = {"job": job, "picture": svg(steps, rates_on_arrows(steps, snapshot)), "queries": snapshot}
                self._answer(json.dumps(status).encode(), "application/json")
            elif self.path == "/metrics":
                self._answer(metrics.prometheus(), CONTENT_TYPE_LATEST)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    host, port = address
    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise FkJoinError(f"--ui: nobody can listen at {host}:{port} ({error.strerror}); choose another port") from error
    thread = threading.Thread(target=server.serve_forever, name="fkjoin-ui", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
