"""Hooks of the guard: reserve a guess before a client or a user is authenticated, and settle it afterwards.

Secrets of clients are guarded wherever Authlib authenticates a client, passwords of users at the token endpoint. A
request may name several clients at once, such as one in its Authorization header and another in its form. It counts
against all of them, so that a guess cannot hide behind another name.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network
from typing import Any, NamedTuple

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
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # its assertion is signed with the client's secret or key
UNNAMED = ""  # no client has this id
MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

CLIENT_ERROR = "invalid_client"
USER_ERRORS = frozenset({"invalid_grant", "invalid_request", "access_denied"})  # Authlib's password grant: the second
SIGNATURE_ERROR = "bad_signature"


class Claim(NamedTuple):
    """A client that a request names.

    Attributes:
        client_id: The id, as it is written.
        folded_id: One form for all spellings of it, see ``core.failed_auth``.
        method: Method that takes the secret beside it; None if there is none.
    """

    client_id: str
    folded_id: str
    method: str | None


def _claim(client_id: str | None, method: str | None = None) -> Claim:
    return Claim(client_id or UNNAMED, folded(client_id) if client_id else UNNAMED, method)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The guard, the request, and where it comes from."""

    app_limiter: AppLimiter
    guard: Guard
    request: Request
    networks: tuple[str, ...]

    def deny(self, alarm: Alarm) -> RateLimited:
        """Return the error of a denied attempt."""
        answer = replace(self.app_limiter.settings.denial, error_description=DESCRIPTION, error_uri=None)
        return RateLimited(alarm.decision, answer, grant_type=self.request.form.get("grant_type"))


# Secrets of clients.


def authenticate_guarded(app_limiter: AppLimiter, authenticate: Callable[[], Any], oauth_request: Any) -> Any:
    """Return the authenticated client, or raise before its secret is checked if there were too many failures."""

    def wrong(claims: Sequence[Claim], client: Any, error: Any) -> Iterable[Claim]:
        if error is None:
            return _other_secrets(claims, client, getattr(oauth_request, "auth_method", None))
        return claims if getattr(error, "error", None) == CLIENT_ERROR else ()

    return _check_secrets(app_limiter, authenticate, _claimed_clients, wrong)


def guard_grant(app_limiter: AppLimiter, grant: Any) -> None:
    """Have a grant ask the guard if it proves the client by an assertion, and not with Authlib's server."""
    if getattr(grant, "GRANT_TYPE", None) == JWT_BEARER:
        grant.validate_token_request = partial(_check_assertion, app_limiter, grant, grant.validate_token_request)


def _check_assertion(app_limiter: AppLimiter, grant: Any, check: Callable[[], Any]) -> Any:
    vars(grant).pop("validate_token_request", None)  # it refers to the grant, which refers to the request
    return _check_secrets(app_limiter, check, _claimed_issuer, _with_wrong_signature)


def _check_secrets(
    app_limiter: AppLimiter,
    check: Callable[[], Any],
    read_claims: Callable[[Request], list[Claim]],
    wrong: Callable[[Sequence[Claim], Any, Any], Iterable[Claim]],
) -> Any:
    """Return the result of a check of secrets, or raise before it if there were too many failures.

    Args:
        app_limiter: Has the guard.
        check: Checks the secrets of the request.
        read_claims: Returns the clients that the request names.
        wrong: Returns those whose secrets were wrong, from all of them, the result, and the error.
    """
    guarded, found = None, None
    claims: list[Claim] = []
    with app_limiter.fail_open("guard_failed"):
        guarded = _guarded(app_limiter)
        if guarded is not None:
            claims = read_claims(guarded.request)
            clients = {claim.folded_id for claim in claims}
            keys = [key for client_id in clients for key in secret_keys(client_id, guarded.networks)]
            found = guarded.guard.reserve(keys, cost=_secret_count(claims))
    if guarded is None or found is None:
        return check()
    if isinstance(found, Alarm):
        raise guarded.deny(found)
    try:
        result = check()
    except BaseException as exc:
        _settle_secrets(guarded, found, partial(wrong, claims, None, exc))
        raise
    _settle_secrets(guarded, found, partial(wrong, claims, result, None))
    return result


def _settle_secrets(guarded: _Guarded, guess: Guess, wrong: Callable[[], Iterable[Claim]]) -> None:
    """Count the secrets of a request that were wrong, and release the others."""
    with guarded.app_limiter.fail_open("guard_failed"):
        failed = {claim.folded_id for claim in wrong()}
        guarded.guard.settle(guess, failed=[key for key in guess.keys if key.client_id in failed])


def _claimed_clients(http_request: Request) -> list[Claim]:
    """Return the clients that a request names, at least one. That of an assertion is known before it is verified."""
    form, query = http_request.form, http_request.args
    claims = [
        _claim(_basic_client_id(http_request), BASIC),
        _claim(form.get("client_id"), POST if "client_secret" in form else None),
        _claim(query.get("client_id")),
    ]
    found = [claim for claim in claims if claim.client_id]
    if form.get(ASSERTION):  # also if it cannot be read here: the server may read it
        found.append(_claim(_named_in(form[ASSERTION], "sub"), ASSERTION))
    return found or [_claim(UNNAMED)]


