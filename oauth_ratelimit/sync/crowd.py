"""
The keys of a client with very many users.

A dictionary that is full is copied into a larger one while its user waits: 30 ms with a million names. So above a size
no dictionary grows any more, and further names go to many small ones.
"""

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import TypeVar, overload

Value = TypeVar("Value")
Default = TypeVar("Default")

CROWDED = 50_000  # names that make a crowd; up to here a dictionary is copied within 3 ms
PART_COUNT = 64  # a power of two


class Crowd(MutableMapping[str | None, Value]):
    """
    A mapping by user name that is never copied as a whole.

    Args:
        first: What is there already. Keeps its place, and gets no further names.
    """

    __slots__ = ("_first", "_parts")

    def __init__(self, first: dict[str | None, Value]) -> None:
        self._first = first
        self._parts: tuple[dict[str | None, Value], ...] = tuple({} for _ in range(PART_COUNT))

    @overload
    def get(self, name: str | None, default: None = None, /) -> Value | None: ...

    @overload
    def get(self, name: str | None, default: Default, /) -> Value | Default: ...

    def get(self, name: str | None, default: object = None, /) -> object:
        """
        Return what is there under a name. Written out, because each request asks.
        """
        found = self._parts[hash(name) & PART_COUNT - 1].get(name)
        return self._first.get(name, default) if found is None else found

    def _part(self, name: str | None) -> dict[str | None, Value]:
        return self._first if name in self._first else self._parts[hash(name) & PART_COUNT - 1]

    def __getitem__(self, name: str | None) -> Value:
        return self._part(name)[name]

    def __setitem__(self, name: str | None, value: Value) -> None:
        self._part(name)[name] = value

    def __delitem__(self, name: str | None) -> None:
        del self._part(name)[name]

    def __iter__(self) -> Iterator[str | None]:
        return chain(self._first, *self._parts)

    def __len__(self) -> int:
        return len(self._first) + sum(map(len, self._parts))
