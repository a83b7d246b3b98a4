"""Hooks of the guard: reserve a guess before a client or a user is authenticated, and settle it afterwards.

Secrets of clients are guarded wherever Authlib authenticates a client, passwords of users at the token endpoint.
Authlib looks a client up before it checks its secret, so each look-up is a guess, however the request names the client.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any, NamedTuple

from flask import request

from oauth_ratelimit.core.failed_auth import (
    FailureKey,
    folded,
    networks_of,
    password_keys,
    secret_keys,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.endpoints import NO_SECRET
from oauth_ratelimit.flask_authlib.request_state import current_state
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.guard import Guard, Guess

MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

SIGNATURE_ERROR = "bad_signature"


class _Guarded(NamedTuple):
    app_limiter: AppLimiter
    guard: Guard
    networks: tuple[str, ...]

    def reserve(self, keys: Sequence[FailureKey], **options: bool) -> Guess:
        """Return a guess that may be checked, or raise if there were too many failures."""
        found = self.guard.reserve(keys, **options)
        if isinstance(found, Guess):
            return found
        answer = replace(self.app_limiter.settings.denial, error_description=DESCRIPTION, error_uri=None)
        state = current_state()
        grant_type = None if state is None else getattr(state.grant, "GRANT_TYPE", None)
        raise RateLimited(found.decision, answer, grant_type=grant_type)


# Secrets of clients.


class _Attempt:
    """Guesses at the secrets of the clients that the server looks up for one authentication.

    A client may be looked up once more without its secret: by Authlib's method ``none``, if that is allowed and the
    request names it beside the credentials, or, if an assertion proves it, after the check.
    """

    def __init__(self, guarded: _Guarded, *, is_assertion: bool, needs_secret: bool) -> None:
        self.guarded = guarded
        self._is_assertion = is_assertion
        self._needs_secret = needs_secret
        self._guesses: list[tuple[str, Guess]] = []
        self._once_more: set[str] = set()

    def look_up(self, client_id: str) -> None:
        """Reserve a guess at a client, or raise if there were too many failures. Its secret is not checked yet."""
        if client_id in self._once_more and (self._is_assertion or self._is_named(client_id)):
            self._once_more.remove(client_id)
            return
        guarded = self.guarded
        keys = secret_keys(folded(client_id), guarded.networks)
        if self._is_assertion or "Authorization" in request.headers or not self._is_named(client_id):
            keys += secret_keys(None, guarded.networks)  # else it may be a client without a secret
        self._guesses.append((client_id, guarded.reserve(keys, waits=not self._guesses)))  # it would wait for itself
        self._once_more.add(client_id)

    def settle(self, *, right: str | None = None, were_checked: bool = True) -> None:
        """Count the guesses as wrong, but those at the authenticated client.

        Others may have been tried before it: the answer would tell when one of them is right. Ids are compared as they
        are written, because the attacker may own a client whose id is a spelling of another one's.
        """
        for client_id, guess in self._guesses:
            self.guarded.guard.settle(guess, is_wrong=were_checked and client_id != right)

    def _is_named(self, client_id: str) -> bool:
        """Return True if the request holds a client's id and no secret for it, as Authlib's method ``none`` expects."""
        if self._needs_secret:
            return False
        try:
            values = request.values
        except Exception:  # noqa: BLE001  # a form that cannot be read: the client was named in another way
            return False
        return values.get("client_id") == client_id and not {"client_secret", "client_assertion"}.intersection(values)


_current_attempt: ContextVar[_Attempt | None] = ContextVar("oauth_ratelimit_attempt", default=None)


def authenticate_guarded(app_limiter: AppLimiter, authenticate: Callable[[], Any], methods: Collection[str]) -> Any:
    """Return the authenticated client, or raise before its secret is checked if there were too many failures."""
    with _attempt(app_limiter, needs_secret=NO_SECRET not in methods) as attempt:
        client = authenticate()
        if attempt is not None:
            with app_limiter.fail_open("guard_failed"):
                attempt.settle(right=str(client.get_client_id()))
        return client


def look_up(query: Callable[[str], Any], client_id: str) -> Any:
    """Return a client that the server looks up. Raise if a secret is about to be checked, after too many failures."""
    client, attempt = query(client_id), _current_attempt.get()
    if attempt is not None:
        with attempt.guarded.app_limiter.fail_open("guard_failed"):
            attempt.look_up(str(client.get_client_id() if client else client_id))
    return client


def guard_assertion(app_limiter: AppLimiter, grant: Any) -> None:
    """Have a grant ask the guard that proves the client by an assertion, and not with Authlib's server."""
    with app_limiter.fail_open("guard_failed"):  # a foreign class may forbid it
        grant.validate_token_request = partial(_check_assertion, app_limiter, grant, grant.validate_token_request)


