"""
When Python's garbage collector looks at everything in the process: by itself, or at an interval.
"""

import gc
import weakref
from collections.abc import Callable
from typing import ClassVar

NEVER = 2_000_000_011  # a threshold that is not reached in the life of a process, and that nobody else would choose


class FullCollections:
    """
    Puts the automatic full collections of this process off, and makes one itself each interval.

    The collector is the process's: a second one of these finds the first one's threshold set. Whichever is closed first
    gives back what was found, and the other one takes over again with its next run. A fork takes over what its parent
    had found.

    The incremental collector that Python 3.14.0 to 3.14.4 have ignores the third threshold: there, a full collection
    each interval is all that is added.

    Args:
        clock: Tells seconds that only grow, such as ``time.monotonic``.
    """

    _found: ClassVar[int] = 10  # the third threshold before ours, whichever of these it was that found it

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s: float | None = None  # when the last one was, or the taking over; None: Python decides
        self._is_closed = False

    def run(self, interval_s: float | None) -> None:
        """
        Take over, and do what is due. To be called often; a full collection keeps every thread waiting.

        Thresholds of young objects stay as they are, and a collector that is switched off stays so: full collections
        come all the same then, because somebody has asked for them.

        Args:
            interval_s: Time between two full collections, None to let Python decide.
        """
        if interval_s is None:
            self._give_back()
        elif not self._is_closed:
            self._take_over()
            now_s = self._clock()
            if self._last_s is None or (now_s - self._last_s >= interval_s and _collect()):
                self._last_s = now_s

    def close(self) -> None:
        """
        Let Python decide from now on, even if a run that was late comes after this.
        """
        self._is_closed = True
        self._give_back()

    def forget_parent(self) -> None:
        """
        After a fork, in the child: let Python decide, because nothing runs here that would collect.
        """
        self._give_back()

    def _take_over(self) -> None:
        young, middle, full = gc.get_threshold()
        if full != NEVER:  # at first, and when somebody has set it meanwhile
            FullCollections._found = full
            gc.set_threshold(young, middle, NEVER)

    def _give_back(self) -> None:
        young, middle, full = gc.get_threshold()
        if self._last_s is not None and full == NEVER:
            gc.set_threshold(young, middle, FullCollections._found)
        self._last_s = None


class _Cycle:
    """
    What only a collection finds.
    """

    def __init__(self) -> None:
        self.itself = self


def _collect() -> bool:
    """
    Look at everything, and return whether that was done: it is not while another thread collects.
    """
    cycle = weakref.ref(_Cycle())
    gc.collect()
    return cycle() is None
