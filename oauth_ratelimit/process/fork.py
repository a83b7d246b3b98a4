"""Fork handling: what a forked child must not share with its parent."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LONGEST_HOLD_S = 1.0  # that a fork waits for a lock

_Held = tuple[Callable[[Any], threading.Lock], Callable[[Any], object] | None]
_locks: "weakref.WeakKeyDictionary[Any, _Held]" = weakref.WeakKeyDictionary()
_held: list[threading.Lock] = []
_methods: list[tuple["weakref.ref[Any]", Callable[[Any], object]]] = []


def call_in_child(method: Callable[[], object]) -> None:
    """Call a bound method in every forked child, before anything else runs there. Its object is not kept alive."""
    # WeakMethod has callbacks, which fail for an object that lives until the interpreter ends.
    for entry in _methods.copy():
        if entry[0]() is None:
            with suppress(ValueError):  # another thread was faster
                _methods.remove(entry)
    _methods.append((weakref.ref(method.__self__), method.__func__))  # type: ignore[attr-defined]  # a bound method


def hold_over_fork(
    owner: Any, lock_of: Callable[[Any], threading.Lock], prepare: Callable[[Any], object] | None = None
) -> None:
    """Hold a lock of an object while the process forks, so that no thread is inside what it guards.

    Python's own threads are stopped anywhere by a fork, also inside a library that has locks of its own. ``prepare`` is
    called before the fork, with the lock held.
    """
    _locks[owner] = lock_of, prepare


def _hold_all() -> None:
    for owner, (lock_of, prepare) in list(_locks.items()):
        lock = lock_of(owner)
        if lock.acquire(timeout=LONGEST_HOLD_S):
            _held.append(lock)
            if prepare is not None:
                prepare(owner)


def _release_all() -> None:
    while _held:
        _held.pop().release()


def _call_all() -> None:
    _held.clear()
    for reference, function in _methods.copy():
        owner = reference()
        if owner is not None:
            function(owner)


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_call_all)
