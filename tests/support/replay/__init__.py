"""Traces, which are recorded changes, and programs that replay them."""
