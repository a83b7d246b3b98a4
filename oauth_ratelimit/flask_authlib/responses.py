"""The answer: a 429 that explains itself, and the quota headers of every decided request."""

import functools
import re
from collections.abc import Collection
from math import ceil
from typing import Any

from authlib.oauth2 import OAuth2Error

from oauth_ratelimit.config import DenialSettings
from oauth_ratelimit.core.decision import Decision, whole_seconds
from oauth_ratelimit.errors import RateLimitError

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

MAX_FIELD_INTEGER = 10**15 - 1  # the largest integer of a structured field (RFC 9651, 3.3.1)

Header = tuple[str, str]
Headers = list[Header]

_NOT_IN_A_STRING = re.compile(r"[^ !#-\[\]-~]")  # what a structured field's string would have to escape or cannot hold


class RateLimited(OAuth2Error, RateLimitError):  # type: ignore[misc]  # Authlib is untyped
    """A token was denied. Authlib turns it into the HTTP answer.

    The description is fixed text: it never holds a name that a client has chosen.

    Args:
        decision: Why, and for how long.
        denial: What the answer says.
        grant_type: A device is told to slow down, because any other error would end its polling (RFC 8628, 3.5).

    Attributes:
        decision: Why, and for how long.
    """

    status_code = 429

    def __init__(self, decision: Decision, denial: DenialSettings, *, grant_type: str | None = None) -> None:
        OAuth2Error.__init__(
            self,
            description=denial.error_description,
            uri=denial.error_uri,
            error="slow_down" if grant_type == DEVICE_GRANT else denial.error,
        )
        self.decision = decision
        self._families = denial.headers

    def __call__(self, uri: str | None = None) -> tuple[int, Any, Headers]:
        """Return status, body and headers. Of two pages about the error, the one in our configuration wins."""
        status, body, headers = super().__call__(uri=self.uri or uri)
        return status, body, headers

    def get_body(self) -> list[tuple[str, str]]:
        """Return the members of the body. The last one names this denial, for the operator to find it in the log."""
        body: list[tuple[str, str]] = super().get_body()
        if self.decision.decision_id is not None:
            body.append(("decision_id", self.decision.decision_id))
        return body

    def redirect_to(self, redirect_uri: str, *, state: str | None) -> None:
        """Answer at the client's redirect URI, in its fragment, where a denied authorization request belongs."""
        self.error = "temporarily_unavailable"  # the one that RFC 6749, 4.2.2.1 knows for this
        self.redirect_uri = redirect_uri
        self.redirect_fragment = True
        self.state = state

    def get_headers(self) -> Headers:
        """Return the headers of the 429: when to come back, and the quota."""
        return [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("Pragma", "no-cache"),
            ("Retry-After", str(whole_seconds(self.decision.retry_after_s, at_least=1))),
            *quota_headers(self.decision, self._families),
        ]


Ruling = Headers | RateLimited
"""What a decision means for the answer: the quota headers of an admitted request, or the denial to raise."""


def quota_headers(decision: Decision, families: Collection[str]) -> Headers:
    """Return what a client may know of its quota: nothing if no policy applied or if it is trusted.

    The reset is in seconds from now, so that it needs no common clock. With a denial it is the moment of
    ``Retry-After``, which must not be earlier.

    Args:
        decision: What was decided.
        families: ``ietf`` for draft-ietf-httpapi-ratelimit-headers-10, ``x-ratelimit`` for the customary three.
    """
    if decision.trusted or not families:
        return []
    rule, remaining = decision.rule, decision.remaining
    if rule is None:
        return []
    reset_s = ceil(decision.reset_after_s) if decision.allowed else whole_seconds(decision.retry_after_s, at_least=1)
    reset = f"{reset_s}"
    left = f"{remaining}"
    shown = left if remaining < MAX_FIELD_INTEGER else MAX_FIELD_INTEGER
    name, policy_header, limit_header = _constant_parts(rule.name, rule.limit, rule.window.window_s)
    headers = [
        policy_header,
        ("RateLimit", f"{name};r={shown};t={reset}"),
        limit_header,
        ("X-RateLimit-Remaining", left),
        ("X-RateLimit-Reset", reset),
    ]
    if len(families) == 2:  # both
        return headers
    return headers[:2] if "ietf" in families else headers[2:]


@functools.lru_cache(maxsize=1000)
def _constant_parts(name: str, limit: int, window_s: int) -> tuple[str, Header, Header]:
    """Return a policy's name as a structured field's string, and the headers that are the same in all its answers."""
    quoted = f'"{_NOT_IN_A_STRING.sub("?", name)}"'
    policy = f"{quoted};q={min(limit, MAX_FIELD_INTEGER)};w={window_s}"
    return quoted, ("RateLimit-Policy", policy), ("X-RateLimit-Limit", str(limit))
