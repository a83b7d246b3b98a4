"""The stores."""

from tests.support.stores import shared, store

__all__ = ["shared", "store"]
