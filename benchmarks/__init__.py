"""Measurements; they print, people judge."""
