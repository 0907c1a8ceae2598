"""Checks of a user's calls against Spark's analyzer, made where each call stands."""
