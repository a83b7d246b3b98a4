"""Measurements that need a process of their own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import subjects

Value = TypeVar("Value")

PAGE_BYTES = 4096


def in_new_process(function: Callable[..., Value], *arguments: Any) -> Value:
    """Return what a function returns in a new process: a fresh heap, and nothing left behind."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=subjects.suppression) as pool:
        return pool.submit(function, *arguments).result()


def resident_bytes() -> int:
    """Return the memory that this process has in RAM. Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
