"""Errors that fkjoin raises; each message says what happened, where, and what to do next."""


class FkJoinError(Exception):
    """The root of all of fkjoin's own errors."""


class TopologyError(FkJoinError, ValueError):
    """A table or join was described wrongly; raised while building, before anything runs."""


class SessionError(FkJoinError):
    """The Spark session lacks a setting that the engine needs and that cannot be changed any more."""


class FormatError(FkJoinError, ValueError):
    """Bytes do not parse, or carry a format version that this release does not know."""


class TraceError(FkJoinError, ValueError):
    """A line of a trace file is not what a trace may hold."""
