"""The answer to a decision: a 429 that explains itself, and quota headers in several families."""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from authlib.oauth2 import OAuth2Error

from oauth_ratelimit.config import DenialSettings
from oauth_ratelimit.core.decision import Decision, whole_seconds
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.errors import RateLimitError

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

MAX_FIELD_INTEGER = 10**15 - 1  # the largest integer of a structured field (RFC 9651, 3.3.1)

Header = tuple[str, str]
Headers = list[Header]

_NOT_IN_A_STRING = re.compile(r"[^ !#-\[\]-~]")  # characters that a structured field's string escapes or cannot hold


class RateLimited(OAuth2Error, RateLimitError):  # type: ignore[misc]  # Authlib is untyped
    """A token was denied. Authlib turns this error into the HTTP response.

    The description is fixed text: it never holds a name that a client has chosen.

    Args:
        decision: The reason, and the time to wait.
        denial: The configured text and headers.
        grant_type: A device gets ``slow_down``, because any other error ends its polling (RFC 8628, 3.5).

    Attributes:
        decision: The reason, and the time to wait.
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
        """Return status, body and headers. The configured ``error_uri`` wins over the server's."""
        status, body, headers = super().__call__(uri=self.uri or uri)
        return status, body, headers

    def get_body(self) -> list[tuple[str, str]]:
        """Return the members of the body. ``decision_id`` leads an operator to the denial in the log."""
        body: list[tuple[str, str]] = super().get_body()
        if self.decision.decision_id is not None:
            body.append(("decision_id", self.decision.decision_id))
        return body

    def redirect_to(self, redirect_uri: str, *, state: str | None) -> None:
        """Answer in the fragment of the client's redirect URI, as a denied authorization request does."""
        self.error = "temporarily_unavailable"  # the error for this in RFC 6749, 4.2.2.1
        self.redirect_uri = redirect_uri
        self.redirect_fragment = True
        self.state = state

    def get_headers(self) -> Headers:
        """Return the headers of the 429: the time to wait, and the quota."""
        return [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("Pragma", "no-cache"),
            ("Retry-After", str(whole_seconds(self.decision.retry_after_s, at_least=1))),
            *quota_headers(self.decision, self._families),
        ]


def quota_headers(decision: Decision, families: Collection[str]) -> Headers:
    """Return the headers that describe a client's quota under the policies that are enforced for this request.

    None in a dry run, outside a canary's share and for a trusted client: a client that paces itself by headers would
    change what the dry run measures. The reset is in seconds from now, so that it needs no common clock. With a denial
    it equals ``Retry-After``.

    Args:
        decision: The decision about the request.
        families: Names of ``FAMILY_WRITERS``.
    """
    quota = decision.enforced_quota() if families else None
    if quota is None:
        return []
    policy, remaining, reset_after_s = quota
    reset_s = whole_seconds(reset_after_s) if decision.allowed else whole_seconds(decision.retry_after_s, at_least=1)
    headers: Headers = []
    for family in families:
        headers += FAMILY_WRITERS[family](policy, remaining, reset_s)
    return headers


def _ietf_headers(policy: Policy, remaining: int, reset_s: int) -> Iterable[Header]:
    """Return the headers of draft-ietf-httpapi-ratelimit-headers-10."""
    name, policy_header = _ietf_policy(policy.name, policy.limit, policy.window.window_s)
    left = remaining if remaining <= MAX_FIELD_INTEGER else MAX_FIELD_INTEGER
    return policy_header, ("RateLimit", f"{name};r={left};t={reset_s}")


@functools.lru_cache(maxsize=1000)
def _ietf_policy(name: str, limit: int, window_s: int) -> tuple[str, Header]:
    """Return a policy's name as a structured field's string, and the header that describes the policy."""
    quoted = f'"{_NOT_IN_A_STRING.sub("?", name)}"'
    return quoted, ("RateLimit-Policy", f"{quoted};q={min(limit, MAX_FIELD_INTEGER)};w={window_s}")


def _x_ratelimit_headers(policy: Policy, remaining: int, reset_s: int) -> Iterable[Header]:
    """Return the three customary headers."""
    return (
        ("X-RateLimit-Limit", f"{policy.limit}"),
        ("X-RateLimit-Remaining", f"{remaining}"),
        ("X-RateLimit-Reset", f"{reset_s}"),
    )


FAMILY_WRITERS: Mapping[str, Callable[[Policy, int, int], Iterable[Header]]] = {
    "ietf": _ietf_headers,
    "x-ratelimit": _x_ratelimit_headers,
}
"""Writers by header family of the configuration: policy, remaining hits and seconds to the reset -> headers."""
