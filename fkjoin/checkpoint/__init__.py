"""Checkpoints: reading, checking, repairing, rescaling and claiming them."""
