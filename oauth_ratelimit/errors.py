"""Exceptions.

::

    RateLimitError                 base; catch-all for users
    ├── ConfigError                also a ValueError; lists every bad key, its value and what is allowed
    ├── StoreError
    │   ├── StoreUnavailable       retry may help; the outcome of a write is unknown
    │   │   └── StoreUnreachable   no server was found, so nothing was sent
    │   └── StoreRejected          the server refuses, such as for missing rights; a retry does not help
    └── RateLimited                in flask_authlib/responses.py, also an Authlib OAuth2Error; carries the Decision
"""

from collections.abc import Sequence
from typing import Any


class RateLimitError(Exception):
    """Base of every error of this package."""


class ConfigError(RateLimitError, ValueError):
    """The configuration is not valid.

    Attributes:
        problems: One line per bad value, such as ``limits.client: got 0, allowed: ... (line 7)``.
        source: Path of the file, else a word for where the values come from.
        valid_parts: ``Settings`` with limits off and the sections that are valid alone; None if nothing can be read.
    """

    def __init__(self, problems: Sequence[str], *, source: str = "configuration", valid_parts: Any = None) -> None:
        self.source = source
        self.valid_parts = valid_parts
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


class StoreError(RateLimitError):
    """An operation of the shared store failed.

    Attributes:
        code: Name of the reason, such as ``Unauthorized (13)``.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).__name__


class StoreUnavailable(StoreError):
    """The store is unreachable or did not answer. A write may or may not have been applied."""


class StoreUnreachable(StoreUnavailable):
    """No server of the store was found, so the operation was not sent."""


class StoreRejected(StoreError):
    """The store refuses the operation, so a retry does not help."""
