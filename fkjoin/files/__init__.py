"""Change-log files as streaming DataFrames."""
