"""Status, body and headers of a decision."""

import math
from typing import Any

import http_sf
import pytest

from oauth_ratelimit.config import DenialSettings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import PseudonymKey
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.flask_authlib.responses import RateLimited, quota_headers
from tests.support.decisions import a_denial, an_admission

USER_POLICY = Policy(name="user", limit=20, window=Window.of(60))
DENIED = a_denial(USER_POLICY, reset_after_s=65.2, retry_after_s=11.001)
ADMITTED = an_admission(USER_POLICY, remaining=5)
BOTH = ("ietf", "x-ratelimit")


def parsed(value: str) -> list[tuple[str, dict[str, Any]]]:
    return [(str(name), dict(parameters)) for name, parameters in http_sf.parse(value.encode(), tltype="list")]


def answer(error: RateLimited, uri: str | None = None) -> tuple[int, Any, dict[str, str]]:
    status, body, headers = error(uri)
    return status, body, dict(headers)


@pytest.mark.parametrize(
    ("retry_after_s", "expected"),
    [(0.0, "1"), (0.001, "1"), (1.0, "1"), (1.001, "2"), (11.001, "12"), (math.inf, "1")],
)
def test_retry_after_is_a_whole_number_rounded_up(retry_after_s, expected):
    """A client that waits for Retry-After is never early, and never waits less than a second."""
    denied = a_denial(USER_POLICY, reset_after_s=65.2, retry_after_s=retry_after_s)

    _, _, headers = answer(RateLimited(denied, DenialSettings()))

    assert expected == headers["Retry-After"]


@pytest.mark.parametrize(
    ("decision", "limit", "left", "more_after", "reset_after"),
    [
        (DENIED, 20, 0, 12, 12),
        (ADMITTED, 20, 5, 61, 66),
        (
            an_admission(USER_POLICY._replace(limit=MAX_LIMIT), remaining=MAX_LIMIT - 1),
            MAX_LIMIT,
            MAX_LIMIT - 1,
            66,
            66,
        ),
    ],
    ids=["denied", "admitted", "beyond an integer of structured fields"],
)
def test_quota_of_a_decision(decision: Decision, limit: int, left: int, more_after: int, reset_after: int) -> None:
    """The structured fields follow the draft. The reset of a denial is not later than its Retry-After."""
    headers = dict(quota_headers(decision, BOTH))
    quota, rest = min(limit, 10**15 - 1), min(left, 10**15 - 1)

    assert {
        "RateLimit-Policy": f'"user";q={quota};w=60',
        "RateLimit": f'"user";r={rest};t={more_after}',
        "X-RateLimit-Limit": f"{limit}",
        "X-RateLimit-Remaining": f"{left}",
        "X-RateLimit-Reset": f"{reset_after}",
    } == headers
    assert [("user", {"q": quota, "w": 60})] == parsed(headers["RateLimit-Policy"])
    assert [("user", {"r": rest, "t": more_after})] == parsed(headers["RateLimit"])
    assert 3 == len(quota_headers(decision, ("x-ratelimit",)))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\r\nSet-Cookie: x", "préféré", "\x7f"])
def test_policy_name_cannot_break_out_of_its_header(name):
    odd = Policy(name=name, limit=20, window=Window.of(60))

    headers = dict(quota_headers(an_admission(odd, remaining=5), BOTH))

    [(shown, parameters)] = parsed(headers["RateLimit"])
    assert len(name) == len(shown)
    assert {"r": 5, "t": 61} == parameters


def test_partition_keys_of_two_users_differ() -> None:
    """As do those of one user of two clients, and those under another key. Any name has one."""
    key, other = PseudonymKey.of(b"k" * 32), PseudonymKey.of(b"o" * 32)
    keys = [key.partition("app", "alice"), other.partition("app", "alice")]
    keys += [key.partition("app", "bob"), key.partition("apple", "alice"), key.partition("app", "\ud800\0")]
    assert 5 == len(set(keys))


@pytest.mark.parametrize("ours", ["https://example.com/reuse", None])
def test_configured_error_uri_wins_over_the_servers(ours: str | None) -> None:
    theirs = "https://example.com/errors"
    _, body, _ = answer(RateLimited(DENIED, DenialSettings(error_uri=ours)), theirs)
    assert (ours or theirs) == body["error_uri"]