def _check_assertion(app_limiter: AppLimiter, grant: Any, check: Callable[[], Any]) -> Any:
    hooks = vars(grant)
    hooks.pop("validate_token_request", None)  # it refers to the grant, which refers to the request
    with _attempt(app_limiter, is_assertion=True) as attempt:
        if attempt is not None and hasattr(grant, "resolve_issuer_client"):
            grant.resolve_issuer_client = partial(look_up, grant.resolve_issuer_client)
        try:
            return check()
        finally:
            hooks.pop("resolve_issuer_client", None)


@contextmanager
def _attempt(
    app_limiter: AppLimiter, *, is_assertion: bool = False, needs_secret: bool = False
) -> Iterator[_Attempt | None]:
    """Settle the guesses of one authentication at its end: all are wrong after an error. None without a guard.

    A secret that was right would have ended it without an error. Of an assertion, which may also have expired or be for
    an unknown user, only a wrong signature counts.
    """
    attempt = None
    with app_limiter.fail_open("guard_failed"):
        guarded = _guarded(app_limiter)
        if guarded is not None:
            attempt = _Attempt(guarded, is_assertion=is_assertion, needs_secret=needs_secret)
    outer = _current_attempt.set(attempt)
    is_wrong = not is_assertion
    try:
        yield attempt
    except Exception as exc:
        is_wrong = is_wrong or getattr(exc.__cause__, "error", None) == SIGNATURE_ERROR
        raise
    else:
        is_wrong = False  # what is not settled yet
    finally:
        _current_attempt.reset(outer)
        if attempt is not None:
            with app_limiter.fail_open("guard_failed"):
                attempt.settle(were_checked=is_wrong)


# Passwords of users.


def reserve_password(client: Any, oauth_request: Any) -> None:
    """Raise if a token request with a user's password comes after too many failures. Its client is authenticated."""
    state = current_state()
    if state is None or state.is_authorize or state.guess is not None:
        return
    with state.app_limiter.fail_open("guard_failed"):
        guarded = _guarded(state.app_limiter)
        if guarded is None:
            return
        names = _claimed_users()
        if names is None:
            return
        users = [str(state.app_limiter.limiter.pseudonym_of(name)) for name in names]
        client_id = str(client.get_client_id())
        is_public = getattr(oauth_request, "auth_method", None) == NO_SECRET
        stored_id = storable_name(client_id, MAX_CLIENT_ID_LENGTH)
        keys = password_keys(stored_id, users, guarded.networks, is_public=is_public)
        is_trusted = state.app_limiter.settings.policies.trusts(client_id)
        state.guess = guarded.reserve(keys, is_exempt=not is_public and is_trusted)


def _claimed_users() -> set[str] | None:
    """Return the users whose password the request may hold, None without one. If it cannot be read, it names nobody."""
    try:
        places = request.form, request.args
        if not any("password" in place for place in places):
            return None
        return {folded(name) for place in places if (name := place.get("username"))}
    except Exception:  # noqa: BLE001  # a request that breaks the guard gains no guess by it
        return set()


def _guarded(app_limiter: AppLimiter) -> _Guarded | None:
    """Return the guard, None if it is off, or if the address is unknown, trusted, or seems to be a proxy's."""
    guard = app_limiter.guard()  # may start the worker, which may fail
    if guard is None:
        return None
    address = request.remote_addr or ""
    networks = networks_of(address)
    if not networks:
        app_limiter.log.error("guard_without_address", remote_addr=repr(address)[:100])
        return None
    if _seems_proxied(networks[0]):
        app_limiter.log.error(
            "guard_sees_a_proxy", address=networks[0], hint="wrap the application in werkzeug's ProxyFix"
        )
        return None  # one attacker would lock out everybody behind the proxy
    return _Guarded(app_limiter, guard, networks) if guard.is_watching(address) else None


def _seems_proxied(network: str) -> bool:
    """Return True if an address seems to be a proxy's. A client in the same network may forge the header."""
    is_forwarded = "HTTP_X_FORWARDED_FOR" in request.environ and PROXY_FIX not in request.environ
    return is_forwarded and not ip_network(network).is_global  # 100.64.0.0/10 is neither global nor private
