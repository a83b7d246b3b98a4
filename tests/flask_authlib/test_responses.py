"""Status, body and headers of a decision."""

import math
from dataclasses import replace
from typing import Any, get_args

import http_sf
import pytest
from authlib.oauth2 import OAuth2Error

from oauth_ratelimit.config import DenialSettings, load_config
from oauth_ratelimit.config.settings import HeaderFamily
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import RateLimitError
from oauth_ratelimit.flask_authlib.responses import DEVICE_GRANT, FAMILY_WRITERS, RateLimited, quota_headers

USER_POLICY = Policy(name="user", limit=20, window=Window.of(60))
DENIED = FullDecision(
    allowed=False,
    would_deny=True,
    mode=Mode.ENFORCE,
    rule=USER_POLICY,
    remaining=0,
    reset_after_s=65.2,
    retry_after_s=11.001,
)
ADMITTED = FullDecision(
    allowed=True, would_deny=False, mode=Mode.ENFORCE, rule=USER_POLICY, remaining=5, reset_after_s=59.5
)
BOTH = ("ietf", "x-ratelimit")


def parsed(value: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of a structured field's list with their parameters."""
    return [(str(name), dict(parameters)) for name, parameters in http_sf.parse(value.encode(), tltype="list")]


def answer(error: RateLimited, uri: str | None = None) -> tuple[int, Any, dict[str, str]]:
    """Return what Authlib sends for an error."""
    status, body, headers = error(uri)
    return status, body, dict(headers)


def test_denied_request_gets_429_with_oauth_error():
    """A denial is a 429 whose JSON body is an OAuth error with a description and no name in it."""
    status, body, headers = answer(RateLimited(DENIED, DenialSettings()))

    assert 429 == status
    assert {"error", "error_description"} == body.keys()
    assert "temporarily_unavailable" == body["error"]
    assert DenialSettings().error_description == body["error_description"]
    assert "application/json" == headers["Content-Type"]
    assert "no-store" == headers["Cache-Control"]
    assert "no-cache" == headers["Pragma"]


def test_denial_has_each_header_once():
    names = [name for name, _ in RateLimited(DENIED, DenialSettings()).get_headers()]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("retry_after_s", "expected"),
    [(0.0, "1"), (0.001, "1"), (1.0, "1"), (1.001, "2"), (11.001, "12"), (math.inf, "1")],
)
def test_retry_after_is_a_whole_number_rounded_up(retry_after_s, expected):
    """A client that waits for Retry-After is never early, and never waits less than a second."""
    denied = replace(DENIED, retry_after_s=retry_after_s)

    _, _, headers = answer(RateLimited(denied, DenialSettings()))

    assert expected == headers["Retry-After"]


def test_quota_of_a_denial():
    """The reset is not later than Retry-After. The structured fields follow the draft."""
    headers = dict(RateLimited(DENIED, DenialSettings()).get_headers())

    assert {
        "RateLimit-Policy": '"user";q=20;w=60',
        "RateLimit": '"user";r=0;t=12',
        "X-RateLimit-Limit": "20",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "12",
        "Retry-After": "12",
    }.items() <= headers.items()
    assert [("user", {"q": 20, "w": 60})] == parsed(headers["RateLimit-Policy"])
    assert [("user", {"r": 0, "t": 12})] == parsed(headers["RateLimit"])


def test_quota_of_an_admitted_request():
    """An admitted request learns its quota and the whole reset, and nothing that makes it wait."""
    headers = dict(quota_headers(ADMITTED, BOTH))

    assert {
        "RateLimit-Policy": '"user";q=20;w=60',
        "RateLimit": '"user";r=5;t=60',
        "X-RateLimit-Limit": "20",
        "X-RateLimit-Remaining": "5",
        "X-RateLimit-Reset": "60",
    } == headers


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        ((), set()),
        (("ietf",), {"RateLimit-Policy", "RateLimit"}),
        (("x-ratelimit",), {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
    ],
    ids=["none", "ietf", "x-ratelimit"],
)
def test_only_configured_families_are_sent(families, expected):
    """``Retry-After`` is always sent."""
    denial = DenialSettings(headers=families)

    assert expected == {name for name, _ in quota_headers(ADMITTED, families)}
    assert "Retry-After" in dict(RateLimited(DENIED, denial).get_headers())


