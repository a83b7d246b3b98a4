"""Objects with methods that run in every forked child."""

import gc
import subprocess
import sys
import weakref

import pytest

from oauth_ratelimit.process.fork import call_in_child


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
