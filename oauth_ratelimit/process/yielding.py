"""What background work does so that requests in the same process go on meanwhile."""

import gc
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

STEP = 16  # items between two looks at the clock
LONGEST_S = 0.001  # of computing in one go; the interpreter itself would only take turns every 5 ms
BREATH_S = 5e-5  # sleeping for 0 s would not do: it is over before a waiting thread has woken up
MANY = 200  # items that leave enough behind for the garbage collector

_last = threading.local()


def gently(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, and hand the interpreter over whenever this thread has computed for a millisecond.

    What others compute with the items counts, too, also before: one step of work may follow another. Up to ``STEP``
    items are not interrupted.
    """
    rest = iter(items)
    yield from islice(rest, STEP)
    for item in rest:
        if time.perf_counter() - getattr(_last, "breath_s", 0.0) > LONGEST_S:
            time.sleep(BREATH_S)
            _last.breath_s = time.perf_counter()
        yield item
        yield from islice(rest, STEP - 1)


def sweep_young(work: Sized) -> None:
    """Have the garbage collector look at what is new, now that the objects that a step needed are gone.

    Were it to look in the middle of a step, it would take them for old. After enough of those it looks at everything in
    the process, which keeps requests waiting for 100 ms where 100,000 keys are known.

    Args:
        work: What the step was done to. If it was little, nothing happens.
    """
    if len(work) > MANY and gc.isenabled():
        gc.collect(1)
