"""Grants of an Authlib server: their names, and which of them cannot be limited."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

IMPLICIT = "implicit"  # the grant type of every token from the authorization endpoint
WITHOUT_SERVER = "it neither generates nor saves its token through the server: call self.save_token(token)"
OPTED_OUT = "authorize_endpoint=False"
_ENDS = ("create_token_response", "create_authorization_response")
_THROUGH_SERVER = frozenset({"server", "super", "generate_token", "save_token"})


class Grants(NamedTuple):
    """Grants that are registered with a server.

    Attributes:
        protected: Names of those that are limited. A grant of the authorization endpoint is named by its response type.
        unprotected: Reasons by name of those that cannot be limited.
        grant_types: Grant types that a configuration can name; None if a grant chooses its requests by itself.
    """

    protected: list[str]
    unprotected: dict[str, str]
    grant_types: set[str] | None


def grants_of(server: Any, *, authorize_endpoint: bool) -> Grants:
    """Return the grants that are registered with a server now."""
    protected: list[str] = []
    unprotected: dict[str, str] = {}
    grant_types: set[str] | None = set()
    for name, grant, is_front_channel in _registered(server):
        if is_front_channel and not authorize_endpoint:
            unprotected[name] = OPTED_OUT
        elif _avoids_server(grant):
            unprotected[name] = WITHOUT_SERVER
        elif name not in protected:
            protected.append(name)
        grant_type = IMPLICIT if is_front_channel else getattr(grant, "GRANT_TYPE", None)
        if grant_types is not None:
            grant_types = {*grant_types, grant_type} if isinstance(grant_type, str) else None
    return Grants(protected, unprotected, grant_types)


def _registered(server: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield name and class of each grant, and whether its tokens come from the authorization endpoint."""
    for grant, _ in getattr(server, "_token_grants", ()):
        yield str(getattr(grant, "GRANT_TYPE", None) or grant.__name__), grant, False
    for grant, _ in getattr(server, "_authorization_grants", ()):
        for response_type in sorted(getattr(grant, "RESPONSE_TYPES", ())):
            if response_type != "code":  # its token comes from the token endpoint
                yield f"response_type={response_type}", grant, True


def _avoids_server(grant: type) -> bool:
    """Return True if the application's own code of a grant never mentions a way to the server."""
    own = [each for each in grant.__mro__ if not each.__module__.startswith(("authlib.", "builtins"))]
    functions = {}
    for each in reversed(own):  # so that a subclass replaces what it overrides
        functions.update({name: value for name, value in vars(each).items() if isinstance(value, FunctionType)})
    if not any(name in functions for name in _ENDS):
        return False
    mentioned = {name for function in functions.values() for name in function.__code__.co_names}
    return not mentioned & (_THROUGH_SERVER - functions.keys())
