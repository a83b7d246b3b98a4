"""Settings that a Flask application names in ``app.config``, their reload, and the processes that count together."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

from flask import Flask, has_request_context, request

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.config.settings import AUTO
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.counters.host_place import HostPlace, place_of
from oauth_ratelimit.process.identity import PARENT, identity_of
from oauth_ratelimit.process.log import get_logger

CONFIG_KEY = "OAUTH_RATELIMIT_CONFIG"
MONGO_URI_KEY = "OAUTH_RATELIMIT_MONGO_URI"
MODE_KEY = "OAUTH_RATELIMIT_MODE"
SIGHUP_KEY = "OAUTH_RATELIMIT_RELOAD_ON_SIGHUP"
KEYS = (CONFIG_KEY, MONGO_URI_KEY, MODE_KEY, SIGHUP_KEY)
PREFIX = "OAUTH_RATELIMIT_"
MISSPELT_RATIO = 0.85

log = get_logger(__name__)


def reload_on_sighup(file: ConfigFile) -> bool:
    """Have SIGHUP request a reload, and call the former handler, too.

    Returns False where that is not possible: outside of the main thread, without such a signal, or where the server has
    taken it below Python, as uWSGI does.
    """
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    former = signal.getsignal(number)
    if former is None:
        return False

    def handle(signal_number: int, frame: FrameType | None) -> None:
        file.request_reload()
        if callable(former):
            former(signal_number, frame)

    signal.signal(number, handle)
    return True


def live_settings(app: Flask, *, is_switched_off: bool, warn: Callable[[Settings, Settings], None]) -> LiveSettings:
    """Return the settings that the application's configuration names. A file is watched for changes.

    A file that is not valid is logged, and limits are off until it is. Raises ``ConfigError`` if the application's code
    names what cannot be used: a mapping, the mode or the address of MongoDB.
    """
    _warn_of_unknown_keys(app.config)
    overrides = overrides_of(app.config)
    source = config_source(app)
    if is_switched_off:  # whatever is in the file, even if it is broken
        return LiveSettings(load_config({"mode": Mode.OFF.value}), lambda: None)
    if isinstance(source, Mapping):
        return LiveSettings(load_config(source, **overrides), lambda: None)
    load_config({}, **overrides)  # raises
    file = ConfigFile(source, mode=overrides["mode"], uri=overrides["uri"])
    settings = file.load()
    if app.config.get(SIGHUP_KEY) and not reload_on_sighup(file):
        log.warning("sighup_not_available", hint="a changed file is read within seconds all the same")
    return LiveSettings(settings, file.poll, file=file, warn=warn)


def _warn_of_unknown_keys(config: Mapping[str, Any]) -> None:
    for key in filter(lambda key: isinstance(key, str), config):
        like = get_close_matches(key, KEYS, n=1, cutoff=MISSPELT_RATIO)
        if key not in KEYS and (like or key.startswith(PREFIX)):
            hint = f"did you mean {like[0]}?" if like else f"known: {', '.join(KEYS)}"
            log.warning("app_config_ignored", key=key, hint=hint)


def configured_settings(app: Flask) -> Settings:
    """Return the settings that the application's configuration names now, without the emergency switch."""
    return load_config(config_source(app), **overrides_of(app.config))


def config_source(app: Flask) -> Mapping[str, Any] | str:
    """Return the configuration that the application names: a mapping, or the path of the file.

    A relative path is looked for in the application's root folder, then in its instance folder. If the file is in
    neither, the path is relative to the working directory, which differs between a server, cron and a terminal.
    """
    source = app.config.get(CONFIG_KEY)
    if source is None or isinstance(source, Mapping):
        return source or {}
    path = str(os.fspath(source))
    for folder in (app.root_path, app.instance_path):
        found = Path(folder, path)  # an absolute path stays as it is
        with suppress(PermissionError):
            if found.exists():
                return str(found)
    return path


def is_switched_off() -> bool:
    """Return True if the environment has the emergency switch ``OAUTH_RATELIMIT_MODE=off``."""
    value = os.environ.get(MODE_KEY, "").strip().lower()
    if value and value != Mode.OFF.value:
        log.warning("environment_ignored", variable=MODE_KEY, value=value, allowed=[Mode.OFF.value])
    return value == Mode.OFF.value


def overrides_of(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what replaces values of the file: the arguments ``mode`` and ``uri`` of ``load_config``."""
    mode = config.get(MODE_KEY)  # False, if it was a bare off in a YAML file
    return {"mode": Mode.OFF.value if mode is False else mode or None, "uri": config.get(MONGO_URI_KEY) or None}


def shared_place(app: Flask, live: LiveSettings, *, is_started: bool) -> HostPlace | None:
    """Return where this process counts with the other workers of its server, None if it shares with nobody.

    ``is_started`` is True for a process that the application starts before its first request.
    """
    settings = live.current
    parent = _parent() or (PARENT.identity if is_started else None)
    if settings.host != AUTO or parent is None:
        return None
    own = app.import_name, "" if live.file is None else live.file.path
    return place_of(settings.service or own, parent=parent)


def _parent() -> str | None:
    """Return the identity of the process that all workers of this one's server descend from; None without others."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is not None:
        return identity_of(uwsgi.masterpid() or uwsgi.workers()[0]["pid"])  # without a master, it forks the others
    is_one_of_many = has_request_context() and request.environ.get("wsgi.multiprocess")
    return PARENT.identity if is_one_of_many or _is_gunicorn_worker() else None


def _is_gunicorn_worker() -> bool:
    """Return whether gunicorn's arbiter has started this process, by the object that handles its signals.

    A test, or a child that a worker has forked, has the arbiter loaded, too.
    """
    worker = getattr(signal.getsignal(signal.SIGABRT), "__self__", None)
    return "gunicorn.arbiter" in sys.modules and getattr(worker, "ppid", None) == PARENT.pid
