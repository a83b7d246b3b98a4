"""Hooks of the guard: check a token request before authentication, and count failed authentications.

A request may name several clients at once, such as one in its Authorization header and another in its form. All of
them are checked, so that a guess cannot hide behind another name.
"""

from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any

from authlib.oauth2.rfc6749.util import extract_basic_authorization
from flask import Request, request

from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey, FailureKind, address_of, folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.endpoints import NO_SECRET
from oauth_ratelimit.flask_authlib.request_state import RequestState, current_state
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.guard import Guard

MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
ASSERTION = "client_assertion"  # RFC 7523; its client is known once it is verified
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

CLIENT_ERROR = "invalid_client"
USER_ERRORS = frozenset({"invalid_grant", "invalid_request", "access_denied"})  # Authlib's password grant: the second


@dataclass(slots=True)
class GuardState:
    """Facts of the guard about one request.

    Attributes:
        attempt: Clients and users that the request names, and its address.
        is_over_limit: True after too many failures, in a dry run, too. The failure of such a request is not counted,
            unless only passed-on passwords are over their limit and in a dry run.
        client_id: The authenticated client, None before.
        is_public: True if the client was authenticated without a secret.
    """

    attempt: AuthAttempt
    is_over_limit: bool = False
    client_id: str | None = None
    is_public: bool = False


def check_guard() -> bool:
    """Raise if a token request comes after too many failures. Runs before any secret is checked, and counts nothing.

    A request that names its client only in an assertion is left to ``record_authenticated_client``, because the client
    may be a trusted one.

    Returns:
        True if the guard checks this request.
    """
    state = current_state()
    if state is None or state.is_authorize:
        return False
    denial = None
    with state.app_limiter.fail_open("guard_failed"):
        guard = state.app_limiter.guard()  # may start the worker, which may fail
        if guard is None:
            return False
        if state.guard is None:
            attempt = _attempt_of(request._get_current_object(), state.app_limiter)  # type: ignore[attr-defined,unused-ignore]
            if attempt is None or not guard.is_watching(attempt.address):
                return False
            state.guard = GuardState(attempt)
        if state.guard.attempt.client_ids or ASSERTION not in request.form:
            denial = _denial(guard, state, state.guard, state.guard.attempt)
    if denial is not None:
        raise denial
    return state.guard is not None


def record_authenticated_client(client: Any, oauth_request: Any) -> None:
    """Store the authenticated client, and raise if it was not checked before and comes after too many failures."""
    state = current_state()
    if state is None or state.guard is None:
        return
    denial = None
    with state.app_limiter.fail_open("guard_failed"):
        found = state.guard
        found.client_id = _short(str(client.get_client_id()))
        found.is_public = getattr(oauth_request, "auth_method", None) == NO_SECRET
        guard = state.app_limiter.guard()
        if guard is not None and found.client_id not in found.attempt.client_ids:
            denial = _denial(guard, state, found, replace(found.attempt, client_ids=(found.client_id,)))
    if denial is not None:
        raise denial


def record_failure(error: Any) -> None:
    """Count the error that Authlib is about to answer with, if it is a failed authentication."""
    state = current_state()
    found = None if state is None else state.guard
    if state is None or found is None or found.is_over_limit or isinstance(error, RateLimited):
        return
    with state.app_limiter.fail_open("guard_failed"):
        guard = state.app_limiter.guard()
        if guard is not None:
            guard.count(_failures(found, getattr(error, "error", None)))


def _failures(found: GuardState, error: str | None) -> list[FailureKey]:
    """Return the keys that a failure counts against.

    A wrong client secret does not count against the user named beside it, whose password was not checked.
    """
    attempt = found.attempt
    if error == CLIENT_ERROR:
        return [*map(attempt.client_key, attempt.client_ids), attempt.address_key()]
    if error in USER_ERRORS and found.client_id is not None and attempt.usernames:
        if found.is_public:
            return [*attempt.user_keys(found.client_id), attempt.address_key()]
        return [*attempt.user_keys(found.client_id, FailureKind.PASSED_ON)]
    return []


def _denial(guard: Guard, state: RequestState, found: GuardState, attempt: AuthAttempt) -> RateLimited | None:
    """Return the error for an attempt that comes after too many failures, None if it may go on."""
    settings = state.app_limiter.settings
    alarm = guard.look(attempt)
    if alarm is None:
        return None
    is_denied = not alarm.decision.allowed
    # A dry run of passed-on passwords alone must not stop counting guessed secrets.
    is_dry_run_of_its_own = alarm.key.kind is FailureKind.PASSED_ON and settings.guard.mode is Mode.ENFORCE
    found.is_over_limit = is_denied or not is_dry_run_of_its_own
    if not is_denied:
        return None
    answer = replace(settings.denial, error_description=DESCRIPTION, error_uri=None)
    return RateLimited(alarm.decision, answer, grant_type=request.form.get("grant_type"))


def _attempt_of(http_request: Request, app_limiter: AppLimiter) -> AuthAttempt | None:
    """Return the attempt that a request makes, None if its address is unknown or seems to be a proxy's."""
    address = address_of(http_request.remote_addr)
    if address is None:
        app_limiter.log.error("guard_without_address", remote_addr=repr(http_request.remote_addr)[:100])
        return None
    if _seems_proxied(address, http_request):
        app_limiter.log.error("guard_sees_a_proxy", address=address, hint="wrap the application in werkzeug's ProxyFix")
        return None  # one attacker would lock out everybody behind the proxy
    form, query = http_request.form, http_request.args
    client_ids = (_basic_client_id(http_request), form.get("client_id"), query.get("client_id"))
    has_password = "password" in form or "password" in query
    names = (form.get("username"), query.get("username")) if has_password else ()
    return AuthAttempt(
        client_ids=tuple(dict.fromkeys(_short(client_id) for client_id in client_ids if client_id)),
        usernames=tuple(dict.fromkeys(str(app_limiter.limiter.pseudonym_of(folded(name))) for name in names if name)),
        address=address,
    )


def _seems_proxied(address: str, http_request: Request) -> bool:
    """Return True if an address seems to be a proxy's. A client in the same network may forge the header."""
    is_forwarded = PROXY_FIX not in http_request.environ and "X-Forwarded-For" in http_request.headers
    return is_forwarded and ip_network(address).is_private


def _basic_client_id(http_request: Request) -> str | None:
    """Return the client in the Authorization header as Authlib reads it, None if it cannot."""
    try:
        client_id: str | None = extract_basic_authorization(http_request.headers)[0]
    except ValueError:  # not Unicode: Authlib answers 500
        return None
    return client_id


def _short(client_id: str) -> str:
    return storable_name(client_id, MAX_CLIENT_ID_LENGTH)
