"""Bytes: rows, keys, versions, records and messages as byte strings and Arrow columns."""
