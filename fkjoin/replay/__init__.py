"""Traces: recorded changes, replayed in memory and on Spark."""
