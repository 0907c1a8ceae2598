"""Job files and the process that runs one."""

from fkjoin.errors import needs_extra

with needs_extra("a job file", "cli"):
    import pydantic  # noqa: F401
