"""Change-log files: how they are read, and which columns they have."""
