"""Hooks of the guard. What Authlib is about to check is a guess, and it is wrong unless it turned out right.

A guess is counted before it is checked. Who is asked about is what Authlib asks, however the request is written:

- the secret of a client that Authlib looks up to authenticate it. Its method ``none`` alone checks nothing;
- the user's password that a grant passes to its ``authenticate_user``;
- the signature of an assertion or of a request object, which a client may make with its secret.

What the application checks by itself, such as in an ``authenticate_client`` of its own, is a guess, too. Nobody knows
at whom, so it counts against the address, or against the client that passes passwords on.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any

from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749.authenticate_client import authenticate_none  # type: ignore[attr-defined]  # the stubs lack it
from authlib.oauth2.rfc6749.errors import UnsupportedResponseTypeError
from flask import Response, abort, request

from oauth_ratelimit.core.failed_auth import folded, networks_of, password_keys, secret_keys
from oauth_ratelimit.core.key import Key, logged_name, storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import PASSWORD
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.request_state import (
    NO_SECRET,
    RequestState,
    current_state,
    is_cross_site,
    limited_request,
)
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.flask_authlib.unseen import (
    PASSWORDS,
    client_auth_of,
    hides_passwords,
    hides_secrets,
    methods_of,
    name_of,
    type_of,
)
from oauth_ratelimit.guard import Guard, Guess

MAX_CLIENT_ID_LENGTH = 1024  # of client ids that the configuration can name
PROXY_FIX = "werkzeug.proxy_fix.orig"  # added to the environment by Werkzeug's ProxyFix
DESCRIPTION = "Too many failed attempts. Try again after the seconds given in Retry-After."
CLAIM_ERRORS = frozenset({"expired_token", "invalid_claim", "invalid_token", "missing_claim"})  # of a right signature

# Failures that a web page can cause in its visitor's browser count apart, so that they deny nothing else.
AUTHORIZE = ";authorize"  # at the authorization endpoint, where other sites send their visitors
CROSS_SITE = ";cross-site"  # by a script of another site
UNKNOWN = ";unknown"  # names of clients without a secret that do not exist

MAX_PATH_LENGTH = 200  # in the log
REFUSAL = '{"error": "access_denied", "error_description": "Web pages of other sites cannot send this request."}'
REFUSED = "a web page of another site, such as one with a hidden form, could lock its visitor out"


def refuse_cross_site(app_limiter: AppLimiter) -> None:
    """Answer 403 to a request with credentials that another site sends by a form, a link or an image.

    A script that may read the answer shows the mode ``cors``. The server may expect it, so its failures count apart. In
    a dry run of the guard nothing is refused.
    """
    mode = Mode.OFF
    with app_limiter.fail_open("guard_failed"):
        guard = app_limiter.guard() if is_cross_site() and request.headers.get("Sec-Fetch-Mode") != "cors" else None
        if guard is not None:
            mode, path = guard.mode, logged_name(request.path[:MAX_PATH_LENGTH])
            app_limiter.log.warning("cross_site_refused", mode=mode.value, path=path, hint=REFUSED)
    if mode is Mode.ENFORCE:
        abort(Response(REFUSAL, 403, {"Cache-Control": "no-store"}, content_type="application/json"))


class Check:
    """Guesses of one check by Authlib: those that have not turned out right are wrong. Without a guard there are none.

    With ``may_fail`` those are released that end with a 5xx, because the check asks a database or another server.
    """

    def __init__(
        self,
        app_limiter: AppLimiter,
        *,
        is_authorize: bool = False,
        may_fail: bool = True,
        sees_clients: bool = True,
    ) -> None:
        self._app_limiter = app_limiter
        self._may_fail = may_fail
        self._sees_clients = sees_clients
        self._guard: Guard | None = None
        self._networks: tuple[str, ...] = ()
        self._guesses: list[tuple[str | None, Guess]] = []  # with the client that was looked up, None without one
        self._ran: set[str] = set()  # methods that authenticate clients
        self._repeats = False  # True while one of them runs again, with the same secret
        self._checks_nothing = False  # True while clients are looked up that show no secret
        self.is_seen = False  # True once a client was looked up whose secret is checked
        with app_limiter.fail_open("guard_failed"):
            self._networks = _watched_networks(app_limiter, is_authorize=is_authorize)
            self._guard = app_limiter.guard() if self._networks else None  # it may start the worker, which may fail

    def run(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """Run a method that authenticates clients. A server may have it check a secret twice: one guess."""
        self._repeats, self._checks_nothing = name in self._ran, method is authenticate_none
        self._ran.add(name)
        try:
            return method(*args)
        finally:
            self._repeats = self._checks_nothing = False

    def look_up(self, client_id: str, client: Any) -> None:
        """Reserve a guess at a client, or raise if there were too many failures. Its secret is not checked yet.

        A name without a secret is no guess. But anybody can make up any number of those that do not exist.
        """
        with self._app_limiter.fail_open("guard_failed"):
            if not self._checks_nothing:
                self.is_seen = True
                self._settle([guess for name, guess in self._guesses if name is None])
                name = counted = str(client.get_client_id() if client else client_id)
                with suppress(Exception):  # a function of the application that fails leaves nobody unguarded
                    counted = self._app_limiter.checked_client_id_of(client) if client else name
                self.reserve(name, secret_keys(folded(counted), self._networks))
            elif not client:
                self.reserve(client_id, secret_keys(None, [f"{network}{UNKNOWN}" for network in self._networks]))

    def reserve_unseen(self) -> None:
        """Raise if a secret that the application checks by itself comes after too many failures."""
        with self._app_limiter.fail_open("guard_failed"):
            self.reserve(None, secret_keys(None, self._networks))

    def reserve_password(self, state: RequestState, username: object) -> None:
        """Raise if a user's password comes after too many failures. The client is authenticated, if any is."""
        name = None
        with suppress(Exception):  # a request that breaks the guard gains no guess by it
            if username and isinstance(username, str | int):  # else it may hold the password, too
                name = self._app_limiter.limiter.pseudonym_of(folded(f"{username}"))
        with self._app_limiter.fail_open("guard_failed"):
            client_id, method = state.authenticated
            stored_id, is_public = storable_name(client_id, MAX_CLIENT_ID_LENGTH), method == NO_SECRET
            keys = password_keys(stored_id, name, self._networks, is_public=is_public) if self._networks else []
            is_trusted = self._app_limiter.settings.policies.trusts(client_id)
            self.reserve(None, keys, is_exempt=not is_public and is_trusted)

    def reserve(self, name: str | None, keys: Sequence[Key], *, is_exempt: bool = False) -> None:
        if self._guard is None or (self._repeats and any(guess.keys == keys for _, guess in self._guesses)):
            return
        # A second guess of the same request would wait for the first one.
        found = self._guard.reserve(keys, is_exempt=is_exempt, waits=not self._guesses)
        if isinstance(found, Guess):
            self._guesses.append((name, found))
            return
        answer = replace(self._app_limiter.settings.denial, error_description=DESCRIPTION, error_uri=None)
        state = current_state()
        denial = RateLimited(found.decision, answer, grant_type=None if state is None else type_of(state.grant))
        limited = limited_request()
        if limited is not None:
            limited[1].wait_headers = denial.wait_headers()
        raise denial

    def release(self, right: str | None = None) -> None:
        """Release the guesses at a client that turned out right, None for all, and what the application has checked.

        Ids are compared as they are written, because the attacker may own a client whose id is a spelling of another
        one's. A secret for another client is wrong: the answer would tell when it is right.
        """
        self._settle([guess for name, guess in self._guesses if name is None or right in (None, name)])

    def settle(self, *, is_failed: bool = False) -> None:
        """Count what has not turned out right; if the server has failed, as little as the limits allow."""
        is_failed = is_failed and self._may_fail
        self._settle([guess for _, guess in self._guesses], is_wrong=not is_failed, is_failed=is_failed)

    def _settle(self, guesses: Sequence[Guess], **options: bool) -> None:
        with self._app_limiter.fail_open("guard_failed"):
            for guess in guesses:
                if self._guard is not None:
                    self._guard.settle(guess, **options)

    def __enter__(self) -> "Check":
        self._outer = _current.set(self if self._sees_clients else None)
        return self

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        """Settle the guesses. What the application makes of an exception of its own is known with the response."""
        _current.reset(self._outer)
        found = limited_request()
        if error is None or isinstance(error, OAuth2Error):
            self.settle(is_failed=error is not None and error.status_code >= 500)
        elif self._may_fail and found is not None and found[1].is_seen:
            found[1].hits += (self,)
        else:
            self.settle()


