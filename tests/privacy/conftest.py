"""What the tests about the names of users share."""

from tests.support.stores import shared, store

__all__ = ["shared", "store"]
