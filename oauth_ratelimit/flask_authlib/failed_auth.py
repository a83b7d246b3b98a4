"""Hooks of the guard: reserve a guess before a client or a user is authenticated, and settle it afterwards.

Secrets of clients are guarded wherever Authlib authenticates a client, passwords of users at the token endpoint. A
request may name several clients at once, such as one in its Authorization header and another in its form. It counts
against all of them, so that a guess cannot hide behind another name.
"""

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network
from typing import Any, NamedTuple

from authlib.oauth2.rfc6749.util import extract_basic_authorization
from flask import Request, request

from oauth_ratelimit.core.failed_auth import (
    FailureKey,
    FailureKind,
    all_secrets_keys,
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

BASIC, POST = "client_secret_basic", "client_secret_post"
ASSERTION = "client_assertion"  # RFC 7523
UNNAMED = ""  # no client has this id
MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix

DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."

CLIENT_ERROR = "invalid_client"
USER_ERRORS = frozenset({"invalid_grant", "invalid_request", "access_denied"})  # Authlib's password grant: the second
SIGNATURE_ERROR = "bad_signature"


class Claim(NamedTuple):
    """A client that a request names, one form for all spellings of its id, and the method that takes its secret."""

    client_id: str
    folded_id: str
    method: str | None


def _claim(client_id: str | None, method: str | None = None) -> Claim:
    return Claim(client_id or UNNAMED, folded(client_id) if client_id else UNNAMED, method)


@dataclass(frozen=True, slots=True)
class _Guarded:
    app_limiter: AppLimiter
    guard: Guard
    request: Request
    networks: tuple[str, ...]

    def reserve(self, keys: Sequence[FailureKey], **options: Any) -> Guess:
        """Return a guess that may be checked, or raise if there were too many failures."""
        found = self.guard.reserve(keys, **options)
        if isinstance(found, Guess):
            return found
        answer = replace(self.app_limiter.settings.denial, error_description=DESCRIPTION, error_uri=None)
        raise RateLimited(found.decision, answer, grant_type=_value(_form_of(self.request), "grant_type"))


# What a request says. The server may read what the guard cannot, so such a request counts all the same.


class _Unreadable:
    """Body that gives each reader the same error. The next one would read what is left of it otherwise."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, *_size: int) -> bytes:
        raise self._error


def _form_of(http_request: Request) -> Mapping[str, str] | None:
    """Return the form, None if it cannot be read, such as one with too many parts."""
    try:
        return http_request.form
    except Exception as exc:  # noqa: BLE001  # the server gets it, too
        http_request.stream = _Unreadable(exc)  # type: ignore[assignment]  # all that a parser calls
        return None


def _query_of(http_request: Request) -> Mapping[str, str] | None:
    """Return the query, None if it cannot be read, such as bytes that some servers pass on."""
    try:
        return http_request.args
    except Exception:  # noqa: BLE001  # as above
        return None


def _value(parameters: Mapping[str, str] | None, name: str) -> str | None:
    return None if parameters is None else parameters.get(name)


# Secrets of clients.


class _Attempt:
    """Guesses at secrets that one authentication may check.

    They count against the address, the clients that the request names, and those that the server looks up besides
    because it reads the request in another way than the guard.
    """

    def __init__(self, guarded: _Guarded, claims: Sequence[Claim], *, lookups_per_claim: int) -> None:
        self.claims = claims
        self.guarded = guarded
        self._guesses: list[Guess] = []
        self._lookups_left = Counter([claim.folded_id for claim in claims] * lookups_per_claim)
        self._found: set[str] = set()  # clients that the server has looked up
        self._unclaimed: set[str] = set()  # those of them that the claims do not account for
        self._wrong: set[str] = set()

    def reserve(self) -> None:
        """Reserve a guess at the address first, then at each client. Raise if there were too many failures."""
        with_secrets = [claim.folded_id for claim in self.claims if claim.method]
        each = max(map(with_secrets.count, with_secrets), default=1)  # Authlib tries one after the other
        count = len(with_secrets) + any(claim.client_id == UNNAMED for claim in self.claims)
        if count:  # else a client without a secret
            self._reserve(all_secrets_keys(self.guarded.networks), cost=count)
        self._reserve(self._keys({claim.folded_id for claim in self.claims}), cost=each)

    def look_up(self, client: Any) -> None:
        """Reserve one more guess if the claims do not account for a client. Its secret has not been checked yet."""
        client_id = _claim(client.get_client_id()).folded_id
        self._lookups_left[client_id] -= 1
        if self._lookups_left[client_id] < 0:
            keys = [*all_secrets_keys(self.guarded.networks), *self._keys({client_id})]
            self._reserve(keys, waits=False)  # it would wait for this request's other guesses
            self._unclaimed.add(client_id)
        self._found.add(client_id)

    def succeed(self, client: Any, method: str | None) -> None:
        self._wrong.update(claim.folded_id for claim in _other_secrets(self.claims, client, method))
        self._wrong |= self._unclaimed - {_claim(client.get_client_id()).folded_id}

    def fail(self) -> None:
        self._wrong |= self._unclaimed.union(claim.folded_id for claim in self.claims)

    def break_off(self) -> None:
        """Count the clients that were looked up before an error: one whose secret was right would have ended it."""
        self._wrong |= self._found

    def settle(self) -> None:
        at_address = FailureKind.CLIENT_ADDRESS if self._wrong else None
        for guess in self._guesses:
            failed = [key for key in guess.keys if key.client_id in self._wrong or key.kind is at_address]
            self.guarded.guard.settle(guess, failed=failed)

    def _reserve(self, keys: Sequence[FailureKey], **options: Any) -> None:
        self._guesses.append(self.guarded.reserve(keys, **options))

    def _keys(self, client_ids: Iterable[str]) -> list[FailureKey]:
        return [key for client_id in client_ids for key in secret_keys(client_id, self.guarded.networks)]


_current_attempt: ContextVar[_Attempt | None] = ContextVar("oauth_ratelimit_attempt", default=None)


def authenticate_guarded(app_limiter: AppLimiter, authenticate: Callable[[], Any], oauth_request: Any) -> Any:
    """Return the authenticated client, or raise before its secret is checked if there were too many failures."""
    with _attempt(app_limiter, _claimed_clients) as attempt:
        try:
            client = authenticate()
        except Exception as exc:
            if attempt is not None:
                attempt.fail() if getattr(exc, "error", None) == CLIENT_ERROR else attempt.break_off()
            raise
        if attempt is not None:
            with app_limiter.fail_open("guard_failed"):
                attempt.succeed(client, getattr(oauth_request, "auth_method", None))
        return client


def look_up(query: Callable[[str], Any], client_id: str) -> Any:
    """Return a client that the server looks up. Raise if a secret is about to be checked, after too many failures."""
    client, attempt = query(client_id), _current_attempt.get()
    if attempt is not None and client is not None:
        with attempt.guarded.app_limiter.fail_open("guard_failed"):
            attempt.look_up(client)
    return client


def guard_assertion(app_limiter: AppLimiter, grant: Any) -> None:
    """Have a grant ask the guard that proves the client by an assertion, and not with Authlib's server."""
    grant.validate_token_request = partial(_check_assertion, app_limiter, grant, grant.validate_token_request)


def _check_assertion(app_limiter: AppLimiter, grant: Any, check: Callable[[], Any]) -> Any:
    hooks = vars(grant)
    hooks.pop("validate_token_request", None)  # it refers to the grant, which refers to the request
    with _attempt(app_limiter, _claimed_issuer, lookups_per_claim=2) as attempt:  # the second after the check
        if attempt is not None and hasattr(grant, "resolve_issuer_client"):
            grant.resolve_issuer_client = partial(look_up, grant.resolve_issuer_client)
        try:
            return check()
        except Exception as exc:
            # An expired assertion, or one for an unknown user, is no guess.
            if attempt is not None and getattr(exc.__cause__, "error", None) == SIGNATURE_ERROR:
                attempt.fail()
            raise
        finally:
            hooks.pop("resolve_issuer_client", None)


@contextmanager
def _attempt(
    app_limiter: AppLimiter, read_claims: Callable[[Request], list[Claim]], *, lookups_per_claim: int = 1
) -> Iterator[_Attempt | None]:
    """Reserve guesses at the clients that a request names, and settle them at the end. None without a guard."""
    attempt = None
    with app_limiter.fail_open("guard_failed"):
        guarded = _guarded(app_limiter)
        if guarded is not None:
            found = _Attempt(guarded, _read(read_claims, guarded.request), lookups_per_claim=lookups_per_claim)
            try:
                found.reserve()
            except Exception:
                found.settle()
                raise
            attempt = found
    outer = _current_attempt.set(attempt)
    try:
        yield attempt
    finally:
        _current_attempt.reset(outer)
        if attempt is not None:
            with app_limiter.fail_open("guard_failed"):
                attempt.settle()


def _read(read_claims: Callable[[Request], list[Claim]], http_request: Request) -> list[Claim]:
    try:
        return read_claims(http_request)
    except Exception:  # noqa: BLE001  # a request that breaks the guard gains no guess by it
        return [_claim(UNNAMED)]


def _claimed_clients(http_request: Request) -> list[Claim]:
    """Return the clients that a request names, at least one. That of an assertion is known before it is verified."""
    form, query = _form_of(http_request), _query_of(http_request)
    has_secret = _value(form, "client_secret") is not None
    claims = [
        _claim(_basic_client_id(http_request), BASIC),
        _claim(_value(form, "client_id"), POST if has_secret else None),
        _claim(_value(query, "client_id")),
    ]
    found = [claim for claim in claims if claim.client_id]
    if assertion := _value(form, ASSERTION):  # also if it cannot be read here: the server may read it
        found.append(_claim(_named_in(assertion, "sub"), ASSERTION))
    if not found or form is None or query is None:
        found.append(_claim(UNNAMED))
    return found


def _claimed_issuer(http_request: Request) -> list[Claim]:
    return [_claim(_named_in(_value(_form_of(http_request), "assertion") or "", "iss"), ASSERTION)]


def _other_secrets(claims: Iterable[Claim], client: Any, method: str | None) -> list[Claim]:
    """Return the claims with secrets beside that of the authenticated client.

    They may have been tried first, and were wrong: the answer would tell when one of them is right. Ids are compared as
    they are written, because the attacker may own a client whose id is a spelling of another one's.
    """
    own_id = str(client.get_client_id())
    own = method if method in (BASIC, POST) else None if method == NO_SECRET else ASSERTION
    return [claim for claim in claims if claim.method not in (None, own) and claim.client_id != own_id]


def _basic_client_id(http_request: Request) -> str | None:
    try:
        return extract_basic_authorization(http_request.headers)[0]  # type: ignore[arg-type]  # takes any mapping
    except ValueError:  # not Unicode: Authlib answers 500
        return None


def _named_in(assertion: str, name: str) -> str:
    """Return the client that an assertion names in one of its claims, ``UNNAMED`` if there is any doubt about it."""
    try:
        header_text, claims_text, _ = assertion.split(".")
        header, claims = _json_of(header_text), _json_of(claims_text)
    except (ValueError, RecursionError):
        return UNNAMED
    client_id = claims.get(name)
    if not isinstance(client_id, str) or {"b64", "crit"} & header.keys():  # RFC 7797: claims may not be encoded
        return UNNAMED
    return client_id


def _json_of(text: str) -> dict[str, Any]:
    """Return the object in a part of an assertion; ``ValueError`` if it can be read in more than one way."""
    found = json.loads(b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), object_pairs_hook=_unique)
    if not isinstance(found, dict):
        raise ValueError("no object")  # nobody but ``_named_in`` calls this
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name appears twice")
    return found


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
        places = _form_of(guarded.request), _query_of(guarded.request)
        if not any(place is None or "password" in place for place in places):
            return
        names = {folded(name) for place in places if (name := _value(place, "username"))}
        users = [str(state.app_limiter.limiter.pseudonym_of(name)) for name in names]
        client_id = str(client.get_client_id())
        is_public = getattr(oauth_request, "auth_method", None) == NO_SECRET
        stored_id = storable_name(client_id, MAX_CLIENT_ID_LENGTH)
        keys = password_keys(stored_id, users, guarded.networks, is_public=is_public)
        is_trusted = state.app_limiter.settings.policies.trusts(client_id)
        state.guess = guarded.reserve(keys, is_exempt=not is_public and is_trusted)


def settle_password(app_limiter: AppLimiter, guess: Guess, error: Any = None) -> None:
    """Count a password as wrong if this is the error of one; else release it."""
    with app_limiter.fail_open("guard_failed"):
        guard = app_limiter.guard()
        if guard is not None:
            is_wrong = getattr(error, "error", None) in USER_ERRORS
            guard.settle(guess, failed=guess.keys if is_wrong else ())


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
