"""Changes of rows, and events, as tests feed them."""

from __future__ import annotations

from fkjoin.testing.kit import Event, Row


def left(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a left row.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = left("o1", {"customer": "c1"})
    """
    return Event("left", key, row, version)


def right(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a right row.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = right("c1", {"name": "Ada"})
    """
    return Event("right", key, row, version)


def change(key: str, row: Row | None, version: int | None = None) -> Event:
    """Make a change of a row of a table that is summed up, or makes other rows.

    Parameters
    ----------
    key, row, version
        See ``Event``.

    Returns
    -------
    Event

    Examples
    --------
    >>> event = change("o1", {"customer": "c1"})
    """
    return Event("left", key, row, version)


def event(row: Row) -> Event:
    """Make an event that a table enriches.

    Parameters
    ----------
    row : dict
        The event's columns.

    Returns
    -------
    Event

    Examples
    --------
    >>> clicked = event({"customer": "c1", "page": "start"})
    """
    return Event("event", "", row)
