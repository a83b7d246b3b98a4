"""Objects with methods that run in every forked child."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from oauth_ratelimit.process.fork import call_in_child, hold_over_fork


class Watcher:
    def __init__(self) -> None:
        call_in_child(self.reset)

    def reset(self) -> None:
        """Nothing to do."""


def test_object_is_not_kept_alive() -> None:
    watcher = Watcher()
    reference = weakref.ref(watcher)
    del watcher
    gc.collect()
    assert None is reference()


@pytest.mark.slow
def test_object_that_lives_until_the_process_ends_writes_nothing() -> None:
    """Weak references with callbacks failed when the interpreter ended."""
    code = (
        "from oauth_ratelimit.process.fork import call_in_child\n"
        "class Watcher:\n"
        "    def reset(self): pass\n"
        "watcher = Watcher()\n"
        "watcher.own = watcher\n"
        "call_in_child(watcher.reset)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "" == ended.stderr


class Guarded:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        hold_over_fork(self, lambda guarded: guarded.lock)


def test_lock_is_held_while_the_process_forks() -> None:
    """Nobody is inside what it guards, which may have locks of its own."""
    guarded = Guarded()
    child = os.fork()
    if not child:
        os._exit(0 if guarded.lock.locked() else 1)
    _, status = os.waitpid(child, 0)
    assert (0, False) == (status, guarded.lock.locked())
