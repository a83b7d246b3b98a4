"""Hooks of the guard: reserve a guess before a client or a user is authenticated, and settle it afterwards.

Secrets of clients are guarded wherever Authlib authenticates a client, passwords of users at the token endpoint. A
request may name several clients at once, such as one in its Authorization header and another in its form. It counts
against all of them, so that a guess cannot hide behind another name.
"""

import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any

from authlib.oauth2.rfc6749.util import extract_basic_authorization
from flask import Request, current_app, has_request_context, request

from oauth_ratelimit.core.failed_auth import folded, networks_of, password_keys, secret_keys
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.flask_authlib.endpoints import NO_SECRET
from oauth_ratelimit.flask_authlib.request_state import RequestState, current_state, token_request
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.guard import Alarm, Guard, Guess

BASIC, POST = "client_secret_basic", "client_secret_post"
ASSERTION = "client_assertion"  # RFC 7523
SECRETS = (BASIC, POST, ASSERTION)
UNNAMED = ""  # no client has this id
MAX_ASSERTION_LENGTH = 100_000
MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

CLIENT_ERROR = "invalid_client"
USER_ERRORS = frozenset({"invalid_grant", "invalid_request", "access_denied"})  # Authlib's password grant: the second


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The guard, and where the request comes from."""

    app_limiter: AppLimiter
    guard: Guard
    networks: tuple[str, ...]


def authenticate_guarded(authenticate: Callable[[], Any], oauth_request: Any) -> Any:
    """Return the authenticated client, or raise before its secret is checked if there were too many failures."""
    app_limiter = _app_limiter()
    if app_limiter is None or not app_limiter.is_guarded:
        return authenticate()
    guarded, guess, claims = None, None, {}
    with app_limiter.fail_open("guard_failed"):
        guarded = _guarded(app_limiter)
        if guarded is not None:
            claims = _claimed_clients(request._get_current_object())  # type: ignore[attr-defined,unused-ignore]
            keys = [key for claim in set(claims.values()) for key in secret_keys(claim, guarded.networks)]
            guess = guarded.guard.reserve(keys, cost=_secret_count(claims))
    if guarded is None or guess is None:
        return authenticate()
    if isinstance(guess, Alarm):
        raise _denial(guarded.app_limiter, guess)
    failed: set[str] = set()
    try:
        client = authenticate()
        with guarded.app_limiter.fail_open("guard_failed"):
            failed = _other_secrets(claims, client, getattr(oauth_request, "auth_method", None))
        return client
    except Exception as exc:
        if getattr(exc, "error", None) == CLIENT_ERROR:
            failed = set(claims.values())
        raise
    finally:
        with guarded.app_limiter.fail_open("guard_failed"):
            guarded.guard.settle(guess, failed=[key for key in guess.keys if key.client_id in failed])


def reserve_password(client: Any, oauth_request: Any) -> None:
    """Raise if a token request with a user's password comes after too many failures. Its client is authenticated."""
    state = current_state()
    if state is None or state.is_authorize or state.guess is not None or not state.app_limiter.is_guarded:
        return
    alarm = None
    with state.app_limiter.fail_open("guard_failed"):
        names = _claimed_users(state.app_limiter)
        guarded = _guarded(state.app_limiter) if names else None
        if guarded is not None:
            client_id = str(client.get_client_id())
            is_public = getattr(oauth_request, "auth_method", None) == NO_SECRET
            short_id = storable_name(client_id, MAX_CLIENT_ID_LENGTH)
            keys = password_keys(short_id, names, guarded.networks, is_public=is_public)
            found = guarded.guard.reserve(keys, is_exempt=not is_public and guarded.guard.trusts(client_id))
            if isinstance(found, Alarm):
                alarm = found
            else:
                state.guess = found
    if alarm is not None:
        raise _denial(state.app_limiter, alarm)


def settle_password(state: RequestState | None, error: Any = None) -> None:
    """Count the password of a request as wrong if this is the error of one; else release it."""
    if state is None or state.guess is None:
        return
    with state.app_limiter.fail_open("guard_failed"):
        guard = state.app_limiter.guard()
        guess: Guess = state.guess
        if guard is not None:
            is_wrong = getattr(error, "error", None) in USER_ERRORS
            guard.settle(guess, failed=guess.keys if is_wrong else ())


