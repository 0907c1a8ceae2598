"""``fkjoin`` and ``python -m fkjoin``: the command line, whose packages are an extra."""

from __future__ import annotations

import sys

from fkjoin.errors import FkJoinError, needs_extra


def main() -> None:
    """Run the command line; one line says what to install where its packages are not there."""
    try:
        with needs_extra("the command line", "cli"):
            from fkjoin.cli.main import main as run
    except FkJoinError as error:
        sys.exit(f"fkjoin: {error}")
    run()


if __name__ == "__main__":
    main()
