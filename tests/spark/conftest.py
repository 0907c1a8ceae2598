"""Registries of schemas for the tests of this folder."""

from tests.support.schema_registry import lasting_registry, registry

__all__ = ["lasting_registry", "registry"]
