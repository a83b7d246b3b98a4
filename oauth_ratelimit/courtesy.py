"""
What background work does so that requests in the same process go on meanwhile.
"""

import gc
import time
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

STEP = 200  # items that take a millisecond or two
BREATH_S = 5e-5  # sleeping for 0 s would not do: it is over before a waiting thread has woken up


def gently(items: Iterable[Item]) -> Iterator[Item]:
    """
    Yield items, and hand the interpreter over now and then: a thread that computes keeps it for 5 ms at a time.

    Up to ``STEP`` items are not interrupted.
    """
    rest = iter(items)
    yield from islice(rest, STEP)
    for item in rest:
        time.sleep(BREATH_S)
        yield item
        yield from islice(rest, STEP - 1)


def sweep_young(work: Sized) -> None:
    """
    Have the garbage collector look at what is new, now that the objects that a step needed are gone.

    Were it to look in the middle of a step, it would take them for old. After enough of those it looks at everything in
    the process, which keeps requests waiting for 100 ms where 100,000 keys are known.

    Args:
        work: What the step was done to. If it was little, nothing happens.
    """
    if len(work) > STEP and gc.isenabled():
        gc.collect(1)
