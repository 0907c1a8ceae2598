"""Tags: the first byte of every key in a store of a stage, which says what the rest is a key of.

A store has one owner, so that a byte may mean two things in two stores; within one store all tags
differ. The bytes stand in every checkpoint and never change.
"""

from __future__ import annotations

ROW = b"d"
"""``{'d'}{key of a row, or of a group}``: what a stage remembers of it."""
RIGHT = b"r"
"""``{'r'}{foreign key}``: the right row."""
SUBSCRIBER = b"s"
"""``{'s'}{CombinedKey}``: a left row under its foreign key; of a guard, a row under its group."""
DUE = b"t"
"""``{'t'}{uint64 big-endian due time, ms}{key of a record}``: when a tombstone marker ends."""
WAITING = b"p"
"""``{'p'}{key}``: a change that waits for the end of its interval."""
EMITTED = b"e"
"""``{'e'}{key}``: what was emitted last, at the end of an interval."""
ENDS = b"e"
"""``{'e'}{identity of a topic}``: which of its partitions have been read to the end that they had.

No store has both ``EMITTED`` and ``ENDS``: rows of a source never come straight to the end of an
interval."""
CLOSES = b"w"
"""``{'w'}{uint64 big-endian end, µs, sign bit turned round}{group's key}``: an open window."""
BORROWED = b"b"
"""``{'b'}{key}``: the columns that a row's newest change lacks, with their values' versions."""
TIME = b"h"
"""``{'h'}``: the stream time, and what it is made of."""
EXTREME = b"o"
"""``{'o'}{column}{group}{value}``: how often a group has a value that ``min`` may come back to."""