def test_each_header_family_in_the_configuration_has_a_writer():
    """The configuration accepts no name that the response does not know."""
    settings = load_config({"denial": {"headers": [*FAMILY_WRITERS]}})

    assert tuple(FAMILY_WRITERS) == settings.denial.headers
    assert set(FAMILY_WRITERS) == set(get_args(HeaderFamily))


@pytest.mark.parametrize(
    "decision",
    [replace(ADMITTED, trusted=True), replace(ADMITTED, rule=None)],
    ids=["trusted", "no policy"],
)
def test_trusted_client_and_unlimited_request_have_no_quota_headers(decision):
    """A trusted client and one without a policy get no quota headers."""
    assert [] == quota_headers(decision, BOTH)


def test_quota_beyond_a_structured_integer_is_capped():
    """A quota of 2^53 has more digits than a structured field may hold, so the largest that fits is sent."""
    huge = Policy(name="user", limit=MAX_LIMIT, window=Window.of(60))

    headers = dict(quota_headers(replace(ADMITTED, rule=huge, remaining=MAX_LIMIT - 1), BOTH))

    assert [("user", {"q": 10**15 - 1, "w": 60})] == parsed(headers["RateLimit-Policy"])
    assert [("user", {"r": 10**15 - 1, "t": 60})] == parsed(headers["RateLimit"])
    assert str(MAX_LIMIT) == headers["X-RateLimit-Limit"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\r\nSet-Cookie: x", "préféré", "\x7f"])
def test_policy_name_cannot_break_out_of_its_header(name):
    """A policy's name never breaks out of its header."""
    odd = Policy(name=name, limit=20, window=Window.of(60))

    headers = dict(quota_headers(replace(ADMITTED, rule=odd), BOTH))

    [(shown, parameters)] = parsed(headers["RateLimit"])
    assert len(name) == len(shown)
    assert {"r": 5, "t": 60} == parameters


def test_device_is_told_to_slow_down():
    """A polling device gets the one error that does not end its polling."""
    _, body, _ = answer(RateLimited(DENIED, DenialSettings(), grant_type=DEVICE_GRANT))

    assert "slow_down" == body["error"]


def test_configured_error_uri_wins_over_the_servers():
    """The configured page wins over the server's page for this error code, which is better than none."""
    ours = DenialSettings(error_uri="https://example.com/reuse")

    _, body, _ = answer(RateLimited(DENIED, ours), "https://example.com/errors")
    assert "https://example.com/reuse" == body["error_uri"]

    _, body, _ = answer(RateLimited(DENIED, DenialSettings()), "https://example.com/errors")
    assert "https://example.com/errors" == body["error_uri"]


def test_denial_is_caught_as_either_kind_of_error():
    """A denial is an OAuth error for Authlib and one of ours for applications; it carries the decision."""
    error = RateLimited(DENIED, DenialSettings())

    assert isinstance(error, OAuth2Error)
    assert isinstance(error, RateLimitError)
    assert DENIED is error.decision


def test_redirected_denial_is_in_the_fragment():
    """Its error code is one that RFC 6749 knows there."""
    error = RateLimited(DENIED, DenialSettings(error="too_many_tokens"))
    error.redirect_to("https://app.example/callback", state="some-state")

    status, body, headers = answer(error)

    assert 302 == status
    assert "" == body
    location, _, fragment = headers["Location"].partition("#")
    assert "https://app.example/callback" == location
    assert "error=temporarily_unavailable" in fragment.split("&")
    assert "state=some-state" in fragment.split("&")
