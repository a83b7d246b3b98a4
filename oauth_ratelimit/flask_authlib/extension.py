"""The extension: one line that protects an Authlib server on Flask."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from authlib.integrations.flask_oauth2 import token_authenticated
from flask import Flask, Response, abort

from oauth_ratelimit.flask_authlib.app_config import CONFIG_KEY, is_switched_off, live_settings
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.caller import Caller, caller_of_token, username_of
from oauth_ratelimit.flask_authlib.endpoints import limit_caller, limit_token_owner
from oauth_ratelimit.flask_authlib.hooks import attach, has_grant
from oauth_ratelimit.flask_authlib.middleware import with_quota_headers
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.flask_authlib.start_report import StartReport, run_pending
from oauth_ratelimit.observe.observer import Callbacks, Hook

MIDDLEWARE = f"{EXTENSION}.middleware"  # in app.extensions: an application is wrapped once
PENDING = f"{EXTENSION}.pending"  # in app.extensions: reports that wait for the first request
START = f"{EXTENSION}.start"  # in app.extensions: the report of this start

SUPPORTED = (
    "OAuthRateLimit supports Flask applications with the AuthorizationServer of authlib.integrations.flask_oauth2: "
    "OAuthRateLimit().init_app(app, server). Quart, FastAPI, Django and others can call oauth_ratelimit.Limiter."
)

log = structlog.get_logger(__name__)


class OAuthRateLimit:
    """Limits how many tokens a client gets from an Authlib authorization server.

    Args:
        app: The Flask application; None if ``init_app`` follows.
        server: Its Authlib server.
        username_of: Returns the name of a user object; by default its ``username``, ``get_user_id()`` or ``id``.
        caller_of: Returns the client and user of a token that a ``ResourceProtector`` has validated; by default from
            its ``client_id`` and its ``user``, ``username``, ``user_id`` or ``sub``. Matters for configured
            ``endpoints`` only.
        authorize_endpoint: Limit tokens from the authorization endpoint (implicit, hybrid) like all others. A denial
            there is redirected to the client, as RFC 6749, section 4.2.2.1 says. False leaves them unlimited.
        on_denied: Called as ``on_denied(decision, client_id=..., username=..., grant_type=...)`` with each denied
            request, before it is answered; ``decision.decision_id`` is in the answer and in the log, too. An error in
            it is logged and changes nothing.
        on_near_limit: Called likewise with each request that is admitted with less than a fifth of its quota left.
        clock: Returns the time in seconds since the epoch; instances that share counters must agree on it.
    """

    _app_limiter_type: type[AppLimiter] = AppLimiter
    _reports_start = True

    def __init__(
        self,
        app: Flask | None = None,
        server: Any = None,
        *,
        username_of: Callable[[Any], str] = username_of,
        caller_of: Callable[[Any], Caller | None] = caller_of_token,
        authorize_endpoint: bool = True,
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

        - ``OAUTH_RATELIMIT_CONFIG``: path of the configuration file, or a mapping. A relative path is looked for in
          ``app.root_path``, then in ``app.instance_path``. None runs a dry run with the default limits, in this
          process only.
        - ``OAUTH_RATELIMIT_MONGO_URI``: overrides the file's ``store.uri``.
        - ``OAUTH_RATELIMIT_MODE``: overrides the file's ``mode``.
        - ``OAUTH_RATELIMIT_RELOAD_ON_SIGHUP``: read the file at once on SIGHUP. Without it, a changed file is read
          within seconds.

        The environment variable ``OAUTH_RATELIMIT_MODE=off`` switches everything off, whatever the configuration.

        Quota headers are added by middleware around ``app.wsgi_app``: response objects do not have them yet.

        One server may serve several applications, and this object may protect several. Nothing is started before the
        first request.

        Raises:
            ConfigError: The configuration cannot be used.
            RuntimeError: The application is protected already.
            TypeError: An argument is missing, or no Authlib server.
        """
        if app is None or server is None:
            raise TypeError("OAuthRateLimit needs both the Flask application and its Authlib server")
        check_supported(app, server)
        if EXTENSION in app.extensions:
            raise RuntimeError("this application has an OAuthRateLimit already; create one and initialise it once")
        is_off = is_switched_off()
        app_limiter = self._app_limiter_type(
            live_settings(app, is_switched_off=is_off),
            username_of=self._username_of,
            caller_of=self._caller_of,
            callbacks=Callbacks(
                partial(has_grant, server), on_denied=self._on_denied, on_near_limit=self._on_near_limit
            ),
            authorize_endpoint=self._authorize_endpoint,
            is_switched_off=is_off,
            clock=self._clock,
        )
        attach(server)
        token_authenticated.connect(limit_token_owner, weak=False)  # connects once, however often this is called
        app.extensions[EXTENSION] = app_limiter
        if MIDDLEWARE not in app.extensions:
            app.extensions[PENDING] = []
            app.extensions[MIDDLEWARE] = with_quota_headers(app.wsgi_app, app.extensions[PENDING])
            app.wsgi_app = app.extensions[MIDDLEWARE]  # type: ignore[method-assign]
        if app.config.get(CONFIG_KEY) is None:
            log.warning(
                "running_unconfigured",
                mode=app_limiter.settings.policies.mode.value,
                shared=app_limiter.settings.store.uri is not None,
                hint=f"set {CONFIG_KEY} to the path of a configuration file",
            )
        if self._reports_start:
            app.extensions[START] = StartReport(app, server, app_limiter, app.extensions[PENDING])
            app.extensions[START].attached()

    @staticmethod
    def start(app: Flask) -> None:
        """Start in this process now instead of with its first request, and load the keys that were busy last.

        For a worker that should know the counts before it takes traffic. Call it after any fork, such as in gunicorn's
        ``post_worker_init``. Waits for MongoDB, at most for ``store.timeout``; without an answer the worker starts
        without the counts.

        Args:
            app: The application, initialised.

        Raises:
            KeyError: It is not protected.
        """
        app_limiter: AppLimiter = app.extensions[EXTENSION]
        run_pending(app.extensions[PENDING])
        app_limiter.start()

    @staticmethod
    def limit(client_id: str, username: str | None = None) -> None:
        """Count the current request at its configured endpoint, if any, and answer 429 if it is denied.

        For endpoints that neither Authlib's server nor its ``ResourceProtector`` protects. Call it when the client is
        authenticated. Does nothing in an application that this extension does not protect.

        Args:
            client_id: The authenticated client.
            username: The user it acts for, None if there is none.

        Raises:
            HTTPException: The request is denied; Flask turns it into the response.
        """
        try:
            limit_caller(Caller(client_id, username))
        except RateLimited as exc:
            status, body, headers = exc()
            abort(Response(json.dumps(dict(body)), status=status, headers=headers))


def check_supported(app: Any, server: Any) -> None:
    """Check that these are a Flask application and a server for Flask.

    Raises:
        TypeError: They are not. The message names what is supported.
    """
    if isinstance(server, Flask):
        raise TypeError(f"the application comes first, then the server. {SUPPORTED}")
    if not isinstance(app, Flask):
        raise TypeError(f"got {_type_name(app)} as the application. {SUPPORTED}")
    for parent in type(server).__mro__:
        if parent.__module__.startswith("authlib.integrations.") and ".flask_" not in parent.__module__:
            raise TypeError(f"got {_type_name(server)} as the server, which is not for Flask. {SUPPORTED}")


def _type_name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
