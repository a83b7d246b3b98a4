"""Faults of clients, letters to their owners, and records for programs."""

from collections.abc import Iterable

import pytest

from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally
from oauth_ratelimit.traffic.report import (
    ClientFinding,
    Fault,
    Verdict,
    find,
    letter_to,
    period_text,
    record_of,
)
from tests.traffic.reporting import LOGIN, OWN, REFRESH, START_S, minutes

PERIOD = period_text(START_S, START_S + 86_400)


def only(findings: Iterable[ClientFinding]) -> ClientFinding:
    (finding,) = findings
    return finding


def test_one_token_per_user_and_hour_is_fine_and_so_are_few_requests() -> None:
    finding = only(find(minutes({LOGIN: Tally(10)}, users=10, count=5, every_s=3600)))

    assert (Verdict.FINE, (), 0) == (finding.verdict, finding.faults, finding.need.needless)
    assert 1.0 == pytest.approx(finding.tokens_per_user_hour, abs=0.05)
    assert (0.0, None, None) == (finding.refresh_share, finding.tokens_per_hour, finding.retry_share)
    assert () == only(find(minutes({LOGIN: Tally(1)}, users=1, count=15))).faults


@pytest.mark.parametrize(
    ("tallies", "fault", "refresh_share"),
    [
        ({LOGIN: Tally(10)}, Fault.LOGS_IN_AGAIN, 0.0),
        ({REFRESH: Tally(8), LOGIN: Tally(2)}, Fault.REFRESHES_EARLY, 0.8),
    ],
    ids=["logs in", "refreshes"],
)
def test_token_per_user_and_minute_is_wasteful(
    tallies: dict[Source, Tally], fault: Fault, refresh_share: float
) -> None:
    """The fault depends on how the client gets the tokens."""
    finding = only(find(minutes(tallies, users=10)))

    assert (Verdict.WASTEFUL, (fault,)) == (finding.verdict, finding.faults)
    assert 60.0 == pytest.approx(finding.tokens_per_user_hour, rel=0.05)
    assert refresh_share == finding.refresh_share
    assert 590 == pytest.approx(finding.need.needless, abs=1)


def test_token_per_call_is_more_than_one_per_process_and_hour() -> None:
    fine = only(find(minutes({OWN: Tally(1)}, count=24, every_s=3600)))
    wasteful = only(find(minutes({OWN: Tally(2)}, count=24 * 60)))

    assert (Verdict.FINE, 1.0, 0) == (fine.verdict, fine.tokens_per_hour, fine.need.needless)
    assert (Fault.TOKEN_PER_CALL,) == wasteful.faults
    assert (120.0, 24 * 110) == (wasteful.tokens_per_hour, wasteful.need.needless)


def test_bursts_are_far_above_the_average() -> None:
    quiet = minutes({LOGIN: Tally(1)}, users=60, count=50)
    burst = ClientMinute("shop", START_S + 3000, {LOGIN: Tally(100)}, registers={})

    assert (Fault.BURSTS,) == only(find([*quiet, burst])).faults


def test_average_is_that_of_the_recorded_time() -> None:
    """Two minutes of a steady client at the end of an hour, and of another hour, are no bursts."""
    both = [ClientMinute("shop", START_S + 60 * number, {OWN: Tally(240)}) for number in (58, 59, 60, 61)]
    steady = only(find(both, lambda: (START_S + 3480, START_S + 3720)))
    daily = only(find(both[:1], lambda: (START_S - 36_000, START_S + 36_000)))

    assert (240.0, 4.0) == (steady.requests_per_minute, daily.requests_per_minute)
    assert [False, True] == [Fault.BURSTS in each.faults for each in (steady, daily)]


@pytest.mark.parametrize(
    ("tally", "faults"),
    [
        (Tally(3, denied=7, retries=6), (Fault.IGNORES_RETRY_AFTER, Fault.OVER_LIMIT)),
        (Tally(3, denied=7), (Fault.OVER_LIMIT,)),
        (Tally(9, would_deny=1), (Fault.OVER_LIMIT,)),
    ],
    ids=["retries", "waits", "dry run"],
)
def test_client_over_its_limits(tally: Tally, faults: tuple[Fault, ...]) -> None:
    finding = only(find(minutes({LOGIN: tally}, users=600)))

    assert (faults, Verdict.OVER_LIMIT) == (finding.faults, finding.verdict)
    assert (tally.retries / tally.denied if tally.denied else None) == finding.retry_share


