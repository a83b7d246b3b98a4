"""What a token request claims before anything is proven, and what became of it: the guard's part of a request.

A request may claim several things at once, such as one client in its Authorization header and another in its form.
All of them are looked at, so that nobody hides a guess behind a claim that does not count.
"""

import traceback
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any

from authlib.oauth2.rfc6749.util import extract_basic_authorization
from flask import Request, request

from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey, FailureKind, address_of, folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.request_state import PUBLIC, RequestState, current_state
from oauth_ratelimit.flask_authlib.responses import RateLimited

MAX_CLIENT_ID_LENGTH = 1024  # of those that the configuration can name
ASSERTION = "client_assertion"  # of RFC 7523; who it is of is known when it is verified
PROXY_FIX = "werkzeug.proxy_fix.orig"  # what Werkzeug's ProxyFix leaves in the environment

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

FAILED_CLIENT = "invalid_client"
FAILED_USER = frozenset({"invalid_grant", "invalid_request", "access_denied"})  # Authlib's own is the second


@dataclass(slots=True)
class GuardState:
    """What is known of the authentication of one request.

    Attributes:
        attempt: What it claims.
        is_late: Whether it comes after too many failures. Then its own failure is not counted, in a dry run neither,
            unless that is one of passwords passed on, alone.
        client_id: The client that has proven itself, None before that.
        is_public: Whether that took no secret.
    """

    attempt: AuthAttempt
    is_late: bool = False
    client_id: str | None = None
    is_public: bool = False


def look_first() -> bool:
    """
    Raise if a token request comes after too many failures. Nothing of it has been checked yet, and nothing is counted.

    One that names its client in an assertion alone is left to ``note_client``: it may be a trusted client's.

    Returns:
        Whether the guard looks at this request.
    """
    mark = current_state()
    if mark is None or mark.is_authorize:
        return False
    denial = None
    try:
        guard = mark.gate.guard()  # may start this process's thread, which may fail
        if guard is None:
            return False
        if mark.claim is None:
            attempt = _attempt(request._get_current_object(), mark.gate)  # type: ignore[attr-defined,unused-ignore]
            if attempt is None or not guard.is_watching(attempt.address):
                return False
            mark.claim = GuardState(attempt)
        if mark.claim.attempt.client_ids or ASSERTION not in request.form:
            denial = _denial(mark, mark.claim.attempt)
    except Exception as exc:  # noqa: BLE001  # fail open
        mark.gate.report("guard_failed", error=repr(exc), traceback=traceback.format_exc())
    if denial is not None:
        raise denial
    return mark.claim is not None


def note_client(client: Any, oauth_request: Any) -> None:
    """Note that the client of a token request is proven. Raise if there were too many failures of it or its users.

    Only for a client that the request has not named in plain sight, such as one with a signed assertion: all others
    were looked at before.
    """
    mark = current_state()
    claim = None if mark is None else mark.claim
    if mark is None or claim is None:
        return
    denial = None
    try:
        claim.client_id = _short(str(client.get_client_id()))
        claim.is_public = getattr(oauth_request, "auth_method", None) == PUBLIC
        attempt = claim.attempt
        if claim.client_id not in attempt.client_ids:
            denial = _denial(mark, AuthAttempt((claim.client_id,), attempt.usernames, attempt.address))
    except Exception as exc:  # noqa: BLE001  # fail open
        mark.gate.report("guard_failed", error=repr(exc), traceback=traceback.format_exc())
    if denial is not None:
        raise denial


def note_error(error: Any) -> None:
    """Count the failure that Authlib is about to answer with, if it is one of authentication."""
    mark = current_state()
    claim = None if mark is None else mark.claim
    if mark is None or claim is None or claim.is_late or isinstance(error, RateLimited):
        return
    try:
        guard = mark.gate.guard()
        if guard is not None:
            guard.count(_failures(claim, getattr(error, "error", None)))
    except Exception as exc:  # noqa: BLE001  # fail open
        mark.gate.report("guard_failed", error=repr(exc), traceback=traceback.format_exc())


def _failures(claim: GuardState, error: str | None) -> list[FailureKey]:
    """Return what a failure is counted against.

    A wrong secret says nothing about the user, so it is not counted against the name that was sent along.
    """
    attempt = claim.attempt
    if error == FAILED_CLIENT:
        return [*map(attempt.client_key, attempt.client_ids), attempt.address_key()]
    if error in FAILED_USER and claim.client_id is not None and attempt.usernames:
        if claim.is_public:
            return [*attempt.user_keys(claim.client_id), attempt.address_key()]
        return [*attempt.user_keys(claim.client_id, FailureKind.PASSED_ON)]
    return []


def _denial(mark: RequestState, attempt: AuthAttempt) -> RateLimited | None:
    guard = mark.gate.guard()
    alarm = None if guard is None else guard.look(attempt)
    if alarm is None or mark.claim is None:
        return None
    is_denied = not alarm.decision.allowed
    # Passwords that are passed on may be on trial where nothing else is: no secret is guessed in the shade of that.
    is_on_trial_alone = alarm.key.kind is FailureKind.PASSED_ON and mark.gate.settings.guard.mode is Mode.ENFORCE
    mark.claim.is_late = is_denied or not is_on_trial_alone
    if not is_denied:
        return None
    answer = replace(mark.gate.settings.denial, error_description=DESCRIPTION, error_uri=None)
    return RateLimited(alarm.decision, answer, grant_type=request.form.get("grant_type"))


def _attempt(http_request: Request, gate: AppLimiter) -> AuthAttempt | None:
    """Return what a request claims; None if it does not say where it comes from, or seems to come from a proxy."""
    address = address_of(http_request.remote_addr)
    if address is None:
        gate.report("guard_without_address", remote_addr=repr(http_request.remote_addr)[:100])
        return None
    if _is_of_a_proxy(address, http_request):
        gate.report("guard_sees_a_proxy", address=address, hint="wrap the application in werkzeug's ProxyFix")
        return None  # one who guesses would lock out everybody behind it
    form, query = http_request.form, http_request.args
    client_ids = (_basic_client_id(http_request), form.get("client_id"), query.get("client_id"))
    has_password = "password" in form or "password" in query
    names = (form.get("username"), query.get("username")) if has_password else ()
    return AuthAttempt(
        client_ids=tuple(dict.fromkeys(_short(client_id) for client_id in client_ids if client_id)),
        usernames=tuple(dict.fromkeys(str(gate.limiter.pseudonym_of(folded(name))) for name in names if name)),
        address=address,
    )


def _is_of_a_proxy(address: str, http_request: Request) -> bool:
    """
    Whether an address looks as if all requests came from it. No proof: a neighbour in its network may forge the header.
    """
    is_forwarded = PROXY_FIX not in http_request.environ and "X-Forwarded-For" in http_request.headers
    return is_forwarded and ip_network(address).is_private


def _basic_client_id(http_request: Request) -> str | None:
    """Return the client in the Authorization header as Authlib reads it, None if it cannot read it."""
    try:
        client_id: str | None = extract_basic_authorization(http_request.headers)[0]
    except ValueError:  # not Unicode: Authlib's answer is a 500
        return None
    return client_id


def _short(client_id: str) -> str:
    return storable_name(client_id, MAX_CLIENT_ID_LENGTH)
