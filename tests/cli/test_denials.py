"""denials: who was denied, and when."""

import re
from datetime import UTC, datetime
from unittest.mock import Mock
from uuid import uuid4

import pytest
import yaml

from oauth_ratelimit import Limiter
from oauth_ratelimit.cli.explain import period
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.core.failed_auth import FailureKind
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import ClientMinute, Denials, Source, Tally
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.observe.events import DenialRecorder
from oauth_ratelimit.operations.denied import DENY_NOBODY
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.fields import date_of
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal
from tests.support.limiters import send_hits

NOW = datetime(2026, 12, 1, 14, 30, tzinfo=UTC)
RANGE = ("--from", "1970-01-01", "--to", "2100-01-01")


def test_user_of_a_client_who_was_denied_is_listed_with_the_number_of_requests(
    terminal: Terminal, limiter: Limiter, denials: DenialRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user, count in (("alice", 9), ("bob", 7)):
        decisions = [limiter.check("app", user, grant_type="password") for _ in range(count)]
    limiter.denial_events.report(
        "app",
        "192.0.2.7 alice",
        scope=FailureKind.USER.scope,
        grant_type=None,
        decision=decisions[-1],
        is_canary=False,
        now_s=limiter.now_s(),
    )
    denials.close(Deadline())
    title, *lines = terminal.ok("denials", "app").splitlines()
    rows = [line.split()[2:] for line in lines[-3:]]

    assert sorted(rows) == [
        ["app", "192.0.2.7", "alice", "guard", "user:", "5/hour", "1"],
        ["app", "alice", "token", "user:", "5/hour", "4"],
        ["app", "bob", "token", "user:", "5/hour", "2"],
    ]
    assert title.endswith(": 7 requests of 1 client, in 3 records")
    assert {("alice", 4), ("192.0.2.7 alice", 1)} == {
        (each["username"], each["request_count"]) for each in terminal.data("denials", "app", "alice")
    }
    assert ["guard"] == [each["where"] for each in terminal.data("denials", "--where", "guard", *RANGE)]
    hint = terminal.run("explain", "app").stderr
    assert "apart from these limits: alice from 192.0.2.7. See denials app --where guard." in hint
    assert "guard.mode: dry-run" in hint
    assert "guard.mode: dry-run" in terminal.run("denials").output
    monkeypatch.setattr("oauth_ratelimit.cli.explain.guesses_under", lambda *_, **__: ["nils from 192.0.2.7"])
    everybody = terminal.run("explain", "*").stderr
    assert "limits: nils from 192.0.2.7. See denials '*' --where guard." in everybody
    assert "No counters" not in everybody
    assert "guard.mode" not in terminal.run("denials", "--where", "token").stderr
    assert [] == terminal.data("denials", "app", "--from", "1970-01-01", "--to", "2000-01-01")
    short = terminal.run("denials", "-n", "2")
    more = "Only the last 2. More: -n, a shorter time, or --format csv, which has all.\n"
    assert (9, True) == (len(short.stdout.splitlines()), more in short.stderr)
    assert "7 requests" in short.stdout, "the sum is of all"


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (("denials",), "alice of app: denied"),
        (("denials", "app", "alice"), "alice of app: denied"),
        (("explain", "app", "alice"), "alice of app: denied"),
        (("explain", "app"), "alice of app: denied"),
        (("status",), "alice of app: denied"),
    ],
)
def test_commands_say_since_when_somebody_is_denied_and_what_was_changed_before(
    terminal: Terminal,
    limiter: Limiter,
    denials: DenialRecorder,
    connection: Connection,
    now_s: float,
    words: tuple[str, ...],
    who: str,
) -> None:
    for client_id, author, ago_s in (("app", "ann", 5), ("other", "bob", 1)):
        target = Target(OverrideKind.LIMIT, client_id, LimitKind.USER)
        limits = (Policy(LimitKind.USER, 5, Window.of(3600)),)
        OverrideStore(connection).put(Override(target, author, "x", now_s, policies=limits))
        made = {"$set": {"history.0.at": date_of(int(now_s) - ago_s)}}
        connection.collection(OVERRIDES).update_one({"_id.clientId": client_id}, made)
    for _ in range(9):
        limiter.check("app", "alice", grant_type="password")
    denials.close(Deadline())
    denied = {("user", "password", "denied"): Denials(4, int(now_s), int(now_s), 5, 3600)}
    minute = ClientMinute("app", int(now_s) // 60 * 60, {Source("user", "password"): Tally(9, 4)}, denials=denied)
    StatisticsStore(connection).put("one-0", [minute], keep_s=1e6)

    text = terminal.ok(*words)
    assert f"\n{who} since {utc_time(int(now_s))} by the limit user (5/hour), password.\n" in text
    assert "Changed 5 s before it began: user limit 5/hour for app (ann).\n" in text
    assert f"\n{DENY_NOBODY}\n" in text
    assert "enied since" not in terminal.ok("explain", "app", "bob")
    hint = "over a limit, as far as is recorded: alice (4 requests). To explain one: explain app alice\n"
    assert hint in terminal.run("explain", "app").stderr, "before the minute is over"


@pytest.mark.parametrize("words", [("denials",), ("explain", "app", "alice"), ("status",)])
def test_commands_say_that_denials_are_over_since_a_change(
    terminal: Terminal,
    limiter: Limiter,
    denials: DenialRecorder,
    connection: Connection,
    now_s: float,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    for _ in range(9):
        limiter.check("app", "alice", grant_type="password")
    denials.close(Deadline())
    limits = (Policy(LimitKind.USER, 50, Window.of(3600)),)
    target = Target(OverrideKind.LIMIT, "app", LimitKind.USER)
    OverrideStore(connection).put(Override(target, "ann", "x", now_s, policies=limits))
    later_s = int(now_s) + 1
    connection.collection(OVERRIDES).update_one({"_id.clientId": "app"}, {"$set": {"history.0.at": date_of(later_s)}})
    span = f"from {utc_time(int(now_s))} to {utc_time(int(now_s))}"

    text = terminal.ok(*words)
    assert (
        f"\nalice of app: denied {span} by the limit user (5/hour), password.\nChanged at {utc_time(later_s)}" in text
    )
    monkeypatch.setattr("oauth_ratelimit.operations.denial_run.WRITTEN_S", -30.0)  # as if half a minute had passed
    text = terminal.ok(*words)
    assert f"\nNot denied since the change at {utc_time(later_s)}: user limit 50/hour for app (ann).\n" in text
    assert "To deny nobody" not in text


@pytest.mark.parametrize(
    ("users", "guesses", "who"),
    [
        ({("app", "alice"): 9, ("app", "bob"): 8}, {}, "alice and bob of app: denied"),
        ({("app", f"user-{number}"): 6 for number in range(6)}, {}, "6 users of app: denied"),
        (
            {("app", "alice"): 9, ("shop", "bob"): 7},
            {"app": "192.0.2.7 eve"},
            "alice of app, bob of shop: denied",
        ),
        ({("app", "alice"): 7}, {"*": "192.0.2.7"}, "everybody at 192.0.2.7: denied"),
    ],
)
def test_status_names_whom_denials_hit_most_first(
    terminal: Terminal,
    limiter: Limiter,
    denials: DenialRecorder,
    users: dict[tuple[str, str], int],
    guesses: dict[str, str],
    who: str,
) -> None:
    for (client_id, user), count in users.items():
        decisions = [limiter.check(client_id, user, grant_type="password") for _ in range(count)]
    for client_id, claim in guesses.items():
        scope, more = FailureKind.USER.scope, {"grant_type": None, "is_canary": False, "now_s": limiter.now_s()}
        limiter.denial_events.report(client_id, claim, scope=scope, decision=decisions[-1], **more)
    denials.close(Deadline())

    text = terminal.ok("status")
    assert f"\n{who} since " in text
    assert DENY_NOBODY in text


def record(
    client_id: str, username: str | None, now_s: float, *, begun: int, last: int = 5, policy: str = "user"
) -> DenialRecord:
    """Return the record of ten denials of the last minutes, from so many seconds ago to so many."""
    facts = ("password", policy, 10, 60, "enforce", False, 1.0, Trace())
    return DenialRecord(
        Denial(uuid4().hex[:16], now_s - begun, client_id, username, None, *facts), "a", now_s - last, 9
    )


def test_each_limit_that_denies_has_its_own_subjects_and_start(
    terminal: Terminal, connection: Connection, now_s: float
) -> None:
    """The client of two users who are denied is not denied itself, nor is a user who was denied before."""
    records = [
        record("portal", "alice", now_s, begun=50),
        record("portal", "<b> of shop, c", now_s, begun=52),
        record("portal", "eve", now_s, begun=3000, last=2950),
        record("nightly", None, now_s, begun=30, policy="client"),
        record("line1\nline2", None, now_s, begun=30, policy="client"),
        *(record("crm", f"user-{n}", now_s, begun=500 - 80 * n, last=300 - 59 * n, policy="many") for n in range(6)),
        *(record("crm", f"now-{number}", now_s, begun=45, policy="many") for number in range(6)),
    ]
    DenialStore(connection).put(records, keep_s=1e6)

    for words in (("status",), ("denials",)):
        text = terminal.ok(*words)
        users = (
            f"\nalice and '<b> of shop, c' of portal: denied since {utc_time(int(now_s - 52))} by the limit user (10/"
        )
        clients = (
            f"\n'line1\\nline2', nightly: denied since {utc_time(int(now_s - 30))} by the limit client (10/minute),"
        )
        many = f"\n8 users of crm: denied since {utc_time(int(now_s - 500))} by the limit many (10/minute), password"
        assert users in text and clients in text and many in text, text
        assert "eve" not in text.partition("from  ")[0]


@pytest.mark.parametrize("client_id", [None, "nightly"])
def test_change_that_several_are_denied_after_is_said_once(
    terminal: Terminal, connection: Connection, now_s: float, client_id: str | None
) -> None:
    """A dry run that it has ended is no recovery: status does not list it."""
    target = Target(OverrideKind.MODE, client_id)
    OverrideStore(connection).put(Override(target, "ann", "x", now_s, mode=Mode.ENFORCE))
    made = {"$set": {"history.0.at": date_of(int(now_s) - 60)}}
    connection.collection(OVERRIDES).update_one({"history.by": "ann"}, made)
    begun = {"daily": 40, "nightly": 55}
    records = [record(name, None, now_s, begun=begun[name], policy=name) for name in begun]
    DenialStore(connection).put(records, keep_s=1e6)
    spans = {"would_deny": (int(now_s) - 300, int(now_s) - 61), "denied": (int(now_s) - 55, int(now_s) - 5)}
    denied = {("client", "client_credentials", over): Denials(40, *span, 60, 60) for over, span in spans.items()}
    own = Source("client", "client_credentials")
    minute = ClientMinute("nightly", int(now_s) // 60 * 60, {own: Tally(9, 40, would_deny=40)}, denials=denied)
    StatisticsStore(connection).put("one", [minute], keep_s=1e6)

    for words in (("status",), ("denials",)):
        text = terminal.ok(*words)
        assert 2 == len(re.findall("^(?:daily|nightly): denied since ", text, re.M)), text
        changed = f"Changed at {utc_time(int(now_s) - 60)}: mode enforce for {client_id or 'everybody'} (ann)."
        assert [changed] == re.findall("^.*(?:Changed|No change|has not changed).*$", text, re.M)
        assert "dry run" not in text


def test_those_denied_since_different_times_have_the_first_of_them(
    terminal: Terminal, connection: Connection, now_s: float
) -> None:
    old, new = (record(name, None, now_s, begun=begun, last=20) for name, begun in (("old", 550), ("new", 60)))
    DenialStore(connection).put([old, old, new], keep_s=1e6)
    begun, last = utc_time(int(now_s - 550)), utc_time(int(now_s - 20))
    expected = (
        f": denied now, the first since {begun} by the limit user (10/minute), password. The last denial at {last}."
    )

    assert expected in terminal.ok("status")


def test_user_denied_now_is_not_said_to_be_denied_since_another_was(
    terminal: Terminal, connection: Connection, now_s: float
) -> None:
    early, late = (
        record("app", name, now_s, begun=begun, last=last)
        for name, begun, last in (("bob", 550, 500), ("alice", 60, 20))
    )
    DenialStore(connection).put([early, late], keep_s=1e6)
    spans = [Denials(4, int(now_s) - begun, int(now_s) - last, 10, 60) for begun, last in ((550, 500), (60, 20))]
    minutes = [
        ClientMinute("app", each.first_s // 60 * 60, denials={("user", "password", "denied"): each}) for each in spans
    ]
    StatisticsStore(connection).put("one", minutes, keep_s=1e6)

    of_client, of_user = terminal.ok("explain", "app"), terminal.ok("explain", "app", "alice")

    assert f"\nalice of app: denied now, other users since {utc_time(int(now_s - 550))} by the limit" in of_client
    assert f"\nalice of app: denied since {utc_time(int(now_s - 60))} by the limit" in of_user


def test_user_denied_all_the_time_is_not_said_to_be_denied_since_another_was(
    terminal: Terminal, connection: Connection, now_s: float
) -> None:
    spans = [("alice", 550, 20), ("bob", 490, 480)]
    records = [record("app", name, now_s, begun=begun, last=last) for name, begun, last in spans]
    DenialStore(connection).put(records, keep_s=1e6)
    each = Denials(20, int(now_s) - 550, int(now_s) - 20, 10, 60)
    minute = ClientMinute("app", each.first_s // 60 * 60, denials={("user", "password", "denied"): each})
    StatisticsStore(connection).put("one", [minute], keep_s=1e6)

    assert f"\nalice of app: denied since {utc_time(int(now_s - 550))} by the limit" in terminal.ok("explain", "app")


def test_subject_is_named_before_instances_send_their_records(
    terminal: Terminal, connection: Connection, now_s: float
) -> None:
    key = Source("user", "password")
    denied = {("user", "password", "denied"): Denials(4, int(now_s), int(now_s), 5, 3600)}
    minute = ClientMinute("app", int(now_s) // 60 * 60, {key: Tally(9, 4)}, denials=denied)
    StatisticsStore(connection).put("one", [minute], keep_s=1e6)

    assert "\nusers of app: denied since " in terminal.ok("explain", "app")


@pytest.mark.parametrize("words", [("denials",), ("explain", "app"), ("status",)])
def test_command_works_for_an_operator_who_may_not_read_changes(
    terminal: Terminal, limiter: Limiter, denials: DenialRecorder, monkeypatch: pytest.MonkeyPatch, words: tuple[str]
) -> None:
    send_hits(limiter, 9, "app", "alice")
    denials.close(Deadline())
    refused = StoreRejected("MongoDB refuses find on ratelimit_instances")
    monkeypatch.setattr("oauth_ratelimit.operations.denied.changes_of", Mock(side_effect=refused))

    assert "enied since" not in terminal.ok(*words)


def test_programs_get_all_records_and_a_terminal_gets_whole_words(
    terminal: Terminal, limiter: Limiter, denials: DenialRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(25):
        send_hits(limiter, 6, "partner-bank-with-a-long-name", f"somebody-{number}@example.com")
    denials.close(Deadline())

    assert 25 == len(terminal.data("denials")) == len(terminal.ok("denials", "--format", "csv").splitlines()) - 1
    assert 3 == len(terminal.data("denials", "-n", "3"))
    monkeypatch.setattr("oauth_ratelimit.cli.output._terminal_width", lambda _stream: 80)
    lines = terminal.ok("denials").splitlines()
    assert 20 == sum(
        bool(re.search(r" partner-\S*… +somebod\S*… +token +(user: 5/hour|client_total:) +\d$", each)) for each in lines
    )
    assert 80 >= max(map(len, lines))


def test_commands_say_once_what_switches_the_guard_off(
    terminal: Terminal, limiter: Limiter, denials: DenialRecorder
) -> None:
    decision = [limiter.check("app", "alice") for _ in range(6)][-1]
    more = {"grant_type": None, "is_canary": False, "now_s": limiter.now_s()}
    limiter.denial_events.report("*", "192.0.2.7", scope=FailureKind.USER.scope, decision=decision, **more)
    denials.close(Deadline())

    for words in (("denials", "*"), ("explain", "*"), ("denials",)):
        result = terminal.run(*words)
        assert 1 == result.output.count("To deny no guess: guard.mode: dry-run"), words
    assert "everybody at 192.0.2.7: denied since" in terminal.ok("denials", "*")
    assert terminal.ok("explain", "*").startswith("everybody at 192.0.2.7: denied since"), "no limit is about it"
    locked_out = (
        "The guard denies everybody at 192.0.2.7 now, requests of this client, too. See denials '*' --where guard.\n"
    )
    assert locked_out in terminal.run("explain", "app", "bob").stderr
    assert "To deny nobody: mode set" not in terminal.ok("denials", "*"), "it changes nothing of the guard"


def test_status_is_about_those_who_are_denied_now(terminal: Terminal, connection: Connection, now_s: float) -> None:
    first = Denial("7" * 16, now_s - 300, "early", None, None, None, "client", 60, 60, "enforce", False, 1.0, Trace())
    late = first._replace(decision_id="8" * 16, client_id="late", at_s=now_s - 90)
    records = [DenialRecord(first, "node-1", now_s - 120, 4), DenialRecord(late, "node-1", now_s - 5, 4)]
    DenialStore(connection).put(records, keep_s=1e6)

    assert f"\nlate: denied since {utc_time(int(now_s - 90))} by the limit client (60/minute)," in terminal.ok("status")


def test_without_a_denial_the_list_says_why_and_suggests_a_client(terminal: Terminal, limiter: Limiter) -> None:
    limiter.check("web-shop")
    limiter.sync()
    result = terminal.run("denials", "wbe-shop")

    recorded = r"No denial is recorded from \S+Z to \S+Z\. Instances send records every ten seconds\."
    assert re.fullmatch(f"{recorded}\n", result.stdout)
    assert "did you mean 'web-shop'?" in result.stderr
    assert "" == terminal.run("explain", "web-shop").stderr
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run"}))
    assert re.search(rf"{recorded} A dry run denies nobody: see what-if\.\n", terminal.ok("denials"))
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "events": {"keep_denials": 0}}))
    assert re.search(rf"{recorded} events.keep_denials: 0 records none\.\n", terminal.ok("denials"))


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, ("2026-12-01T13:30", "2026-12-01T14:30")),
        ("14:00", "14:10", ("2026-12-01T14:00", "2026-12-01T14:10")),
        ("14:00", None, ("2026-12-01T14:00", "2026-12-01T14:30")),
        (None, "14:10", ("2026-12-01T13:10", "2026-12-01T14:10")),
        ("15:00", "15:10", ("2026-11-30T15:00", "2026-11-30T15:10")),  # not today yet
        (None, "15:00", ("2026-11-30T14:00", "2026-11-30T15:00")),
        ("23:55", "00:05", ("2026-11-30T23:55", "2026-12-01T00:05")),
        ("15:00+02:00", "15:10+02:00", ("2026-12-01T13:00", "2026-12-01T13:10")),
        ("2026-11-28T14:00", "14:10", ("2026-11-28T14:00", "2026-11-28T14:10")),
        ("2026-11-28T14:00Z", "2026-11-29", ("2026-11-28T14:00", "2026-11-29T00:00")),
    ],
)
def test_time_of_the_day_is_the_last_one_in_utc(
    since: str | None, until: str | None, expected: tuple[str, str]
) -> None:
    found = period(since, until, now_s=NOW.timestamp())

    assert expected == tuple(datetime.fromtimestamp(at_s, UTC).isoformat(timespec="minutes")[:16] for at_s in found)
