"""The extension: one line that protects an Authlib server on Flask."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

import structlog
from authlib.integrations.flask_oauth2 import token_authenticated
from flask import Flask, Response, abort

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.config import ConfigSource, Settings, load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter, Caller
from oauth_ratelimit.flask_authlib.endpoints import caller_of_token, decide_at, decide_token
from oauth_ratelimit.flask_authlib.hooks import attach, has_grant
from oauth_ratelimit.flask_authlib.middleware import with_quota
from oauth_ratelimit.flask_authlib.request_state import EXTENSION, username_of
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.observe.observer import Callbacks, Hook


class WatchedFile:
    """A configuration file that is looked at now and then, and read without looking when somebody asks.

    Args:
        source: The file. Only ``poll`` uses it.
    """

    def __init__(self, source: ConfigSource) -> None:
        self._source = source
        self._is_asked = False

    def ask(self) -> None:
        """
        Have the next ``poll`` read the file even if it looks unchanged. Does nothing else, as in a signal handler.
        """
        self._is_asked = True

    def poll(self) -> Settings | None:
        """Return new settings, None if there are none."""
        if self._is_asked:
            self._is_asked = False
            log.info("reload_requested", path=self._source.path)
            return self._source.reload()
        return self._source.poll()


def ask_on_hangup(file: WatchedFile) -> bool:
    """Have SIGHUP ask for the file, and whoever handled the signal before handle it, too.

    Returns:
        Whether that is possible: not outside of the main thread, not where there is no such signal, and not where
        the server has taken it below Python, as uWSGI does.
    """
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    former = signal.getsignal(number)
    if former is None:
        return False

    def handle(signal_number: int, frame: FrameType | None) -> None:
        file.ask()
        if callable(former):
            former(signal_number, frame)

    signal.signal(number, handle)
    return True


log = structlog.get_logger(__name__)

EXIT = f"{EXTENSION}.exit"  # in app.extensions, once for each application

CONFIG_KEY = "OAUTH_RATELIMIT_CONFIG"
MONGO_URI_KEY = "OAUTH_RATELIMIT_MONGO_URI"
MODE_KEY = "OAUTH_RATELIMIT_MODE"
SIGHUP_KEY = "OAUTH_RATELIMIT_RELOAD_ON_SIGHUP"


class OAuthRateLimit:
    """Limits how many tokens a client takes from an Authlib authorization server.

    Args:
        app: The Flask application; None if ``init_app`` follows.
        server: Its Authlib server.
        username_of: Names a user object; by default its ``username``, ``get_user_id()`` or ``id``.
        caller_of: Tells whose a token is that a ``ResourceProtector`` has validated; by default what its ``client_id``
            and its ``user``, ``username``, ``user_id`` or ``sub`` say. Matters for the configured ``endpoints`` only.
        authorize_endpoint: Whether tokens from the authorization endpoint (implicit, hybrid) are limited, too. A
            denial there goes to the client's redirect URI.
        on_denied: Called as ``on_denied(decision, client_id=..., username=..., grant_type=...)`` with each denied
            request, before it is answered; ``decision.decision_id`` names it in the answer and in the log. What it
            raises is logged and changes nothing.
        on_near_limit: Called likewise with each request that is admitted with less than a fifth of its quota left.
        clock: Tells the time in seconds since the epoch; instances that share counters must agree on it.
    """

    _app_limiter_type: type[AppLimiter] = AppLimiter

    def __init__(
        self,
        app: Flask | None = None,
        server: Any = None,
        *,
        username_of: Callable[[Any], str] = username_of,
        caller_of: Callable[[Any], Caller | None] = caller_of_token,
        authorize_endpoint: bool = False,
        on_denied: Hook | None = None,
        on_near_limit: Hook | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._username_of = username_of
        self._caller_of = caller_of
        self._authorize_endpoint = authorize_endpoint
        self._on_denied = on_denied
        self._on_near_limit = on_near_limit
        self._clock = clock
        if app is not None or server is not None:
            self.init_app(app, server)

    def init_app(self, app: Flask | None, server: Any) -> None:
        """Protect the token endpoint of an application, whatever grants are registered, before or after.

        Reads from ``app.config``, once:

        - ``OAUTH_RATELIMIT_CONFIG``: path of the configuration file, or a mapping. None runs a dry run with the
          default limits, in this process only.
        - ``OAUTH_RATELIMIT_MONGO_URI``: instead of the file's ``store.uri``.
        - ``OAUTH_RATELIMIT_MODE``: instead of the file's ``mode``.
        - ``OAUTH_RATELIMIT_RELOAD_ON_SIGHUP``: whether SIGHUP has the file read again at once. A changed file is
          taken over within seconds without it.

        The environment variable ``OAUTH_RATELIMIT_MODE=off`` switches everything off, whatever else is said.

        The quota headers are added where an answer leaves ``app.wsgi_app``: response objects do not have them yet.

        One server may serve several applications, and this object may be used for several. Nothing is started before
        the first request.

        Raises:
            ConfigError: The configuration cannot be used.
            RuntimeError: The application is protected already.
            TypeError: An argument is missing, or no Authlib server.
        """
        if app is None or server is None:
            raise TypeError("OAuthRateLimit needs both the Flask application and its Authlib server")
        if EXTENSION in app.extensions:
            raise RuntimeError("this application has an OAuthRateLimit already; create one and initialise it once")
        is_switched_off = _is_switched_off()
        gate = self._app_limiter_type(
            _read(app.config, mode=Mode.OFF.value if is_switched_off else None),
            username_of=self._username_of,
            caller_of=self._caller_of,
            callbacks=Callbacks(
                partial(has_grant, server), on_denied=self._on_denied, on_near_limit=self._on_near_limit
            ),
            authorize_endpoint=self._authorize_endpoint,
            is_switched_off=is_switched_off,
            clock=self._clock,
        )
        attach(server)
        token_authenticated.connect(decide_token, weak=False)  # once, however often this is called
        app.extensions[EXTENSION] = gate
        if EXIT not in app.extensions:
            app.wsgi_app = app.extensions[EXIT] = with_quota(app.wsgi_app)  # type: ignore[assignment,method-assign]
        if app.config.get(CONFIG_KEY) is None:
            log.warning(
                "running_unconfigured",
                mode=gate.settings.policies.mode.value,
                shared=gate.settings.store.uri is not None,
                hint=f"set {CONFIG_KEY} to the path of a configuration file",
            )

    @staticmethod
    def start(app: Flask) -> None:
        """Start in this process now, instead of with its first request, and learn the keys that were busy last.

        For a worker that should know the counts before it takes traffic. To be called after any fork, such as in
        gunicorn's ``post_worker_init``. Waits for MongoDB, as long as ``store.timeout``; without an answer the worker
        starts without the counts.

        Args:
            app: The application, initialised.

        Raises:
            KeyError: It is not protected.
        """
        gate: AppLimiter = app.extensions[EXTENSION]
        gate.start()

    @staticmethod
    def limit(client_id: str, username: str | None = None) -> None:
        """Count this HTTP request at the configured endpoint that it is for, if any, and answer 429 if it is denied.

        For endpoints that neither Authlib's server nor its ``ResourceProtector`` guards. Call it when it is proven
        who asks. Does nothing in an application that this extension does not protect.

        Args:
            client_id: The authenticated client.
            username: The user on whose behalf, None if there is none.

        Raises:
            HTTPException: The request is denied; Flask makes an answer of it.
        """
        try:
            decide_at(Caller(client_id, username))
        except RateLimited as exc:
            status, body, headers = exc()
            abort(Response(json.dumps(dict(body)), status=status, headers=headers))


def _read(config: Mapping[str, Any], *, mode: str | None) -> LiveSettings:
    """Return the settings that the application's configuration names."""
    source, given = config.get(CONFIG_KEY), _given(config, mode=mode)
    if source is None or isinstance(source, Mapping):
        return LiveSettings(load_config(source or {}, **given), lambda: None)
    found = ConfigSource(source, **given)
    settings, file = found.load(), WatchedFile(found)
    if config.get(SIGHUP_KEY) and not ask_on_hangup(file):
        log.warning("sighup_not_available", hint="a changed file is taken over all the same")
    return LiveSettings(settings, file.poll)


def configured_settings(config: Mapping[str, Any]) -> Settings:
    """Return what the application's configuration names, now, whether or not the emergency switch is pulled here."""
    return load_config(config.get(CONFIG_KEY) or {}, **_given(config))


def _given(config: Mapping[str, Any], *, mode: str | None = None) -> dict[str, str | None]:
    """Return what the application's configuration says instead of the file's, a mode that is given first."""
    return {"mode": mode or config.get(MODE_KEY) or None, "uri": config.get(MONGO_URI_KEY) or None}


def _is_switched_off() -> bool:
    """Return whether the operator has pulled the emergency switch."""
    said = os.environ.get(MODE_KEY, "").strip().lower()
    if said and said != Mode.OFF.value:
        log.warning("environment_ignored", variable=MODE_KEY, value=said, allowed=[Mode.OFF.value])
    return said == Mode.OFF.value
