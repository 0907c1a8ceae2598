"""Folds: what the rows of a group come to, added and subtracted in bulk."""
