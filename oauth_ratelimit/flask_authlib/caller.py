"""Client and user of a request, taken from the application's own objects."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Caller(NamedTuple):
    """Authenticated client of a request and the user it acts for.

    Attributes:
        client_id: The client.
        username: The user, None if there is none.
    """

    client_id: str
    username: str | None

    def get_client_id(self) -> str:
        """Return the client's id, as Authlib's clients do."""
        return self.client_id


def username_of(user: Any) -> str:
    """Return the first of ``username``, ``get_user_id()`` and ``id`` that is neither None nor empty.

    Raises:
        TypeError: The user has none of them. Counted under the client alone, all such users would share one limit.
    """
    for attribute in ("username", "get_user_id", "id"):
        name = getattr(user, attribute, None)
        if callable(name):
            name = name()
        if name is not None and name != "":
            return f"{name}"
    raise TypeError(
        f"{type(user).__name__} has no username, get_user_id() or id; "
        "pass OAuthRateLimit(username_of=...) to name a user"
    )


def caller_of_token(token: Any) -> Caller | None:
    """Return the owner of a stored token or of the claims of a JWT or an introspection; None if it names no client."""
    client_id = _first_value(token, "client_id", "azp")
    if client_id is None:
        return None
    user = _first_value(token, "user")
    username = username_of(user) if user is not None else _first_value(token, "username", "user_id", "sub")
    # Without a user, the subject of a JWT is the client itself (RFC 9068, 2.2).
    return Caller(str(client_id), None if username in (None, client_id) else str(username))


def _first_value(token: Any, *names: str) -> Any:
    for name in names:
        value = token.get(name) if isinstance(token, Mapping) else getattr(token, name, None)
        if value is not None and value != "":
            return value
    return None
