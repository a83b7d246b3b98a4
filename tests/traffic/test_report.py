"""Faults of clients, from their minutes."""

import pytest

from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally
from oauth_ratelimit.traffic.report import ClientFinding, Fault, Verdict, find
from tests.traffic.reporting import LOGIN, OWN, REFRESH, START_S, minutes


def only(findings: list[ClientFinding]) -> ClientFinding:
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
    trust = {each.client_id: each.total.tally().is_mostly_trusted for each in findings}
    assert [("a", True), ("b", False), ("c", False)] == list(trust.items())
