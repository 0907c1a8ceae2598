"""Changes of rows, and events, as tests feed them."""

from __future__ import annotations

from fkjoin.testing.kit import Change, Row


def left(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a left row.

    Parameters
    ----------
    key, row, version
        See ``Change``.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = left("o1", {"customer": "c1"})
    """
    return Change("left", key, row, version)


def right(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a right row.

    Parameters
    ----------
    key, row, version
        See ``Change``.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = right("c1", {"name": "Ada"})
    """
    return Change("right", key, row, version)


def change(key: str, row: Row | None, version: int | None = None) -> Change:
    """Make a change of a row of a table that is summed up, or makes other rows.

    Parameters
    ----------
    key, row, version
        See ``Change``.

    Returns
    -------
    Change

    Examples
    --------
    >>> event = change("o1", {"customer": "c1"})
    """
    return Change("left", key, row, version)


def event(row: Row) -> Change:
    """Make an event that a table enriches.

    Parameters
    ----------
    row : dict
        The event's columns.

    Returns
    -------
    Change

    Examples
    --------
    >>> clicked = event({"customer": "c1", "page": "start"})
    """
    return Change("event", "", row)
