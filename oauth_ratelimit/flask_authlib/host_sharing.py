"""Finds the processes of a host that count together unasked: the workers of one server."""

import os
import signal
import sys

from flask import Flask, has_request_context, request

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.config.settings import AUTO
from oauth_ratelimit.counters.host_place import HostPlace, place_of


def shared_place(app: Flask, live: LiveSettings, *, is_started: bool) -> HostPlace | None:
    """Return where this process counts with the other workers of its server, None if it shares with nobody.

    ``is_started`` is True for a process that the application starts before its first request.
    """
    settings = live.current
    parent = _parent() or (os.getppid() if is_started else None)
    if settings.host != AUTO or parent is None:
        return None
    own = app.import_name, "" if live.file is None else live.file.path
    return place_of(settings.service or own, parent=parent)


def _parent() -> int | None:
    """Return the process that all workers of this one's server descend from, None if it has no others."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is not None:
        first: int = uwsgi.masterpid() or uwsgi.workers()[0]["pid"]  # without a master, which forks the others
        return first
    is_one_of_many = has_request_context() and request.environ.get("wsgi.multiprocess")
    return os.getppid() if is_one_of_many or _is_gunicorn_worker() else None


def _is_gunicorn_worker() -> bool:
    """Return whether gunicorn's arbiter has started this process, by the object that handles its signals.

    A test, or a child that a worker has forked, has the arbiter loaded, too.
    """
    worker = getattr(signal.getsignal(signal.SIGABRT), "__self__", None)
    return "gunicorn.arbiter" in sys.modules and getattr(worker, "ppid", None) == os.getppid()
