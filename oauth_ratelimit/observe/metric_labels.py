"""
The names of grant types in metrics and statistics, so few that no client can make up more.
"""

from collections.abc import Callable

from oauth_ratelimit.core.key import storable_name

OTHER = "other"
NONE = "none"

STANDARD = (
    "authorization_code",
    "client_credentials",
    "implicit",
    "password",
    "refresh_token",
    "urn:ietf:params:oauth:grant-type:device_code",
    "urn:ietf:params:oauth:grant-type:jwt-bearer",
    "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "urn:ietf:params:oauth:grant-type:token-exchange",
)


class GrantNames:
    """
    Names grant types. Thread-safe.
    """

    def __init__(self) -> None:
        self._names: dict[str | None, str] = {**{name: name for name in STANDARD}, None: NONE}

    def of(self, grant_type: str | None, is_grant: Callable[[str], bool]) -> str:
        """
        Return the name of a grant type: its own if it is a standard one or one of the server's, else ``other``.

        Args:
            grant_type: The grant type; None, named ``none``, if it is not known or does not matter.

            is_grant: Whether a grant type is one of the server's; any other is not worth a name.
        """
        name = self._names.get(grant_type)
        if name is not None:
            return name
        if grant_type is None or not is_grant(grant_type):
            return OTHER
        return self._names.setdefault(grant_type, storable_name(grant_type))
