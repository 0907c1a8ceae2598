"""For ``spark-submit … job.py run JOB.toml``: the command line under a name that spark-submit takes."""

from fkjoin.cli.main import main

main()
