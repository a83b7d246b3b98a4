"""The answer to a decision: a 429 that explains itself, and quota headers in several families."""

import math
import re
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from authlib.oauth2 import OAuth2Error
from werkzeug.http import parse_date

from oauth_ratelimit.config import DenialSettings
from oauth_ratelimit.core.decision import Decision, whole_seconds
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import DEVICE_CODE
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.errors import RateLimitError

MAX_FIELD_INTEGER = 10**15 - 1  # the largest integer of a structured field (RFC 9651, 3.3.1)

Header = tuple[str, str]
Headers = list[Header]
QuotaHeaders = tuple[Header, ...]

_NOT_IN_A_STRING = re.compile(r"[^ !#-\[\]-~]")  # characters that a structured field's string escapes or cannot hold


EXPOSED = (
    "Access-Control-Expose-Headers",
    "Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset",
)
FAMILIES = ("ratelimit", "x-ratelimit-")  # how their names begin
_OURS = (*FAMILIES, "retry-after", EXPOSED[0].lower())


class RateLimited(OAuth2Error, RateLimitError):
    """A token was denied, for the reason in ``decision``. Authlib turns this error into the HTTP response.

    The description is fixed text: it never holds a name that a client has chosen. A device gets ``slow_down``, because
    any other error ends its polling (RFC 8628, 3.5).
    """

    status_code = 429

    def __init__(
        self,
        decision: Decision,
        denial: DenialSettings,
        *,
        grant_type: str | None = None,
        partition: str | None = None,
    ) -> None:
        OAuth2Error.__init__(
            self,
            description=denial.error_description,
            uri=denial.error_uri,
            error="slow_down" if grant_type == DEVICE_CODE else denial.error,
        )
        self.decision = decision
        self._quota_headers = partial(quota_headers, decision, denial.headers, partition)
        self._exposed = (EXPOSED,) if denial.expose_headers else ()

    def __call__(self, uri: str | None = None) -> tuple[int, Any, Headers]:
        """Return status, body and headers. The configured ``error_uri`` wins over the server's."""
        status, body, headers = super().__call__(uri=self.uri or uri)
        return status, body, headers

    def get_body(self) -> list[tuple[Any, Any]]:
        """Return the members of the body. ``decision_id`` leads an operator to the denial in the log."""
        body: list[tuple[Any, Any]] = super().get_body()
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
            *self.wait_headers(),
        ]

    def wait_headers(self) -> QuotaHeaders:
        """Return the headers that say how long to wait."""
        seconds = whole_seconds(self.decision.retry_after_s, 1)
        return (("Retry-After", str(seconds)), *self._quota_headers(), *self._exposed)


def with_headers(headers: Headers, ours: QuotaHeaders) -> Headers:
    """Return the headers of a response with ours, but no family of quota headers that another limiter has sent.

    Of two times to wait the longer one stays.
    """
    for name, _ in headers:
        if name.lower().startswith(_OURS):
            break
    else:
        return [*headers, *ours]
    others = list(headers)
    for start in _OURS:
        own = [header for header in ours if header[0].lower().startswith(start)]
        if all(header in others for header in own):  # of a denial, which has them
            for header in own:
                others.remove(header)  # once: another limiter may have sent an equal one
    names = {name.lower() for name, _ in others}
    theirs = tuple(each for each in FAMILIES if any(name.startswith(each) for name in names))
    if not theirs and "retry-after" not in names and len(headers) == len(others) + len(ours):
        return headers  # of a denial, which has them
    added = [(name, value) for name, value in ours if not (theirs and name.lower().startswith(theirs))]
    if added and added[0][0] == "Retry-After":
        waits = [_seconds_of(value) for name, value in others if name.lower() == "retry-after"]
        others = [header for header in others if header[0].lower() != "retry-after"]
        added[0] = "Retry-After", f"{max(int(added[0][1]), *waits, 0)}"
    return [*others, *added]


def _seconds_of(retry_after: str) -> int:
    """Return the seconds from now until a time to wait is over; 0 if it cannot be read."""
    if retry_after.isdecimal():
        return int(retry_after)
    date = parse_date(retry_after)
    return 0 if date is None else math.ceil((date - datetime.now(UTC)).total_seconds())


def quota_headers(decision: Decision, families: tuple[str, ...], partition: str | None = None) -> QuotaHeaders:
    """Return the headers that describe a client's quota under the policies that are enforced for this request.

    None in a dry run, outside a canary's share and for a trusted client: a client that paces itself by headers would
    change what the dry run measures. Delays are in seconds from now, so that they need no common clock. With a denial
    they equal ``Retry-After``.

    Args:
        decision: The decision.
        families: ``ietf`` for draft-ietf-httpapi-ratelimit-headers-11, ``x-ratelimit`` for its forerunners.
        partition: Hash of client and user in base64: clients that obey stop the requests for this user only.
    """
    quota = decision.enforced_quota() if families else None
    if quota is None:
        return ()
    policy, is_total, remaining, more_after_s, reset_after_s = quota
    tiers = decision.tiers or tiers_of((policy,), Mode.ENFORCE)  # the guard's policies are no tiers
    policies, beginning, limit = _constants(tiers, policy.name, policy.limit)
    at_least = 0 if decision.denial is None or decision.allowed else 1  # second
    headers: QuotaHeaders = ()
    if "ietf" in families:
        pk = f";pk=:{partition}:" if partition and not is_total else ""
        left = min(remaining, MAX_FIELD_INTEGER)
        headers = (policies, ("RateLimit", f"{beginning}{left};t={whole_seconds(more_after_s, at_least)}{pk}"))
    if "x-ratelimit" in families:
        reset = ("X-RateLimit-Reset", f"{whole_seconds(reset_after_s, at_least)}")
        headers += (limit, ("X-RateLimit-Remaining", f"{remaining}"), reset)
    return headers


@lru_cache(maxsize=1000)
def _constants(tiers: tuple[Tier, ...], name: str, limit: int) -> tuple[Header, str, Header]:
    """Return what is the same in each answer about a policy under these tiers."""
    enforced = [tier.policy for tier in tiers if tier.is_enforced]
    items = [
        f"{_quoted(policy.name)};q={min(policy.limit, MAX_FIELD_INTEGER)};w={policy.window.window_s}"
        for policy in enforced
    ]
    return ("RateLimit-Policy", ", ".join(items)), f"{_quoted(name)};r=", ("X-RateLimit-Limit", f"{limit}")


def _quoted(name: str) -> str:
    """Return a name as a string of a structured field."""
    return f'"{_NOT_IN_A_STRING.sub("?", name)}"'
