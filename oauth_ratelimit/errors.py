"""The exception tree.

::

    RateLimitError                 base; catch-all for users
    ├── ConfigError                also a ValueError; names every bad key, its value and what is allowed
    ├── StoreError
    │   ├── StoreUnavailable       retry may help; the outcome of a write is unknown
    │   └── StoreRejected          the server refused for good: rights, a malformed document
    └── RateLimited                in flask_authlib/responses.py, also an Authlib OAuth2Error; carries the Decision
"""

from collections.abc import Sequence


class RateLimitError(Exception):
    """Base of every error of this package."""


class ConfigError(RateLimitError, ValueError):
    """The configuration cannot be used.

    Attributes:
        problems: One line per bad value, ``path: what is wrong``, all of them at once.
    """

    def __init__(self, problems: Sequence[str], *, source: str = "configuration") -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


class StoreError(RateLimitError):
    """The shared store did not do what was asked."""


class StoreUnavailable(StoreError):
    """The store could not be reached or did not answer. What was being written may or may not have been applied."""


class StoreRejected(StoreError):
    """The store answered that it will not do this, so a retry cannot help."""
