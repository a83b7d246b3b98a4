"""Report of a start: one log line per worker, and the names in the configuration that match nothing."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import click
import structlog
from flask import Flask

from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.grants import grants_of
from oauth_ratelimit.operations.format import canary_text
from oauth_ratelimit.operations.summary import limits_by_kind, names_text, store_text, warnings_of
from oauth_ratelimit.process.fork import call_in_child

log = structlog.get_logger(__name__)


class StartReport:
    """Logs ``ratelimit_started`` once in each process that serves requests.

    It is logged when the extension is attached, if this process will serve requests and the server has its grants; else
    with the first request of the process. Names are checked with the first request, when everything is registered.

    Args:
        app: The application.
        server: Its Authlib server.
        app_limiter: The limiter of the application.
        pending: Reports that wait for the first request of this process.
    """

    def __init__(self, app: Flask, server: Any, app_limiter: AppLimiter, pending: "list[StartReport]") -> None:
        self._app = app
        self._server = server
        self._app_limiter = app_limiter
        self._pending = pending
        self._is_logged = False
        pending.append(self)
        call_in_child(self._begin_again)

    def _begin_again(self) -> None:
        """Report in a forked child, too."""
        self._is_logged = False
        if self not in self._pending:
            self._pending.append(self)

    def attached(self) -> None:
        """Log the line, if this process will serve requests and the server has its grants."""
        if getattr(self._server, "_token_grants", ()) and not _is_loading_for_others():
            self._log_start()

    def run(self) -> None:
        """Log what has not been logged in this process. Never raises."""
        with self._app_limiter.fail_open("check_failed"):
            if not self._is_logged:
                self._log_start()
            self._check_names()

    def _log_start(self) -> None:
        self._is_logged = True
        settings = self._app_limiter.settings
        policies = settings.policies
        grants = grants_of(self._server, authorize_endpoint=self._app_limiter.authorize_endpoint)
        log.info(
            "ratelimit_started",
            mode=policies.mode.value,
            canary=canary_text(policies.canary),
            limits=limits_by_kind(policies),
            store=store_text(settings.store),
            trusted_clients=names_text([*policies.trusted, *policies.trusted_ids]),
            grants=grants.protected,
            unprotected_grants=grants.unprotected,
        )
        for warning in warnings_of(settings):
            log.warning("counters_not_shared", hint=warning)

    def _check_names(self) -> None:
        """Log the grant types and endpoints in the configuration that the application does not have."""
        policies = self._app_limiter.settings.policies
        for name, hint in self.unknown_grants(policies):
            log.warning("grant_unknown", grant_type=name, hint=hint)
        for name, hint in self.unknown_endpoints(policies):
            log.warning("endpoint_unknown", endpoint=name, hint=hint)

    def unknown_grants(self, policies: PolicySet) -> Iterator[tuple[str, str]]:
        """Yield name and hint of each grant type in a configuration that the application does not have."""
        known = grants_of(self._server, authorize_endpoint=True).grant_types
        for name in policies.grants:
            if known is not None and name not in known:
                yield name, _hint(name, known)

    def unknown_endpoints(self, policies: PolicySet) -> Iterator[tuple[str, str]]:
        """Yield name and hint of each endpoint in a configuration that the application does not have."""
        known = {*getattr(self._server, "_endpoints", ()), *self._app.view_functions}
        for name, rules in policies.endpoints.items():
            if not rules.paths and name not in known:
                yield name, _hint(name, known)


def run_pending(pending: list[StartReport]) -> None:
    """Run the reports that wait for the first request. Several threads may call this at once."""
    while pending:
        try:
            report = pending.pop()
        except IndexError:  # another thread was faster
            return
        report.run()


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"{guess}its rules never apply; the application has {', '.join(names_text(names)) or 'none'}"


def _is_loading_for_others() -> bool:
    """Return True if this process loads the application for children, or for a command of ``flask``.

    The children or ``flask run`` report with their first request.
    """
    if click.get_current_context(silent=True) is not None:
        return True
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is not None:
        return not uwsgi.worker_id()
    modules = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        modules.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    # Without --preload gunicorn loads the application in a worker, which the arbiter has forked.
    return "gunicorn.arbiter" in modules and not any(name.startswith("gunicorn.workers.") for name in modules)
