"""Processes that import nothing by themselves: a server that has imported their tests forks them."""

import multiprocessing
from typing import Any

CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.counters.test_host_file", "tests.guard.test_guard"])
