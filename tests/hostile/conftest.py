"""
The stores.
"""

from tests.stores import shared, store

__all__ = ["shared", "store"]
