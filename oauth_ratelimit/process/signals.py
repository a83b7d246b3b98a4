"""Signals that ask a process to do something, and the threads that they may interrupt."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REQUESTS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}


def background_thread(run: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Return a thread to start that leaves signals to the main thread, as do the threads that it starts."""

    def run_apart() -> None:
        leave_signals_to_main_thread()
        run()

    return threading.Thread(target=run_apart, name=f"oauth_ratelimit-{name}", daemon=daemon)


def leave_signals_to_main_thread() -> None:
    """Let no such signal interrupt this thread, unless it is the main one.

    A server's handler below Python runs in any thread. That of uWSGI ends the interpreter, which then waits for the
    main thread for ever. Under gevent all threads are the main one; only Linux shows that.
    """
    if sys.platform == "linux" and threading.get_native_id() != os.getpid():
        signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)


@contextmanager
def signals_held() -> Iterator[None]:
    """Have such signals wait until the block ends, in this thread."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
