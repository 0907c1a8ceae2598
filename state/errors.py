"""Errors of the store package, one small tree."""


class StateError(Exception):
    """Something about a store, its log or its index; the message says where and what to do next."""


class UnknownFormatError(StateError):
    """Bytes have a format version that this release does not know: a newer one, or not ours."""


class CorruptLogError(StateError):
    """The change log lacks a segment that its meta record promises, or a segment does not parse."""


class DamagedIndexError(StateError):
    """The local index cannot be read; it can be rebuilt from the change log."""


class StoreMismatchError(StateError):
    """The store was started with another identity (buckets, schemas, operator) than this one."""