def _claimed_issuer(http_request: Request) -> list[Claim]:
    """Return the client that has signed the assertion of a request, if it has."""
    return [_claim(_named_in(http_request.form.get("assertion", ""), "iss"), ASSERTION)]


def _secret_count(claims: Iterable[Claim]) -> int:
    """Return the number of secrets that may be tried for one client: Authlib tries one after the other."""
    with_secrets = [claim.folded_id for claim in claims if claim.method]
    return max(map(with_secrets.count, with_secrets), default=1)


def _other_secrets(claims: Iterable[Claim], client: Any, method: str | None) -> list[Claim]:
    """Return the claims with secrets beside that of the authenticated client.

    They may have been tried first, and were wrong: the answer would tell when one of them is right. Ids are compared as
    they are written, because the attacker may own a client whose id is a spelling of another one's.
    """
    own_id = str(client.get_client_id())
    own = method if method in (BASIC, POST) else None if method == NO_SECRET else ASSERTION
    return [claim for claim in claims if claim.method not in (None, own) and claim.client_id != own_id]


def _with_wrong_signature(claims: Sequence[Claim], _result: Any, error: Any) -> Iterable[Claim]:
    """Return the claims if a signature was wrong. An expired assertion, or one for an unknown user, is no guess."""
    return claims if getattr(getattr(error, "__cause__", None), "error", None) == SIGNATURE_ERROR else ()


def _basic_client_id(http_request: Request) -> str | None:
    """Return the client in the Authorization header as Authlib reads it, None if it cannot."""
    try:
        client_id: str | None = extract_basic_authorization(http_request.headers)[0]
    except ValueError:  # not Unicode: Authlib answers 500
        return None
    return client_id


def _named_in(assertion: str, name: str) -> str:
    """Return the client that an assertion names in one of its claims, ``UNNAMED`` if it cannot be read."""
    parts = assertion.split(".")
    if len(parts) != 3:
        return UNNAMED
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return UNNAMED
    client_id = claims.get(name) if isinstance(claims, dict) else None
    return client_id if isinstance(client_id, str) else UNNAMED


# Passwords of users.


def reserve_password(client: Any, oauth_request: Any) -> None:
    """Raise if a token request with a user's password comes after too many failures. Its client is authenticated."""
    state = current_state()
    if state is None or state.is_authorize or state.guess is not None:
        return
    guarded, found = None, None
    with state.app_limiter.fail_open("guard_failed"):
        guarded = _guarded(state.app_limiter)
        if guarded is not None and ("password" in guarded.request.form or "password" in guarded.request.args):
            client_id = str(client.get_client_id())
            is_public = getattr(oauth_request, "auth_method", None) == NO_SECRET
            keys = password_keys(
                storable_name(client_id, MAX_CLIENT_ID_LENGTH),
                _claimed_users(guarded),
                guarded.networks,
                is_public=is_public,
            )
            found = guarded.guard.reserve(keys, is_exempt=not is_public and guarded.guard.trusts(client_id))
    if isinstance(found, Guess):
        state.guess = found
    elif guarded is not None and found is not None:
        raise guarded.deny(found)


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


def _claimed_users(guarded: _Guarded) -> list[str]:
    """Return the pseudonyms of the users that the request names, which may be none."""
    form, query = guarded.request.form, guarded.request.args
    names = {folded(name) for name in (form.get("username"), query.get("username")) if name}
    return [str(guarded.app_limiter.limiter.pseudonym_of(name)) for name in names]


# Both.


def guarding_limiter() -> AppLimiter | None:
    """Return the limiter of the current request, None if there is none or its guard is off."""
    state = token_request.get()
    if state is not None:
        app_limiter: AppLimiter | None = state.app_limiter
    else:
        app_limiter = current_app.extensions.get(EXTENSION) if has_request_context() else None
    return app_limiter if app_limiter is not None and app_limiter.is_guarded else None


def _guarded(app_limiter: AppLimiter) -> _Guarded | None:
    """Return the guard, None if it is off, or if the address is unknown, trusted, or seems to be a proxy's."""
    guard = app_limiter.guard()  # may start the worker, which may fail
    if guard is None:
        return None
    http_request = request._get_current_object()  # type: ignore[attr-defined,unused-ignore]
    address = http_request.remote_addr or ""
    networks = networks_of(address)
    if not networks:
        app_limiter.log.error("guard_without_address", remote_addr=repr(address)[:100])
        return None
    if _seems_proxied(http_request, networks[0]):
        app_limiter.log.error(
            "guard_sees_a_proxy", address=networks[0], hint="wrap the application in werkzeug's ProxyFix"
        )
        return None  # one attacker would lock out everybody behind the proxy
    return _Guarded(app_limiter, guard, http_request, networks) if guard.is_watching(address) else None


def _seems_proxied(http_request: Request, network: str) -> bool:
    """Return True if an address seems to be a proxy's. A client in the same network may forge the header."""
    environ = http_request.environ
    is_forwarded = "HTTP_X_FORWARDED_FOR" in environ and PROXY_FIX not in environ
    return is_forwarded and not ip_network(network).is_global  # 100.64.0.0/10 is neither global nor private
