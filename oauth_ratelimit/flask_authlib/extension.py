"""The extension: one line that protects an Authlib server on Flask."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from authlib.integrations.flask_oauth2 import token_authenticated, token_revoked
from authlib.oauth2 import AuthorizationServer
from flask import Flask, Response, abort, current_app
from werkzeug.local import LocalProxy

from oauth_ratelimit.flask_authlib.app_config import CONFIG_KEY, is_switched_off, live_settings
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter, weak_call
from oauth_ratelimit.flask_authlib.endpoints import (
    Caller,
    caller_of_token,
    client_id_of,
    limit_caller,
    limit_token_owner,
    username_of,
)
from oauth_ratelimit.flask_authlib.hooks import RateLimitMixin, attach, has_grant
from oauth_ratelimit.flask_authlib.request_state import with_quota_headers
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.flask_authlib.start_report import StartReport
from oauth_ratelimit.observe.observer import Callbacks, Hook
from oauth_ratelimit.process.log import get_logger

INTEGRATIONS = "authlib.integrations."
MIDDLEWARE = f"{EXTENSION}.middleware"  # in app.extensions: an application is wrapped once

SUPPORTED = (
    "OAuthRateLimit supports Flask applications with the AuthorizationServer of authlib.integrations.flask_oauth2: "
    "OAuthRateLimit().init_app(app, server). Quart, FastAPI, Django and others can call oauth_ratelimit.Limiter."
)

log = get_logger(__name__)


class OAuthRateLimit:
    """Limiter of how many tokens a client gets from an Authlib authorization server.

    Args:
        app: The Flask application; None if ``init_app`` follows.
        server: Its Authlib server, or a list of them. Others of the application are limited if their class has
            ``RateLimitMixin``, else named by ``server_unlimited`` at start.
        client_id_of: Returns the name under which a client is counted, trusted and configured; by default its
            ``get_client_id()``. With tenants whose clients may have the same id: ``"acme/portal"``.
        username_of: Returns the name of a user object; by default its ``username``, ``get_user_id()`` or ``id``.
        caller_of: Returns the client and user of a token that a ``ResourceProtector`` has validated; by default from
            its ``get_client()`` and ``get_user()``, else its ``client_id`` and its ``user``, ``username``, ``user_id``
            or ``sub``. Matters for configured ``endpoints`` only.
        authorize_endpoint: Limit tokens from the authorization endpoint (implicit, hybrid) like all others. A denial
            there is redirected to the client, as RFC 6749, section 4.2.2.1 says. False leaves them unlimited.
        on_denied: Called as ``on_denied(decision, client_id=..., username=..., grant_type=...)`` with each denied
            request, before it is answered; ``decision.decision_id`` is in the answer and in the log, too. An error in
            it is logged and changes nothing.
        is_token_active: Called as ``is_token_active(token)`` with the token of an earlier answer before the client gets
            it again, for limits with ``on_limit: reuse``. If it returns False or raises, the client does not.
        reuse_key: Called as ``reuse_key(client)`` within the request; returns as text what a token depends on besides
            the client and the parameters of the request, such as a header that names a tenant.
        on_near_limit: Called likewise with each request that is admitted with less than a fifth of its quota left.
        clock: Returns the time in seconds since the epoch; instances that share counters must agree on it.
    """

    _app_limiter_type: type[AppLimiter] = AppLimiter

    def __init__(
        self,
        app: Flask | None = None,
        server: Any = None,
        *,
        client_id_of: Callable[[Any], str] = client_id_of,
        username_of: Callable[[Any], str] = username_of,
        caller_of: Callable[[Any], Caller | None] | None = None,
        authorize_endpoint: bool = True,
        on_denied: Hook | None = None,
        on_near_limit: Hook | None = None,
        is_token_active: Callable[[dict[str, Any]], object] | None = None,
        reuse_key: Callable[[Any], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._callbacks = partial(Callbacks, on_denied=on_denied, on_near_limit=on_near_limit)
        self._app_limiter = partial(
            self._app_limiter_type,
            client_id_of=client_id_of,
            username_of=username_of,
            caller_of=caller_of or partial(caller_of_token, client_id_of=client_id_of, username_of=username_of),
            authorize_endpoint=authorize_endpoint,
            is_token_active=is_token_active,
            reuse_key=reuse_key,
            clock=clock,
        )
        if app is not None or server is not None:
            self.init_app(app, server)

    def init_app(self, app: Flask | None, server: Any) -> None:
        """Protect the token endpoint of an application, whatever grants are registered, before or after.

        Reads from ``app.config``, once:

        - ``OAUTH_RATELIMIT_CONFIG``: path of the configuration file, or a mapping. A relative path is looked for in
          ``app.root_path``, then in ``app.instance_path``. None runs a dry run with the default limits, on this
          host only.
        - ``OAUTH_RATELIMIT_MONGO_URI``: overrides the file's ``store.uri``.
        - ``OAUTH_RATELIMIT_MODE``: overrides the file's ``mode``.
        - ``OAUTH_RATELIMIT_RELOAD_ON_SIGHUP``: read the file at once on SIGHUP. Without it, a changed file is read
          within seconds.

        The environment variable ``OAUTH_RATELIMIT_MODE=off`` switches everything off, whatever the configuration.

        Quota headers are added by middleware around ``app.wsgi_app``: response objects do not have them yet.

        One server may serve several applications, and this object may protect several. Nothing is started before the
        first request.

        A file that cannot be used stops nothing: limits are off until it can, which ``config_rejected`` reports.

        Raises:
            ConfigError: What the code names cannot be used: a mapping, ``OAUTH_RATELIMIT_MONGO_URI`` or ``_MODE``.
            RuntimeError: The application is protected already.
            TypeError: An argument is missing, or no Authlib server.
        """
        servers = list(server) if isinstance(server, list | tuple) else [server]
        if app is None or server is None or not servers:
            raise TypeError("OAuthRateLimit needs both the Flask application and its Authlib server")
        servers = supported_servers(app, servers)
        if EXTENSION in app.extensions:
            raise RuntimeError("this application has an OAuthRateLimit already; create one and initialise it once")
        is_off = is_switched_off()
        start_report = StartReport(app, servers, RateLimitMixin)
        app_limiter = self._app_limiter(
            live_settings(app, is_switched_off=is_off, warn=weak_call(start_report, "warn")),
            callbacks=self._callbacks(partial(has_grant, servers)),
            start_report=start_report,
            is_switched_off=is_off,
        )
        for one in servers:
            with app_limiter.fail_open("check_failed"):  # a class may forbid it
                attach(one)
        token_authenticated.connect(limit_token_owner, weak=False)  # connects once, however often this is called
        token_revoked.connect(_forget_tokens, weak=False)
        app.extensions[EXTENSION] = app_limiter
        if MIDDLEWARE not in app.extensions:
            app.extensions[MIDDLEWARE] = with_quota_headers(app.wsgi_app)
            app.wsgi_app = app.extensions[MIDDLEWARE]  # type: ignore[method-assign]
        if app.config.get(CONFIG_KEY) is None:
            log.warning(
                "running_unconfigured",
                mode=app_limiter.settings.policies.mode.value,
                shared=app_limiter.settings.store.uri is not None,
                hint=f"set {CONFIG_KEY} to the path of a configuration file",
            )
        if is_off:  # no worker will start, which reports it otherwise
            app_limiter.report_start()

    @staticmethod
    def start(app: Flask) -> None:
        """Start in this process now instead of with its first request, and load the keys that were busy last.

        For a worker that should know the counts before it takes traffic. Call it after any fork, such as in gunicorn's
        ``post_worker_init``. With ``host: auto`` processes of one parent count together after it. Waits for
        MongoDB, at most for ``store.timeout``; without an answer the worker starts without the counts. Raises
        ``KeyError`` if the application is not protected.
        """
        app_limiter: AppLimiter = app.extensions[EXTENSION]
        app_limiter.start()

    def close(self, app: Flask) -> None:
        """Flush for the last time and end the threads and connections of an application, within seven seconds.

        For a process that makes applications and drops them, such as a test. One that is dropped without it ends them
        in the background. A request that comes later starts them again.
        """
        app_limiter: AppLimiter | None = app.extensions.get(EXTENSION)
        if app_limiter is not None:
            app_limiter.close()

    @staticmethod
    def forget_tokens(client_id: str) -> None:
        """Drop the tokens that are kept of a client for ``on_limit: reuse``, within two sync cycles in all processes.

        For an application that revokes tokens other than by Authlib's revocation endpoint. Call it after that. Does
        nothing in an application that this extension does not protect.
        """
        app_limiter: AppLimiter | None = current_app.extensions.get(EXTENSION)
        if app_limiter is not None:
            app_limiter.forget_tokens(client_id)

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
            limit_caller(lambda _: Caller(client_id, username))
        except RateLimited as exc:
            status, body, headers = exc()
            abort(Response(json.dumps(dict(body)), status=status, headers=headers))


def _forget_tokens(_sender: Any, client: Any = None, token: Any = None, **_extra: Any) -> None:
    """Drop the tokens of the client that has revoked one, and of its owner. Receives Authlib's signal."""
    app_limiter: AppLimiter | None = current_app.extensions.get(EXTENSION)
    if app_limiter is not None:
        with suppress(Exception):
            app_limiter.forget_tokens(app_limiter.checked_client_id_of(client))
        with suppress(Exception):  # a token that is deleted may have no attributes left
            app_limiter.forget_tokens(app_limiter.caller_of(token).client_id)


def supported_servers(app: Any, servers: list[Any]) -> list[Any]:
    """Return the servers themselves instead of proxies.

    Raises:
        TypeError: These are no Flask application and servers of Authlib for Flask.
    """
    if any(isinstance(server, Flask) for server in servers):
        raise TypeError(f"the application comes first, then the server. {SUPPORTED}")
    if not isinstance(app, Flask):
        raise TypeError(f"got {_type_name(app)} as the application. {SUPPORTED}")
    with app.app_context():
        servers = [server._get_current_object() if type(server) is LocalProxy else server for server in servers]
    for server in servers:
        others = (kind.__module__ for kind in type(server).__mro__ if ".flask_" not in kind.__module__)
        if not isinstance(server, AuthorizationServer) or any(each.startswith(INTEGRATIONS) for each in others):
            raise TypeError(f"got {_type_name(server)} as the server, which is not Authlib's for Flask. {SUPPORTED}")
    return servers


def _type_name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
