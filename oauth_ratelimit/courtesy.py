"""
What background work does so that requests in the same process go on meanwhile.
"""

import gc
import time
from collections.abc import Sized

FEW = 100  # items; what is done to fewer is over soon
BREATH_S = 5e-5  # sleeping for 0 s would not do: it is over before a waiting thread has woken up


def let_others_run(work: Sized) -> None:
    """
    Hand the interpreter over now. A thread that computes keeps it for 5 ms at a time, while requests wait.

    Args:
        work: What is being worked on, step by step. If it is little, nothing happens.
    """
    if len(work) > FEW:
        time.sleep(BREATH_S)


def sweep_young(work: Sized) -> None:
    """
    Have the garbage collector look at what is new, now that the objects that a step needed are gone.

    Were it to look in the middle of a step, it would take them for old. After enough of those it looks at everything in
    the process, which keeps requests waiting for 100 ms where 100,000 keys are known.

    Args:
        work: What the step was done to. If it was little, nothing happens.
    """
    if len(work) > FEW and gc.isenabled():
        gc.collect(1)