def test_most_needless_requests_come_first() -> None:
    findings = find(
        [
            *minutes({OWN: Tally(20)}, client_id="b"),
            *minutes({OWN: Tally(trusted=40)}, client_id="a"),
            *minutes({LOGIN: Tally(1)}, users=60, client_id="c"),
            *minutes({OWN: Tally(1000)}, client_id=OTHER_CLIENTS),
            *minutes({Source("client", "endpoint:revocation"): Tally(1000)}, client_id="d"),
        ]
    )
    trust = {each.client_id: each.tally.is_mostly_trusted for each in findings}
    assert [("a", True), ("b", False), ("c", False)] == list(trust.items())


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
        "An access token is valid for 10 d.",
        "17,160 requests per user within an hour, mostly to refresh tokens that were still valid.",
        "requests within an hour for tokens without a user.",
        "At least 3,600 of 7,200 denied requests came before the Retry-After of an earlier answer was over.",
        "7,740 requests over the limit: 540 admitted in a dry run of the limit, 7,200 denied with status 429.",
        "50,000 requests in the busiest minute; the average is",
        "wait for the number of seconds in its Retry-After header",
        "More information: https://example.com/tokens",
    ):
        assert words in letter.text, letter.text


def test_ratios_of_a_letter_are_those_of_the_numbers_in_it() -> None:
    """Users are whole ones, though their number is estimated."""
    (finding,) = find(minutes({LOGIN: Tally(39)}, users=6, count=1))
    text = letter_to(finding, PERIOD).text

    assert "sent 39 requests for access tokens to our token endpoint, about 6.5 times as many as the 6 it needs" in text
    assert "6.5 requests per user within an hour" in text
    assert 6 == record_of(finding, 1, period=PERIOD)["user_count"]


@pytest.mark.parametrize("requests", [1, 25])  # the second is more than it needs, and not so much that it is wasteful
def test_letter_to_a_client_without_faults(requests: int) -> None:
    (finding,) = find(minutes({OWN: Tally(requests)}, count=1))
    letter = letter_to(finding, PERIOD)

    assert "Access tokens of your client shop" == letter.subject
    assert "We found no problem." in letter.text
    assert "What helps" not in letter.text
    assert "times as many" not in letter.text
    assert "valid for" not in letter.text


@pytest.mark.parametrize(
    ("tally", "answers"),
    [
        (
            Tally(9, would_deny=1),
            "60 admitted in a dry run of the limit. Without a dry run such requests would be denied with status 429",
        ),
        (Tally(9, denied=1, would_deny=1), "60 admitted in a dry run of the limit, 60 denied with status 429.\n"),
        (Tally(9, reused=1), "60 answered with the token that the client already had.\n"),
    ],
)
def test_letter_says_what_became_of_requests_over_a_limit(tally: Tally, answers: str) -> None:
    (finding,) = find(minutes({LOGIN: tally}))

    assert f"0 requests over the limit: {answers}" in letter_to(finding, PERIOD).text


@pytest.mark.parametrize(
    ("lifetimes", "words"),
    [({90: 9}, "1 min 30 s"), ({86_400: 9}, "1 d"), ({300: 10, 864_000: 9, 7: 1}, "5 min to 10 d")],
    ids=str,
)
def test_letter_says_how_long_tokens_are_usually_valid(lifetimes: dict[int, int], words: str) -> None:
    """A single odd token is left out."""
    (finding,) = find(minutes({LOGIN: Tally(20)}, lifetimes=lifetimes))
    assert f" An access token is valid for {words}." in letter_to(finding, PERIOD).text


def test_record_has_the_numbers_and_the_letter() -> None:
    record = record_of(worst_finding(), 1, period=PERIOD)

    names = ("denied", "would_deny", "retries_while_denied", "busiest_minute_requests")
    assert (7200, 540, 3600, 50_000) == tuple(record[name] for name in names)
    assert letter_to(worst_finding(), PERIOD).text == record["letter"]
