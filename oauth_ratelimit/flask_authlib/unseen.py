"""Checks of passwords and secrets that the guard cannot see, as far as the application's code shows it."""

import dis
from collections.abc import Collection, Iterator
from functools import lru_cache
from inspect import unwrap
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from oauth_ratelimit.core.policy import PASSWORD

AUTHENTICATE = "authenticate_client"
PASSWORDS = "its passwords count without the user's name: have it call self.authenticate_user(username, password)"
_CLIENT = "its secrets count without the client's name"
SECRETS = f"{_CLIENT}: have it look clients up with the server's query_client(client_id)"
_METHOD = f"{_CLIENT}: have it look clients up with the function that it is passed first"
_SERVER = "passwords are not counted: have it get the grant from self.get_token_grant(request)"


def unseen_checks(server: Any) -> Iterator[tuple[str, str]]:
    """Yield name and hint of each grant and method of a server that checks what the guard cannot see."""
    for grant, _ in server._token_grants:
        for hides, hint in ((hides_passwords, PASSWORDS), (hides_secrets, SECRETS)):
            if hides(grant):
                yield name_of(grant), hint
    used = _used_by(server.create_token_response)
    if "validate_token_request" in used and "get_token_grant" not in used:
        yield server.create_token_response.__name__, _SERVER
    if hides_clients(server.authenticate_client):
        yield AUTHENTICATE, SECRETS
    for name, method in methods_of(server).items():
        if hides_look_up(method):
            yield name, _METHOD


def hidden_check(server: Any, methods: Collection[str], known: Collection[str]) -> str:
    """Return the name of what may check the secret of a client unseen, by its code or as it is known; else nothing."""
    hidden = [AUTHENTICATE] if hides_clients(server.authenticate_client) else []
    own = methods_of(server)
    hidden += [name for name in methods if name in own and hides_look_up(own[name])]
    return next((name for name in (*hidden, *methods, AUTHENTICATE) if name in hidden or name in known), "")


def name_of(grant: Any) -> str:
    return type_of(grant) or str(getattr(grant, "__name__", type(grant).__name__))


def type_of(grant: Any) -> str | None:
    grant_type = getattr(grant, "GRANT_TYPE", None)
    return grant_type if isinstance(grant_type, str) else None


def methods_of(server: Any) -> dict[str, Any]:
    """Return the functions that authenticate clients, by the name of their method."""
    found: dict[str, Any] = getattr(getattr(server, "_client_auth", None), "_methods", {})
    return found


def hides_passwords(grant: Any) -> bool:
    """Return True if a grant checks passwords, and does not pass name and password to its own ``authenticate_user``."""
    validate, check = getattr(grant, "validate_token_request", None), getattr(grant, "authenticate_user", None)
    used, own = _used_by(validate), _own_in(code) if (code := _code_of(validate)) else frozenset()
    names = _arguments_of(check)
    passes_form = len(names) == len(("self", "form")) and "password" in _used_by(check) - {*names}
    checks = type_of(grant) == PASSWORD or "password" in used
    return passes_form or (checks and "super" not in used and "authenticate_user" not in own)


def hides_secrets(grant: Any) -> bool:
    """Return True if a grant checks its client's secret by itself."""
    used = _used_by(getattr(grant, "authenticate_token_endpoint_client", None))
    return any("secret" in name for name in used) and used.isdisjoint({AUTHENTICATE, "super"})


def hides_clients(authenticate: Any) -> bool:
    """Return True if a server's ``authenticate_client`` does not look clients up where the guard sees it."""
    used = _used_by(authenticate)
    return bool(used) and used.isdisjoint({"query_client", "_client_auth", "super", AUTHENTICATE})


def hides_look_up(method: Any) -> bool:
    """Return True if a method of authentication does not use the look-up that it is passed."""
    is_plain = isinstance(method, FunctionType)
    function = method if is_plain else getattr(method, "__func__", type(method).__call__)
    names = _arguments_of(function)[0 if is_plain else 1 :]
    return bool(names) and names[0] not in _used_by(function)


def _code_of(function: Any) -> CodeType | None:
    code = getattr(unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _arguments_of(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments by position; nothing without code."""
    code = _code_of(function)
    return () if code is None else code.co_varnames[: code.co_argcount]


def _used_by(function: Any) -> frozenset[str]:
    """Return the names and texts that the code of a function uses; nothing without code."""
    code = _code_of(function)
    return frozenset() if code is None else _names_in(code)


@lru_cache(maxsize=1000)
def _names_in(code: CodeType) -> frozenset[str]:
    values = (each.argval for each in dis.get_instructions(code))
    return frozenset(str(name) for value in values for name in (value if isinstance(value, tuple) else (value,)))


@lru_cache(maxsize=1000)
def _own_in(code: CodeType) -> frozenset[str]:
    """Return what the code of a method takes from the object that it belongs to."""
    steps = pairwise(dis.get_instructions(code))
    return frozenset(
        str(taken.argval)
        for owner, taken in steps
        if owner.opname.startswith("LOAD_FAST") and owner.argval in code.co_varnames[:1]
    )
