"""The documents' pictures of a running job: ``python -m tools.pictures`` writes them to ``docs/pictures``."""

from __future__ import annotations

import contextlib
import subprocess

from fkjoin.jobs.shown import panel
from integration.tab import Tab
from integration.test_page import busy, served_shop
from tests.jobs.test_panel import watched
from tools.messages import ROOT
from tools.panel_picture import picture

PICTURES = ROOT / "docs" / "pictures"
CHARTS = """document.querySelectorAll(".uplot canvas").length === 6"""
"""JavaScript that tells whether the page is drawn."""


def main() -> None:
    """Draw the panel of ``fkjoin run`` and the page of ``--ui``; the page needs a browser."""
    (PICTURES / "panel.svg").write_text(picture(panel(watched())))
    browser = subprocess.run([ROOT / "docker" / "browser.sh"], capture_output=True, text=True, check=True).stdout.strip()
    with served_shop(busy(**{"hot-key": '"C-1"', "fan-out-max": 2_000})) as address, contextlib.closing(Tab(browser)) as tab:
        tab.open(address)
        tab.wait(CHARTS)
        tab.picture(PICTURES / "page.png")


if __name__ == "__main__":
    main()
