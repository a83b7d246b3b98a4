"""What a forked process must not share with its parent, told in the child before anything else runs."""

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """What a fork finds, and must not go on with as it is."""

    def forget_parent(self) -> None:
        """Drop what is the parent's."""


_heirs: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def follow(heir: ForkAware) -> None:
    """Tell something of each fork from now on, as long as it lives."""
    _heirs.add(heir)


def leave(heir: ForkAware) -> None:
    """Tell it no more."""
    _heirs.discard(heir)


def _forget_parents() -> None:
    for heir in list(_heirs):
        heir.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