class _Methods(dict[str, Any]):
    """Methods that authenticate clients, by name. Within a check, those that run are known to it."""

    def __getitem__(self, name: str) -> Any:
        method, check = super().__getitem__(name), _current.get()
        return method if check is None else partial(check.run, name, method)


_current: ContextVar[Check | None] = ContextVar("oauth_ratelimit_check", default=None)


def authenticate_guarded(
    app_limiter: AppLimiter,
    server: Any,
    authenticate: Callable[[], Any],
    *,
    is_hidden: bool,
    is_authorize: bool = False,
) -> tuple[Any, bool]:
    """Return the authenticated client and whether it was looked up, or raise before its secret is checked.

    ``is_hidden`` is True if the application may check it where that is not seen.
    """
    with app_limiter.fail_open("guard_failed"):
        if client_auth_of(server) is None:
            server.register_client_auth_method(NO_SECRET, authenticate_none)  # which makes it
        methods = methods_of(server)
        if methods and not isinstance(methods, _Methods):
            client_auth_of(server)._methods = _Methods(methods)
    with Check(app_limiter, is_authorize=is_authorize, may_fail=False) as check:
        if is_hidden:
            check.reserve_unseen()
        client = authenticate()
        with app_limiter.fail_open("guard_failed"):
            check.release(str(client.get_client_id()))
        return client, check.is_seen


def looked_up(client_id: str, client: Any) -> Any:
    """Return a client that was looked up. Raise if a secret is about to be checked, after too many failures."""
    check = _current.get()
    if check is not None:
        check.look_up(client_id, client)
    return client


