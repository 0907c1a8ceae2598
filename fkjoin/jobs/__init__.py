"""Job files and the process that runs one."""
