"""
Who a counter belongs to.
"""

from typing import NamedTuple

MAX_NAME_LENGTH = 1024  # characters; a key travels in every flush, and Authlib accepts names of megabytes


class Key(NamedTuple):
    """
    The identity of one shared document.

    A tuple rather than joined text: ``("a:b", "c")`` and ``("a", "b:c")`` stay two keys, and None is not "None".

    Attributes:
        client_id: The OAuth client.

        username: The resource owner, None for grants without a user.

        scope: None for the plain token counter; names what else is counted, such as ``client_total`` or an endpoint.
    """

    client_id: str
    username: str | None
    scope: str | None = None
