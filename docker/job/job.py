"""For ``spark-submit … job.py run JOB.toml``: the command line under a name that spark-submit takes."""

from fkjoin.__main__ import main

main()