def guard_grant(state: RequestState, grant: Any) -> None:
    """Have a grant ask the guard before it checks a password, a secret or an assertion, until its state is closed."""
    hooks: dict[str, Any] = {
        "authenticate_user": _check_user,
        "process_assertion_claims": _check_assertion,
        "resolve_issuer_client": lambda _, query, issuer: looked_up(issuer, query(issuer)),
    }
    with state.app_limiter.fail_open("guard_failed"):  # a foreign class may forbid it
        asked = getattr(getattr(grant, "validate_token_request", None), "__self__", grant)
        state.hooked = grant if isinstance(asked, type) else asked  # a grant may stand behind a proxy
        if hides_secrets(grant):
            hooks["authenticate_token_endpoint_client"] = _check_client
        state.hooks = hooks
        for name, check in hooks.items():
            if callable(method := getattr(state.hooked, name, None)):
                setattr(state.hooked, name, partial(check, state, method))


def _check_client(state: RequestState, authenticate: Callable[[], Any]) -> Any:
    """Return the client whose secret a grant checks by itself."""
    client, _ = authenticate_guarded(state.app_limiter, state.hooked.server, authenticate, is_hidden=True)
    note_client(state, client, None)
    return client


def note_client(state: RequestState, client: Any, method: str | None) -> None:
    """Note the client of a token request. Reserve a guess at a password that its grant may check unseen.

    It is right if a token is generated, or once the password is seen.
    """
    with state.app_limiter.fail_open("guard_failed"):
        state.authenticated = state.app_limiter.checked_client_id_of(client), method
        if state.unseen is None and (
            hides_passwords(state.grant) or name_of(state.grant) in state.app_limiter.unseen_checks
        ):
            state.unseen = check = Check(state.app_limiter)
            check.reserve_password(state, None)
            state.response.hits += (check,)


def note_token(state: RequestState) -> None:
    """Release the guess at a password that was checked unseen, and name the grant. A token is generated for it."""
    if state.unseen is not None:
        state.unseen.release()
    if state.hooks and not state.is_user_seen and (state.unseen is not None or type_of(state.grant) == PASSWORD):
        state.app_limiter.note_unseen(name_of(state.grant), PASSWORDS)


def _check_user(state: RequestState, authenticate: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return the user whom a grant has asked for, with a password; others ask with one argument, such as a code."""
    if type_of(state.grant) != PASSWORD and len(args) + len(named) < 2:
        return authenticate(*args, **named)
    state.is_user_seen = True
    if state.unseen is not None:
        state.unseen.release()
    with Check(state.app_limiter, sees_clients=False) as check:
        check.reserve_password(state, named.get("username", args[0] if args else None))
        user = authenticate(*args, **named)
        if user:
            check.release()
        return user


def _check_assertion(state: RequestState, verify: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return the claims of an assertion. One that is only expired, or meant for another server, is no guess."""
    with Check(state.app_limiter) as check:
        try:
            claims = verify(*args, **named)
        except Exception as error:
            if getattr(error.__cause__, "error", None) in CLAIM_ERRORS:
                check.release()
            raise
        check.release()
        return claims


def get_grant_guarded(app_limiter: AppLimiter, oauth_request: Any, get_grant: Callable[[], Any]) -> Any:
    """Return the grant of an authorization request, whose parameters may be an object that is signed with a secret."""
    payload, is_object = None, False
    with app_limiter.fail_open("guard_failed"):
        payload = oauth_request.payload
        is_object = not {"request", "request_uri"}.isdisjoint(payload.data)
    if not is_object:
        return get_grant()
    with Check(app_limiter, is_authorize=True) as check:
        try:
            grant = get_grant()
        except Exception as error:
            if oauth_request.payload is not payload or isinstance(error, UnsupportedResponseTypeError):
                check.release()  # the signature was right, or is not looked at
            raise
        check.release()
        return grant


def _watched_networks(app_limiter: AppLimiter, *, is_authorize: bool) -> tuple[str, ...]:
    """Return what the failures of this request count by; nothing if its address is none, trusted or a proxy's."""
    guard, address = app_limiter.guard(), request.remote_addr or ""
    networks = () if guard is None else networks_of(address)
    if guard is not None and not networks:
        app_limiter.log.error("guard_without_address", remote_addr=repr(address)[:100])
    # A client in the same network may forge the header, and 100.64.0.0/10 is neither global nor private.
    is_forwarded = "HTTP_X_FORWARDED_FOR" in request.environ and PROXY_FIX not in request.environ
    if networks and is_forwarded and not ip_network(networks[0]).is_global:
        hint = "wrap the application in werkzeug's ProxyFix"  # else one attacker would lock out everybody behind it
        app_limiter.log.error("guard_sees_a_proxy", address=networks[0], hint=hint)
        return ()
    if guard is None or not guard.is_watching(address):
        return ()
    apart = AUTHORIZE if is_authorize else CROSS_SITE if is_cross_site() else ""
    return tuple(f"{network}{apart}" for network in networks)
