"""Letters to the owners of clients."""

import pytest

from oauth_ratelimit.core.statistics import Tally
from oauth_ratelimit.report import find, letter_to
from oauth_ratelimit.report.letter import lifetime_text
from tests.report.reporting import LOGIN, PERIOD, fine_finding, minutes, worst_findings


def test_letter_says_what_was_seen_and_what_helps() -> None:
    (finding,) = worst_findings("shop")
    letter = letter_to(finding, PERIOD, error_uri="https://example.com/tokens")

    assert "Your client shop requests too many access tokens" == letter.subject
    assert letter.text.startswith(
        "Hello,\n\nFrom 2023-11-14 23:00:00 to 2023-11-15 23:00:00 UTC, your OAuth client shop sent"
    )
    for words in (
        "An access token is valid for 10 days.",
        "17,126 requests per user and hour, mostly to refresh tokens that were still valid.",
        "requests per hour for tokens without a user.",
        "3,600 of 7,200 denied requests were sent before the time in Retry-After was over.",
        "540 requests over the limit, admitted because the limit is not enforced yet, and 7,200 rejected with status",
        "50,000 requests in the busiest minute; the average is",
        "wait for the number of seconds in its Retry-After header",
        "More information: https://example.com/tokens",
    ):
        assert words in letter.text, letter.text


def test_letter_to_a_client_without_faults() -> None:
    letter = letter_to(fine_finding(), PERIOD)

    assert "Access tokens of your client shop" == letter.subject
    assert "We found no problem." in letter.text
    assert "What helps" not in letter.text


@pytest.mark.parametrize(
    ("tally", "words"),
    [
        (Tally(9, would_deny=1), "Once it is, such requests will be rejected with status 429."),
        (Tally(9, denied=1), "60 requests over the limit, rejected with status 429."),
    ],
    ids=["dry run", "enforced"],
)
def test_letter_about_requests_over_a_limit(tally: Tally, words: str) -> None:
    (finding,) = find(minutes({LOGIN: tally}, users=600))

    assert words in letter_to(finding, PERIOD).text


@pytest.mark.parametrize(
    ("lifetime_s", "words"),
    [(3600, "1 hour"), (7200, "2 hours"), (600, "10 minutes"), (90, "90 seconds"), (86_400, "1 day")],
)
def test_token_lifetime_is_in_the_largest_unit_that_fits(lifetime_s: int, words: str) -> None:
    (finding,) = find(minutes({LOGIN: Tally(9)}, lifetimes={lifetime_s: 9}))
    assert words == lifetime_text(finding)


def test_letter_names_the_range_of_usual_lifetimes() -> None:
    """A single odd token is left out."""
    (finding,) = find(minutes({LOGIN: Tally(20)}, lifetimes={300: 10, 864_000: 9, 7: 1}))
    assert "An access token is valid for 5 minutes to 10 days." in letter_to(finding, PERIOD).text


def test_letter_says_nothing_about_an_unknown_lifetime() -> None:
    assert "valid for" not in letter_to(fine_finding(), PERIOD).text
