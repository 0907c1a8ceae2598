"""The tables of parameters on the pages of the site."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import NamedTuple


class ParameterRow(NamedTuple):
    """A row of a table: the call, and what its cells say of one parameter."""

    call: str
    name: str
    type: str
    description: str
    default: str


def parameter_rows(page: str) -> list[ParameterRow]:
    """Return the rows of a page's tables of parameters."""
    parser = _Tables()
    parser.feed(page)
    return parser.rows


class _Tables(HTMLParser):
    """Headings of calls, titles of tables, and cells of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[ParameterRow] = []
        self._call = self._title = ""
        self._cells: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        classes = (about.get("class") or "").split()
        if "doc-heading" in classes:
            self._call = about["id"] or ""
        elif "doc-section-title" in classes:
            self._title, self._in_title = "", True
        elif tag == "tr":
            self._cells = []
        elif tag == "td":
            self._cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._in_title = False
        elif tag == "tr" and self._cells and self._title == "Parameters:":
            self.rows.append(ParameterRow(self._call, *(" ".join(cell.split()) for cell in self._cells)))

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title += data
        elif self._cells:
            self._cells[-1] += data
