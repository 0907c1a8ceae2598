"""``python -m fkjoin.cli``."""

from fkjoin.cli.main import main

main()
