"""Fork handling: what a forked child must not share with its parent."""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_methods: list[tuple["weakref.ref[Any]", Callable[[Any], object]]] = []


def call_in_child(method: Callable[[], object]) -> None:
    """Call a bound method in every forked child, before anything else runs there. Its object is not kept alive."""
    # WeakMethod has callbacks, which fail for an object that lives until the interpreter ends.
    for entry in _methods.copy():
        if entry[0]() is None:
            with suppress(ValueError):  # another thread was faster
                _methods.remove(entry)
    _methods.append((weakref.ref(method.__self__), method.__func__))  # type: ignore[attr-defined]  # a bound method


def _call_all() -> None:
    for reference, function in _methods.copy():
        owner = reference()
        if owner is not None:
            function(owner)


os.register_at_fork(after_in_child=_call_all)
