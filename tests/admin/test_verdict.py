"""Verdicts: each part of the sentence, and a case in which it is not so."""

from collections.abc import Sequence

import pytest

from oauth_ratelimit.admin.marks import Mark
from oauth_ratelimit.admin.verdict import Case, judge, judge_all, severity
from oauth_ratelimit.core.statistics import NO_REQUESTS, ClientMinute, ClientTotal, Denials, Kind, Peak, Source, Tally
from oauth_ratelimit.operations.format import utc_time
from testbed.clock import Clock

NOW_S = Clock().now_s // 60 * 60 + 45.0
BEGUN_S = int(NOW_S) - 325  # twenty seconds after the start of a minute
DAY_S = 86_400


def minute(
    ago: int,
    *,
    policy: str = "total-hour",
    grant: str = "client_credentials",
    kind: Kind = "client",
    limit: int = 6000,
    window_s: int = 3600,
    share: float = 0.2,
    **outcomes: int,
) -> ClientMinute:
    """Return a minute of the client, so many minutes ago."""
    start_s = int(NOW_S // 60 - ago) * 60
    tally = Tally(**outcomes)
    over = Denials(
        tally.denied, tally.would_deny, max(start_s, BEGUN_S), min(start_s + 59, int(NOW_S)), limit, window_s
    )
    return ClientMinute(
        "batch-jobs",
        start_s,
        {Source(kind, grant): tally},
        {policy: Peak(share, share * limit, limit, window_s)},
        denials={(policy, grant): over} if tally.denied or tally.would_deny else {},
    )


def storm(minutes: Sequence[ClientMinute] = (), **more: object) -> Case:
    """Return a client with ten requests a second since 325 s ago, at a limit of 100 a minute, unusual for it, alone."""
    denied = [minute(ago, allowed=100, denied=500) for ago in range(5, 0, -1)] + [minute(0, allowed=75, denied=375)]
    known = {"usual": 10.0, "others_active": 211, "totals": frozenset({"total-hour"})}
    changes = [Mark(NOW_S - 3 * DAY_S, "configuration: limits.user: 5/hour → 6/hour (node-1)")]
    return Case(NOW_S, minutes or denied, **{**known, "changes": changes, **more})  # type: ignore[arg-type]


def text_of(case: Case) -> str:
    return " ".join(judge(case).sentences)


def test_storm_of_one_client_is_told_in_one_sentence_and_its_reasons() -> None:
    begun, changed = utc_time(BEGUN_S), utc_time(NOW_S - 3 * DAY_S)

    assert (
        "denied",
        (
            f"Denied since {begun} by total-hour (6000/hour), client_credentials: 6 times the limit, "
            "60 times its usual.",
            "In the last minute 500 of 600 requests were denied.",
            "Nobody else is affected (211 other clients with requests).",
            f"The configuration has not changed since {changed}.",
            "The cause is the client's load.",
        ),
    ) == judge(storm())


def of_minutes(**options: object) -> list[ClientMinute]:
    return [minute(ago, **options) for ago in range(5, -1, -1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "said", "not_said"),
    [
        (storm(is_beyond=True), f"Denied since before {utc_time(BEGUN_S)}", f"since {utc_time(BEGUN_S)}"),
        (storm(of_minutes(would_deny=9)), "Would be denied (dry run) since", "Denied since"),
        (storm(of_minutes(denied=9, policy="client")), "by client (6000/hour)", "total-hour"),
        (storm(of_minutes(denied=9, limit=40, window_s=5)), "(40/5s)", "6000/hour"),
        (storm(of_minutes(denied=9, kind="user", grant="password")), "password", "client_credentials"),
        (storm(of_minutes(denied=2, allowed=60)), "times its usual", "times the limit"),
        (storm(of_minutes(denied=100, would_reuse=93)), "Reuse would have spared 93 % of these.", "no reuse"),
        (storm(of_minutes(denied=100)), "requests were denied", "Reuse"),
        (
            storm([minute(1, allowed=27, reused=93)]),
            "93 of 120 requests in the last hour were answered with the",
            "Near",
        ),
        (storm(totals=frozenset()), "Denied since", "times the limit"),
        (storm(usual=590.0), "no more than usual", "its usual"),
        (storm(usual=None), "6 times the limit.", "usual"),
        (storm(of_minutes(denied=30)), "all 38 requests were denied", " of "),
        (storm(others_over=3), "3 of 211 other clients are denied, too.", "Nobody else"),
        (storm(others_active=0), "No other client sends requests.", "Nobody else"),
        (storm(others_over=150), "Most clients are affected: look for the cause on our side.", "the client's load"),
        (storm(changes=[]), "No change of the configuration is recorded.", "has not changed"),
        (
            storm(changes=[Mark(BEGUN_S - 40, "limits.client: 9000/minute → 120/minute")]),
            "Changed 40 s before it began: limits.client: 9000/minute → 120/minute. The cause may be on our side",
            "the client's load",
        ),
        (
            storm(changes=[Mark(BEGUN_S + 90, "client limit of batch-jobs: 800/minute (ann)")]),
            f"Changed since it began, at {utc_time(BEGUN_S + 90)}: client limit of batch-jobs: 800/minute (ann).",
            "has not changed",
        ),
        (storm(usual=500.0), "the limit may be too low for it", "the client's load"),
        (storm(usual=None), "Look at this client first.", "on our side"),
        (storm(usual=None, others_over=1), "1 of 211 other clients is denied", "this client first"),
        (storm(usual=None, others_active=2), "Nobody else is affected", "this client first"),
        (
            storm(of_minutes(denied=30)[:-1]),
            f"all 8 requests were denied, the last at {utc_time(int(NOW_S) - 46)}.",
            "its last denial",
        ),
        (
            storm(of_minutes(denied=110, policy="guard/password", grant="guard:password", limit=20, window_s=600)),
            "by password (20/10m), the guard against guessing (password)",
            "times the limit",
        ),
        (
            storm(of_minutes(denied=110, policy="guard/password", grant="guard:password")),
            "it need not be this client",
            "the client's load",
        ),
        (
            storm(
                of_minutes(denied=551, policy="revocation/client", grant="endpoint:revocation", limit=60, window_s=60)
            ),
            "by revocation/client (60/minute), at revocation: ",
            "client_credentials",
        ),
        (storm(is_trusted=True, minutes=[minute(1, allowed=5)]), "Trusted: never denied. 5 requests", "Within"),
        (storm(is_unknown=True, minutes=[minute(1)]), "Unknown", "Denied"),
        (storm([minute(1, allowed=5, share=0.92)]), "Near its limit. Highest use in the last hour: 92 %", "Within"),
        (storm([minute(1, allowed=5)]), "Within its limits. Highest use in the last hour: 20 % of total-hour", "Near"),
        (storm([minute(1)]), "No requests are recorded in the last hour.", "Within"),
        (storm([minute(1, allowed=5)], nearest=(1.2, "12 hits; allowed: 10/hour")), "At its limit now", "Within"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_each_part_of_a_verdict_is_said_only_if_it_is_so(case: Case, said: str, not_said: str) -> None:
    assert said in text_of(case)
    assert not_said not in text_of(case)


def test_two_limits_that_deny_are_both_named() -> None:
    both = minute(0, denied=400, policy="client-minute", limit=120, window_s=60)
    other = minute(0, denied=200)
    merged = ClientMinute("a", both.minute_s, both.tallies, denials={**both.denials, **other.denials})

    assert "by client-minute (120/minute), client_credentials and by total-hour (6000/hour)" in text_of(storm([merged]))


def test_denials_after_a_pause_of_ten_minutes_begin_anew() -> None:
    def at(ago: int) -> ClientMinute:
        start_s = int(NOW_S // 60 - ago) * 60
        denials = {("user", "password"): Denials(5, 0, start_s, start_s + 30, 5, 3600)}
        return ClientMinute("a", start_s, {Source("user", "password"): Tally(denied=5)}, denials=denials)

    for first, begun in ((30, 9), (20, 9), (18, 18)):
        assert f"Denied since {utc_time(at(begun).minute_s)}" in text_of(storm([at(first), at(9), at(0)]))


def test_end_of_a_dry_run_is_named_as_the_cause() -> None:
    minutes = [minute(2, would_deny=9), minute(1, denied=4, would_deny=4), minute(0, denied=9)]

    text = text_of(storm(minutes, changes=[Mark(NOW_S // 60 * 60 - 30, "mode: dry-run → enforce")]))

    assert "Changed 1 s before it began: mode: dry-run → enforce. The cause may be on our side" in text


def test_beginning_of_a_dry_run_is_no_cause() -> None:
    minutes = [
        minute(4, denied=9),
        minute(3, denied=4, would_deny=4),
        *(minute(ago, would_deny=9) for ago in (2, 1, 0)),
    ]

    text = text_of(storm(minutes, changes=[Mark(NOW_S // 60 * 60 - 150, "mode: enforce → dry-run")]))

    assert "Would be denied (dry run) since" in text
    assert "Changed since it began" in text
    assert "on our side" not in text


def test_client_that_is_admitted_again_has_recovered() -> None:
    past = [minute(ago, denied=9) for ago in (5, 4)]
    until = utc_time(past[-1].minute_s + 59)
    found = judge(storm([*past, minute(2, allowed=40), minute(1, allowed=2)]))

    assert ("recovered", f"Not denied any more: 42 requests since {until}, none over a limit.") == (
        found.kind,
        found.sentences[0],
    )
    assert f"Denied from {utc_time(BEGUN_S)} to {until} by total-hour (6000/hour)" in found.sentences[1]
    assert "it may be waiting" in text_of(storm(past)), "it has sent nothing since then"


@pytest.mark.parametrize(
    ("counts", "kind", "text"),
    [
        ((0, 0, 0), "idle", "No requests are recorded in the last minute."),
        ((9, 0, 0), "ok", "Nobody is denied, of 9 clients with requests in the last minute."),
        ((9, 0, 2), "dry-run", "Nobody is denied. 2 of 9 clients would be, in a dry run."),
        ((9, 1, 3), "denied", "1 of 9 clients is denied now. 2 more would be, in a dry run."),
        ((9, 9, 9), "denied", "All 9 clients are denied now."),
    ],
)
def test_verdict_on_all_clients_counts_those_that_are_denied(
    counts: tuple[int, int, int], kind: str, text: str
) -> None:
    assert (kind, (text,)) == judge_all(*counts)


def total(
    name: str, token: Tally = NO_REQUESTS, elsewhere: Tally = NO_REQUESTS, guard: Tally = NO_REQUESTS
) -> ClientTotal:
    return ClientTotal(name, token, elsewhere, guard)


def test_worst_client_is_the_one_to_which_enforcement_does_most() -> None:
    ordered = [
        total("gets nothing", Tally(denied=30)),
        total("gets nothing elsewhere", elsewhere=Tally(denied=20)),
        total("most", Tally(100, 900)),
        total("asked once", Tally(denied=1)),
        total("some", Tally(900, 300)),
        total("2 % of a large one", Tally(98_000, 2000)),
        total("dry run", Tally(would_deny=50_000)),
        total("guessed at", guard=Tally(denied=9999)),
        total("fine", Tally(77)),
    ]
    assert ordered == sorted([*ordered[4:], *ordered[:4]], key=severity)
