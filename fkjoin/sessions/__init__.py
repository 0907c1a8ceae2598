"""Spark sessions, and what makes local ones start fast."""
