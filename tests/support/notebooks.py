"""Notebooks: executed, with the outputs that a reader sees.  ``python -m tests.support.notebooks NAME`` writes them back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.support.places import ROOT
from tests.support.sessions import short_lived

NOTEBOOKS = ROOT / "examples" / "notebooks"


def kept(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)


def executed(name: str, folder: Path, instead: dict[str, str] | None = None, **environment: str) -> Any:
    """The notebook with outputs of this run, but for those that have times: lines of progress, and logs.

    ``instead`` has texts in the place of others while it runs.
    """
    book = kept(name)
    sources = [cell.source for cell in book.cells]
    for cell in book.cells:
        for text, other in (instead or {}).items():
            cell.source = cell.source.replace(text, other)
    client = NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}})
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    client.execute(env=short_lived(PYTHONPATH=path, **environment))
    for cell, source in zip(book.cells, sources, strict=True):
        cell.metadata, cell.source = {}, source
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.output_type == "execute_result" or one.get("name") == "stdout"]
    return book


def shown(book: Any) -> list[str]:
    """The texts of the outputs."""
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.text if output.output_type == "stream" else output.data["text/plain"] for output in outputs]


if __name__ == "__main__":
    for notebook in sys.argv[1:]:
        nbformat.write(executed(notebook, Path.cwd()), NOTEBOOKS / f"{notebook}.ipynb")
