"""Fork handling: what a forked child must not share with its parent."""

import os
import weakref
from collections.abc import Callable
from typing import Any

_methods: set["weakref.WeakMethod[Callable[[], Any]]"] = set()


def call_in_child(method: Callable[[], object]) -> None:
    """Call a bound method in every forked child, before anything else runs there. Its object is not kept alive."""
    _methods.add(weakref.WeakMethod(method, _methods.discard))


def _call_all() -> None:
    for reference in list(_methods):
        method = reference()
        if method is not None:
            method()


os.register_at_fork(after_in_child=_call_all)
