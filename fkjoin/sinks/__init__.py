"""Sinks that keep a table up to date, row by row, in the place where it is read: each batch takes effect exactly once.

A target remembers, in the same transaction as the rows, the last batch of each query: a batch that is repeated is left out.
Batches pass through the driver; bound them with the source's ``maxOffsetsPerTrigger`` or ``maxFilesPerTrigger``.
"""
