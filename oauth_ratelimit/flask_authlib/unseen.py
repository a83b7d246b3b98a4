"""Checks of passwords and secrets that the guard cannot see, as far as the application's code shows it."""

import dis
from collections.abc import Collection, Iterator
from functools import lru_cache
from inspect import unwrap
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from authlib.oauth2.rfc6749 import ClientAuthentication

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


def hidden_check(server: Any, authenticate: Any, methods: Collection[str], known: Collection[str]) -> str:
    """Return the name of what may check the secret of a client unseen, by its code or as it is known; else nothing."""
    own = methods_of(server)
    for name in methods:
        if name in known or (name in own and hides_look_up(own[name])):
            return name
    return AUTHENTICATE if AUTHENTICATE in known or hides_clients(authenticate) else ""


def name_of(grant: Any) -> str:
    return type_of(grant) or str(getattr(grant, "__name__", type(grant).__name__))


def type_of(grant: Any) -> str | None:
    grant_type = getattr(grant, "GRANT_TYPE", None)
    return grant_type if isinstance(grant_type, str) else None


def client_auth_of(server: Any) -> Any:
    """Return what authenticates clients, set in place of the server's method or kept; None before Authlib makes it."""
    method = getattr(server.authenticate_client, "__wrapped__", server.authenticate_client)
    return method if isinstance(method, ClientAuthentication) else getattr(server, "_client_auth", None)


def methods_of(server: Any) -> dict[str, Any]:
    """Return the functions that authenticate clients, by the name of their method."""
    found: dict[str, Any] = getattr(client_auth_of(server), "_methods", {})
    return found


def hides_passwords(grant: Any) -> bool:
    """Return True if a grant checks passwords, and does not pass name and password to its own ``authenticate_user``."""
    validate = _code_of(getattr(grant, "validate_token_request", None))
    check = _code_of(getattr(grant, "authenticate_user", None))
    used, own = (frozenset[str](), frozenset[str]()) if validate is None else (_names_in(validate), _own_in(validate))
    if check is not None and check.co_argcount == len(("self", "form")):
        names = check.co_varnames[: check.co_argcount]
        if "password" in _names_in(check) - {*names}:
            return True
    checks = type_of(grant) == PASSWORD or "password" in used
    return checks and "super" not in used and "authenticate_user" not in own


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
    code = _code_of(method if is_plain else getattr(method, "__func__", type(method).__call__))
    names = () if code is None else code.co_varnames[: code.co_argcount][0 if is_plain else 1 :]
    return code is not None and bool(names) and names[0] not in _names_in(code)


def _code_of(function: Any) -> CodeType | None:
    function = unwrap(function) if hasattr(function, "__wrapped__") else function
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


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