def _app_limiter() -> AppLimiter | None:
    state = token_request.get()
    if state is not None:
        return state.app_limiter
    if not has_request_context():
        return None
    app_limiter: AppLimiter | None = current_app.extensions.get(EXTENSION)
    return app_limiter


def _guarded(app_limiter: AppLimiter) -> _Guarded | None:
    """Return the guard, None if it is off, or if the address is unknown, trusted, or seems to be a proxy's."""
    guard = app_limiter.guard()  # may start the worker, which may fail
    if guard is None:
        return None
    networks = networks_of(request.remote_addr)
    if not networks:
        app_limiter.log.error("guard_without_address", remote_addr=repr(request.remote_addr)[:100])
        return None
    if _seems_proxied(networks[0]):
        app_limiter.log.error(
            "guard_sees_a_proxy", address=networks[0], hint="wrap the application in werkzeug's ProxyFix"
        )
        return None  # one attacker would lock out everybody behind the proxy
    return _Guarded(app_limiter, guard, networks) if guard.is_watching(networks[0]) else None


def _denial(app_limiter: AppLimiter, alarm: Alarm) -> RateLimited:
    answer = replace(app_limiter.settings.denial, error_description=DESCRIPTION, error_uri=None)
    return RateLimited(alarm.decision, answer, grant_type=request.form.get("grant_type"))


def _claimed_clients(http_request: Request) -> dict[str, str]:
    """Return the clients that a request names, by the credential that names them; never none.

    All of them are folded, see ``core.failed_auth``. The client of an assertion is known before it is verified.
    """
    form, query = http_request.form, http_request.args
    found = {
        BASIC: _basic_client_id(http_request),
        POST if "client_secret" in form else "form": form.get("client_id"),
        "query": query.get("client_id"),
        ASSERTION: _subject(form.get(ASSERTION)),
    }
    return {credential: folded(name) for credential, name in found.items() if name} or {"": UNNAMED}


def _secret_count(claims: dict[str, str]) -> int:
    """Return the number of secrets that may be tried for one client: Authlib tries one after the other."""
    return max(Counter(claims[each] for each in SECRETS if each in claims).values(), default=1)


def _other_secrets(claims: dict[str, str], client: Any, method: str | None) -> set[str]:
    """Return the clients whose credentials are in a request beside those of the authenticated client.

    They may have been tried first, and were wrong: the answer would tell when one of them is right.
    """
    used = method if method in (BASIC, POST) else None if method == NO_SECRET else ASSERTION
    own = folded(str(client.get_client_id()))
    return {claims[each] for each in SECRETS if each in claims and each != used} - {own, claims.get(str(used))}


def _claimed_users(app_limiter: AppLimiter) -> list[str]:
    """Return the pseudonyms of the users that a request with a password names."""
    form, query = request.form, request.args
    if "password" not in form and "password" not in query:
        return []
    names = {folded(name) for name in (form.get("username"), query.get("username")) if name}
    return [str(app_limiter.limiter.pseudonym_of(name)) for name in names]


def _seems_proxied(network: str) -> bool:
    """Return True if an address seems to be a proxy's. A client in the same network may forge the header."""
    is_forwarded = PROXY_FIX not in request.environ and "X-Forwarded-For" in request.headers
    return is_forwarded and not ip_network(network).is_global  # 100.64.0.0/10 is neither global nor private


def _basic_client_id(http_request: Request) -> str | None:
    """Return the client in the Authorization header as Authlib reads it, None if it cannot."""
    try:
        client_id: str | None = extract_basic_authorization(http_request.headers)[0]
    except ValueError:  # not Unicode: Authlib answers 500
        return None
    return client_id


def _subject(assertion: str | None) -> str | None:
    """Return the client that an assertion names, None if it names none."""
    parts = (assertion or "")[:MAX_ASSERTION_LENGTH].split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject if isinstance(subject, str) else None
