"""What clients do wrong, worked out from their minutes."""

from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit.core.hyperloglog import merged, register_of
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally
from oauth_ratelimit.report.findings import ClientFinding, Fault, Verdict, find

START_S = 1_700_002_800  # a full hour
LOGIN, REFRESH, OWN = (
    Source("user", "password"),
    Source("user", "refresh_token"),
    Source("client", "client_credentials"),
)


def minutes(
    tallies: dict[Source, Tally],
    *,
    users: int = 0,
    count: int = 60,
    every_s: int = 60,
    client_id: str = "shop",
    **more: Any,
) -> Iterator[ClientMinute]:
    """Yield minutes that are all the same."""
    registers = merged(dict([register_of(f"user-{number}")]) for number in range(users))
    for number in range(count):
        yield ClientMinute(client_id, START_S + every_s * number, tallies, registers=registers, **more)


def only(found: list[ClientFinding]) -> ClientFinding:
    """Return the only finding."""
    (finding,) = found
    return finding


def test_client_that_keeps_its_tokens() -> None:
    """One token per user and hour is what a client needs."""
    finding = only(find(minutes({LOGIN: Tally(10)}, users=10, count=5, every_s=3600)))

    assert (Verdict.FINE, (), 0) == (finding.verdict, finding.faults, finding.needless)
    assert 1.0 == pytest.approx(finding.tokens_per_user_hour, abs=0.05)
    assert (0.0, None, None) == (finding.refresh_share, finding.tokens_per_hour, finding.retry_share)


@pytest.mark.parametrize(
    ("tallies", "fault", "refresh_share"),
    (
        ({LOGIN: Tally(10)}, Fault.LOGS_IN_AGAIN, 0.0),
        ({REFRESH: Tally(8), LOGIN: Tally(2)}, Fault.REFRESHES_EARLY, 0.8),
    ),
    ids=("logs in", "refreshes"),
)
def test_tokens_of_users(tallies: dict[Source, Tally], fault: Fault, refresh_share: float) -> None:
    """
    A client that gets a token per minute for each user is wasteful: it logs users in anew, or refreshes too early.
    """
    finding = only(find(minutes(tallies, users=10)))

    assert (Verdict.WASTEFUL, (fault,)) == (finding.verdict, finding.faults)
    assert 60.0 == pytest.approx(finding.tokens_per_user_hour, rel=0.05)
    assert refresh_share == finding.refresh_share
    assert 590 == pytest.approx(finding.needless, abs=1)


def test_tokens_of_its_own() -> None:
    """A client may run some processes, each with a token of its own; a token per call is more than that."""
    fine = only(find(minutes({OWN: Tally(1)}, count=24, every_s=3600)))
    wasteful = only(find(minutes({OWN: Tally(2)}, count=24 * 60)))

    assert (Verdict.FINE, 1.0, 0) == (fine.verdict, fine.tokens_per_hour, fine.needless)
    assert (Fault.TOKEN_PER_CALL,) == wasteful.faults
    assert (120.0, 24 * 110) == (wasteful.tokens_per_hour, wasteful.needless)


def test_token_lifetime() -> None:
    """What lasts ten minutes is needed six times an hour."""
    short = only(find(minutes({LOGIN: Tally(1)}, users=1, every_s=600), token_lifetime_s=600.0))
    long = only(find(minutes({LOGIN: Tally(1)}, users=1, every_s=600), token_lifetime_s=3600.0))

    assert (Verdict.FINE, Verdict.WASTEFUL) == (short.verdict, long.verdict)


def test_too_little_to_tell() -> None:
    """A handful of requests is nobody's fault."""
    assert () == only(find(minutes({LOGIN: Tally(1)}, users=1, count=15))).faults


def test_bursts() -> None:
    """A minute far above the average of its hours is a burst."""
    quiet = minutes({LOGIN: Tally(1)}, users=60, count=50)
    burst = ClientMinute("shop", START_S + 3000, {LOGIN: Tally(100)}, registers={})

    assert (Fault.BURSTS,) == only(find([*quiet, burst])).faults


def test_retries_while_denied() -> None:
    """A client that comes again before its time is over its limits and impatient; one that waits is only the first."""
    impatient = only(find(minutes({LOGIN: Tally(3, denied=7, retries=6)}, users=600)))
    patient = only(find(minutes({LOGIN: Tally(3, denied=7)}, users=600)))

    assert (Fault.IGNORES_RETRY_AFTER, Fault.OVER_LIMIT) == impatient.faults
    assert (Fault.OVER_LIMIT,) == patient.faults
    assert 6 / 7 == pytest.approx(impatient.retry_share)
    assert {Verdict.OVER_LIMIT} == {impatient.verdict, patient.verdict}


def test_dry_run() -> None:
    """Whom a dry run would have denied is over its limits, too."""
    assert (Fault.OVER_LIMIT,) == only(find(minutes({LOGIN: Tally(9, would_deny=1)}, users=600))).faults


def test_rank() -> None:
    """
    Whoever asks most needlessly comes first; trusted clients are in it, clients without a name of their own are not.
    """
    found = find(
        [
            *minutes({OWN: Tally(20)}, client_id="b"),
            *minutes({OWN: Tally(trusted=40)}, client_id="a"),
            *minutes({LOGIN: Tally(1)}, users=60, client_id="c"),
            *minutes({OWN: Tally(1000)}, client_id=OTHER_CLIENTS),
            *minutes({Source("client", "endpoint:revocation"): Tally(1000)}, client_id="d"),
        ]
    )

    assert [("a", True), ("b", False), ("c", False)] == [(each.client_id, each.is_trusted) for each in found]


def test_nobody() -> None:
    """Without statistics there is nothing to find."""
    assert [] == find([])
