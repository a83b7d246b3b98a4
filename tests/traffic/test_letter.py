"""Letters to the owners of clients, and records for programs."""

import pytest

from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.traffic.report import ClientFinding, find, letter_to, lifetime_text, period_text, record_of
from tests.traffic.reporting import LOGIN, OWN, REFRESH, START_S, minutes

PERIOD = period_text(START_S, START_S + 86_400)


def worst_finding() -> ClientFinding:
    tally = Tally(100, denied=40, retries=20, would_deny=3)
    hour = minutes({LOGIN: tally, REFRESH: tally, OWN: tally}, users=1, lifetimes={864_000: 60})
    (finding,) = find([*hour, *minutes({OWN: Tally(50_000)}, count=1)])
    return finding


def test_letter_says_what_was_seen_and_what_helps() -> None:
    letter = letter_to(worst_finding(), PERIOD, error_uri="https://example.com/tokens")

    assert "Your client shop requests too many access tokens" == letter.subject
    assert letter.text.startswith(
        "Hello,\n\nFrom 2023-11-14 23:00:00 to 2023-11-15 23:00:00 UTC, your OAuth client shop sent"
    )
    for words in (
        "An access token is valid for 10 days.",
        "17,126 requests per user and hour, mostly to refresh tokens that were still valid.",
        "requests per hour for tokens without a user.",
        "3,600 of 7,200 denied requests were sent before the time in Retry-After was over.",
        "7,740 requests over the limit: 540 admitted while the limit was on trial, 7,200 rejected with status 429.",
        "50,000 requests in the busiest minute; the average is",
        "wait for the number of seconds in its Retry-After header",
        "More information: https://example.com/tokens",
    ):
        assert words in letter.text, letter.text


def test_letter_to_a_client_without_faults() -> None:
    (finding,) = find(minutes({OWN: Tally(1)}, count=1))
    letter = letter_to(finding, PERIOD)

    assert "Access tokens of your client shop" == letter.subject
    assert "We found no problem." in letter.text
    assert "What helps" not in letter.text
    assert "valid for" not in letter.text


@pytest.mark.parametrize(
    ("tally", "answers"),
    [
        (Tally(9, would_deny=1), "60 admitted while the limit was on trial. Where the limit is enforced, such"),
        (Tally(9, denied=1, would_deny=1), "60 admitted while the limit was on trial, 60 rejected with status 429.\n"),
        (Tally(9, reused=1), "60 answered with the token that the client already had.\n"),
    ],
)
def test_letter_says_what_became_of_requests_over_a_limit(tally: Tally, answers: str) -> None:
    (finding,) = find(minutes({LOGIN: tally}))

    assert f"0 requests over the limit: {answers}" in letter_to(finding, PERIOD).text


@pytest.mark.parametrize(
    ("lifetimes", "words"),
    [({90: 9}, "90 seconds"), ({86_400: 9}, "1 day"), ({300: 10, 864_000: 9, 7: 1}, "5 minutes to 10 days")],
    ids=str,
)
def test_usual_token_lifetimes_are_in_the_largest_units_that_fit(lifetimes: dict[int, int], words: str) -> None:
    """A single odd token is left out."""
    (finding,) = find(minutes({LOGIN: Tally(20)}, lifetimes=lifetimes))
    assert words == lifetime_text(finding)


def test_record_has_the_numbers_and_the_letter() -> None:
    record = record_of(worst_finding(), 1, period=PERIOD)

    names = ("denied", "would_deny", "retries_while_denied", "busiest_minute_requests")
    assert (7200, 540, 3600, 50_000) == tuple(record[name] for name in names)
    assert letter_to(worst_finding(), PERIOD).text == record["letter"]
