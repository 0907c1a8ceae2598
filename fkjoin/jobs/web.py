"""``fkjoin run --ui``: a page that shows a job as it runs, and its metrics for Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from fkjoin.metrics import Metrics
from fkjoin.metrics.page import ShownJob, pages
from fkjoin.metrics.server import ClientAccess, PageServer
from fkjoin.plan.describe.steps import Step


@contextlib.contextmanager
def served(
    job: str, steps: Sequence[Step], metrics: Metrics, *, port: int, access: ClientAccess, letters: str | None = None
) -> Iterator[str]:
    """The page's address, for as long as it is served, which is until open pages know how the job has ended.

    Raises ``FkJoinError`` when the port cannot be used.
    """
    server = PageServer(pages(ShownJob(job, steps, letters), metrics), port, access, "--ui")
    try:
        try:
            yield server.address
        except Exception:
            server.stay()
            raise
        server.stay()
    finally:
        server.close()
