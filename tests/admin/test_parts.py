"""Parts of pages that the server renders, the data behind charts, problems instead of answers, shared answers."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.admin.blueprint import PARTS, Texts
from oauth_ratelimit.admin.cache import ONLY_THE_PAGE
from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.fields import LATEST_S
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore, InstanceEvent
from oauth_ratelimit.store.mongo.rollups import RollupStore
from testbed.clock import wait_until
from tests.admin.conftest import LIMIT, Page, denial, minute, record, record_denials
from tests.support.apps import app_limiter_of, token_status
from tests.support.limiters import send_hits


def lately(client_id: str, grant: str = "password", **outcomes: int) -> ClientMinute:
    return minute(0, client_id, source=Source("client", grant), **outcomes)


def test_verdict_names_the_worst_client_by_what_enforcement_does_to_it(still: None, page: Page, mongo_uri: str) -> None:
    """A client that gets nothing before one with more denials, and real denials before those of a dry run."""
    earlier = minute(5, "dry", denied=9)
    record(mongo_uri, [earlier, lately("large", allowed=9000, denied=180), lately("dry", would_deny=900)])
    assert "large" in page.part("verdict")
    record(mongo_uri, [lately("partner", denied=30)])
    later = page.part("verdict", fresh=True)

    assert re.search(r"2 of 3 clients are denied now, the worst since \S+ UTC: partner\.", later)
    assert re.search(
        r"Since \S+ UTC 210 of all 10,110 requests were denied\. 1 more client would be, in a dry run\.", later
    )
    assert re.search(r"The worst: Denied since .* Since \S+ UTC all 30 requests were denied", later)
    assert "UTC all 900 requests would have been denied" in page.part("client", id="dry")


@pytest.mark.parametrize(
    ("grant", "words", "row"),
    [
        ("endpoint:revocation", "1 of 2 clients is denied now", "551 at other endpoints 100 %"),
        ("guard:user", "UTC guesses under app are denied: app.", "551 by the guard –"),
    ],
)
def test_denials_by_the_guard_and_at_other_endpoints_are_requests_everywhere(
    still: None, page: Page, mongo_uri: str, grant: str, words: str, row: str
) -> None:
    record(mongo_uri, [lately("app", grant, denied=551), minute(1, "other", allowed=3)])
    assert words in page.part("verdict")
    assert f"app 551 {row}" in page.part("clients")
    (line,) = page.traffic(span="15m")["charts"]["denied"]
    assert "app" == line["label"]
    assert 551.0 in line["values"][-2:], "a minute may end meanwhile"


def test_guesses_do_not_hide_what_a_dry_run_would_deny(still: None, page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [lately("portal", "guard:user", denied=99), lately("dry", allowed=9, would_deny=2)])
    text = page.part("verdict")

    assert re.search(r"Nobody is denied\. 1 of 2 clients would be, in a dry run, since \S+ UTC: dry\.", text)
    assert "guesses under 1 client." in text


def test_address_that_guesses_is_a_subject_of_its_own(still: None, page: Page, mongo_uri: str) -> None:
    """It denies honest users there, too, and no client's numbers have its denials."""
    minutes = [minute(1, "mobile-app", allowed=70), minute(1, "portal", allowed=9)]
    guesses = [minute(ago, ANYONE, source=Source("client", "guard:address"), denied=156) for ago in (1, 0)]
    record(mongo_uri, [*minutes, *guesses, lately("mobile-app", "guard:user", denied=2)])
    record_denials(mongo_uri, denial(ANYONE, "127.0.0.66", "failures:address", policy="failures-address"))
    overview, user = page.part("verdict"), page.part("client", id="mobile-app", user="nils")

    assert "No limit of tokens denies anybody. The guard denies guesses under 1 client and everybody at an" in overview
    assert re.search(r"since \S+ UTC: any client \(\*\)\.", overview)
    assert "The worst: Everybody at 127.0.0.66 is denied by the guard. Denied since" in overview
    assert "In the last full minute 156 attempts were denied, none in the minute before." in overview
    assert "Nobody else" not in overview
    assert "any client (*) 312 312 by the guard" in page.part("clients")
    charts = page.traffic(span="15m")["charts"]
    assert ["any client (*)", "mobile-app"] == sorted(each["label"] for each in charts["denied"])
    assert ["mobile-app", "portal"] == sorted(each["label"] for each in charts["issued"]), "it issues nothing"
    assert "The guard denies everybody at 127.0.0.66 now, requests of this client, too." in user
    guessed = page.part("client", id=ANYONE)
    assert "Everybody at 127.0.0.66 is denied" in guessed and "Unknown" not in guessed
    assert "look at the client *." in page.part("client", id="portal")


def test_page_has_its_verdict_before_any_script_runs(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [lately("<b>app", denied=30), minute(3, "quiet-one", allowed=7)])
    html = page.get("").text

    assert "1 of 1 client is denied now, since" in html
    assert "&lt;b&gt;app" in html and "<b>app" not in html
    assert "quiet-one" not in html, "tables come after the verdict"
    assert "quiet-one" in page.get("", full="1").text
    assert re.search(r'data-part="state" data-at="\d{10}\.\d+" data-age="[0-4]\.', html), (
        "each part has the time of its data and their age"
    )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), r"Last denied, until \S+ UTC: app\."),
        (("b", "c"), r"All 3 clients were denied from \S+ UTC to \S+ UTC, the last one: app\."),
    ],
    ids=["one", "all"],
)
def test_overview_after_a_recovery_names_who_was_denied_and_until_when(
    page: Page, mongo_uri: str, others: tuple[str, ...], words: str
) -> None:
    record(mongo_uri, [minute(3, name, denied=9) for name in ("app", *others)])
    for _ in range(6):
        app_limiter_of(page.app).limiter.check("app", "alice")
    app_limiter_of(page.app).close()  # writes the record of the denial

    text = page.part("verdict", fresh=True)
    assert re.search(rf"{words} Nothing to do\. .* Denied from .+ UTC to .+ UTC by the limit user", text)


def test_overview_names_the_client_that_was_denied_last_not_whose_record_began_last(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, name, denied=9) for name in ("early", "late")])
    late, early = denial("late", "alice", ago_s=170), denial("early", "bob", ago_s=150)
    record_denials(mongo_uri, late._replace(last_at_s=time.time() - 125), early._replace(last_at_s=time.time() - 140))

    assert "the last one: late." in page.part("verdict")


def test_overview_names_the_user_who_is_denied(still: None, page: Page, mongo_uri: str) -> None:
    names = ("mallory", "bob", "cleo")
    users = tuple(UserLoad(name, 10, 9 * (name == "mallory")) for name in names)
    now = replace(minute(0, allowed=1, denied=9), users=())  # users are written when the minute is over
    record(mongo_uri, [replace(minute(1, allowed=21, denied=9), users=users), now])

    assert "UTC 1 user of app is denied (mallory); 2 others are not: app." in page.part("verdict")


def test_page_of_a_user_has_that_users_time_and_numbers(still: None, page: Page, mongo_uri: str) -> None:
    """They are from the records of denials and from minutes in which the user was among the heaviest."""
    users = (UserLoad("bob", 30, 25), UserLoad("alice", 18, 9), UserLoad("cleo", 5))
    source = {"limit": 5, "window_s": 3600}
    record(mongo_uri, [replace(minute(ago, allowed=19, denied=34, **source), users=users) for ago in (2, 1)])
    at_s = int(time.time()) - 75
    record_denials(mongo_uri, denial("app", "alice", ago_s=75, count=9), denial("app", "bob", ago_s=120))
    record_denials(mongo_uri, denial("app", "alice", ago_s=20, count=4))
    alice, cleo = (page.part("client", id="app", user=name) for name in ("alice", "cleo"))

    begun = time.strftime("%H:%M:%S", time.gmtime(at_s))
    assert f"app · alice Denied since {begun} UTC by the limit user (10/minute), password." in alice
    assert "In the last full minute 9 of 18 requests were denied" in alice
    assert "Look at this user first" in alice
    assert "2 users of app are denied (bob, alice); 1 other is not. Denied since" in alice and "together" not in alice
    assert "app · cleo Within its limits now: 0 hits; allowed: user: 5/hour" in cleo and "(bob, alice)" in cleo
    record_denials(mongo_uri, denial("app", "dora", ago_s=900))
    assert "Last denied at" in page.part("client", id="app", user="dora", fresh=True), "long ago"


def test_page_of_a_user_whose_denials_are_not_recorded_has_the_numbers_of_its_minutes(
    still: None, page: Page, mongo_uri: str
) -> None:
    """As in a dry run. Minutes do not know the second."""
    users = (UserLoad("bob", 9, 0, 8), UserLoad("al", 3))
    record(mongo_uri, [replace(minute(1, allowed=4, would_deny=8), users=users)])
    bob, al = (page.part("client", id="app", user=name) for name in ("bob", "al"))

    words = (
        r"app · bob bob would be denied \(dry run\): 8 of 9 requests from \S+:00 UTC to \S+:00 UTC were over a limit\."
    )
    nothing = (
        " Nothing to do now: a dry run denies nobody. Before you enforce: look at this user first: Raise and Trust"
    )
    of_client = "1 user of app would be denied (bob); 1 other would not. Requests would be denied (dry run) since"
    assert re.search(words + re.escape(nothing), bob) and of_client in bob
    assert "Within its limits now" in al and of_client in al
    past = minute(1, "was", would_deny=8)
    denials = {key: each._replace(last_s=each.first_s) for key, each in past.denials.items()}
    record(mongo_uri, [replace(past, users=users, denials=denials)])
    was = page.part("client", id="was", user="bob")
    assert re.search(r"bob would have been denied .* limit\. Nothing to do\. ", was), "more than a minute ago"


def test_user_is_named_by_its_record_in_the_first_minute(still: None, page: Page, mongo_uri: str) -> None:
    now = replace(minute(0, allowed=20, denied=30), users=(), registers={})
    record(mongo_uri, [now])
    record_denials(mongo_uri, denial("app", "mallory", count=30))

    assert "UTC 1 user of app is denied (mallory): app." in page.part("verdict")
    assert "of user mallory: its heaviest use" in page.part("limits", id="app")


@pytest.mark.parametrize("name", ["2026-99-99T99:99:99Z", "0000-01-01T00:00:00Z", "\u0662" * 4 + "-12-01T00:00:00Z"])
def test_user_whose_name_looks_like_a_time_that_there_is_not_is_shown_as_it_is(
    still: None, page: Page, mongo_uri: str, name: str
) -> None:
    """It failed all parts that were asked for together, those of other clients included."""
    users = (UserLoad(name, 10, 9), UserLoad("bob", 3))
    record(mongo_uri, [replace(minute(1, allowed=4, denied=9), users=users)])

    words = f"1 user of app is denied ({name}); 1 other is not"
    assert words in page.part("verdict") and words in page.part("client", id="app", utc_offset="330")


def test_user_with_the_name_of_any_client_is_a_user(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [replace(minute(1, allowed=1, denied=9), users=(UserLoad("*", 10, 9),))])
    assert "Users most over a limit, in the full minutes of the last hour: * 9 of 10 requests." in page.part(
        "client", id="app"
    )


def test_reuse_has_a_tile_a_column_and_a_sentence(still: None, page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [lately("app", "client_credentials", allowed=81, reused=385), minute(1, allowed=2)])

    verdict = page.part("verdict")
    assert "385 requests over a limit got their token again, most: app. Ask its owner to keep the token." in verdict
    assert "Got their token again 385 Issued 81" in verdict
    assert re.search(r"app 0 385 82 % .* 468 83", page.part("clients")), "466 and 2 requests, 385 of them not issued"
    assert re.search(r"385 of 46[68] requests got the token that the client had\.", page.part("client", id="app"))
    assert "client_credentials the client 466 81 0 385 0" in page.part("day", id="app")


def test_state_names_instances_that_reject_their_file_and_what_mongodb_refuses(
    page: Page, connection: Connection
) -> None:
    now_s, store = time.time(), HeartbeatStore(connection)
    beat = Heartbeat("node-1:7:aa", now_s, now_s, "1", "enforce", 1.0, config_digest="c0ffee", refused="find on there")
    for each in (beat, beat._replace(instance="node-2:8:bb", mode="off", config_rejected_at_s=now_s - 5)):
        store.put(each._replace(config_file="/etc/limits.yaml"))
    assert "⚠ configuration file /etc/limits.yaml rejected by 1 instance since" in page.part("state")
    assert "⚠ MongoDB refuses find on there" in page.part("state")
    assert re.search(r"worker 7 on node-1 .* c0ffee .* worker 8 on node-2 .* off invalid", page.part("instances"))


def test_state_counts_late_instances_and_different_files(page: Page, connection: Connection) -> None:
    now_s, store = time.time(), HeartbeatStore(connection)
    beat = Heartbeat("node-1:7:aa", now_s, now_s, "1", "enforce", 1.0, config_digest="c0ffee")
    for each in (beat, beat._replace(instance="node-2:8:bb", beat_at_s=now_s - 90, config_digest="decaf")):
        store.put(each)
    state = page.part("state")  # the page's own instance may have begun
    assert re.search("⚠ instances [23], 1 late ⚠ configuration files 2 different ones", state)


def test_state_without_mongodb_says_since_when_limits_apply_from_memory(
    cut_off_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since the last answer, in an idle process, too."""
    monkeypatch.setattr("oauth_ratelimit.admin.cache.RETRY_AFTER_S", 0.0)
    first = cut_off_page.get("part/state").text
    assert "Limits apply as before, from memory: each host counts its own requests" in first
    assert "enforced" not in first  # which a dry run or mode off would not be
    assert "Error" not in first

    since = re.search(r'does not answer since <time datetime="([^"]+)"', first)
    assert since and abs(time.time() - datetime.fromisoformat(since[1]).timestamp()) < 60
    later_s = time.time() + 600
    monkeypatch.setattr(app_limiter_of(cut_off_page.app), "now_s", lambda: later_s)
    assert since[0] in cut_off_page.get("part/state").text


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("off", "⚠ mode off .*MongoDB is unreachable. Limits are off in this process: nobody is denied. Until MongoDB"),
        ("dry-run", "mode dry-run .*Limits apply as before, from memory: each host counts its own requests, and sends"),
    ],
)
def test_state_without_mongodb_has_the_mode_that_this_process_has_now(
    page: Page, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    """The emergency line in the file takes effect meanwhile; what was read before says enforce."""
    app_limiter = app_limiter_of(page.app)
    assert "mode enforce " in page.part("state")
    monkeypatch.setattr("oauth_ratelimit.admin.cache.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 99))
    monkeypatch.setattr(app_limiter, "context", Mock(side_effect=StoreUnreachable("MongoDB is unreachable")))
    policies = app_limiter.settings.policies._replace(mode=Mode(mode))
    monkeypatch.setattr(AppLimiter, "settings", replace(app_limiter.settings, policies=policies))

    assert re.search(words, state := page.part("state")) and "enforce" not in state, state


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreUnreachable("MongoDB is unreachable"), "⚠ MongoDB does not answer since"),
        (StoreUnavailable("MongoDB did not answer within 2 s"), "⚠ MongoDB cannot be read by this page"),
    ],
    ids=["gone", "slow"],
)
def test_page_opened_without_mongodb_shows_what_was_read_before_with_its_time(
    page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, error: StoreUnavailable, words: str
) -> None:
    record(mongo_uri, [lately("app", denied=30)])
    names = ("verdict", "clients", "client", "panel", "amounts", "overrides")
    params = {"id": "app", "decision": "7" * 16}
    before = {name: page.part(name, **params) for name in ("state", *names)}
    monkeypatch.setattr("oauth_ratelimit.admin.cache.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 99))
    monkeypatch.setattr(app_limiter_of(page.app), "context", Mock(side_effect=error))

    after = {name: page.part(name, **params) for name in names}
    assert re.search(r"^Last read at \S+ UTC: 1 of 1 client is denied now,", after["verdict"])
    assert "To deny nobody: mode: off in the configuration file of each instance, within seconds" in after["verdict"]
    assert re.search(r"^app Last read at \S+ UTC: Denied since", after["client"])
    names = ("clients", "panel", "amounts", "overrides")
    assert {name: before[name] for name in names} == {name: after[name] for name in names}
    state = page.part("state")
    assert words in state and str(error) in state and "instances" in state
    assert state.count("as of") == 1 + state.count("as of the time beside it"), "of the last read"
    assert str(error) in page.part("day", **params), "was not read before"


def test_missing_rights_are_told_from_an_unreachable_mongodb(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreRejected("MongoDB refused: not authorized")

    monkeypatch.setattr(RollupStore, "present", refuse)
    monkeypatch.setattr(RollupStore, "rows", refuse)

    assert page.part("verdict") == page.part("clients") == f"MongoDB refused: not authorized. {ONLY_THE_PAGE}"
    assert "MongoDB reachable" in page.part("state"), "a part that works hides none that fails"


def test_user_in_the_first_minute_is_one_of_the_counters(page: Page, limiter: Limiter, mongo_uri: str) -> None:
    send_hits(limiter, 1, "app", "alice")
    send_hits(limiter, 3, "app", "bob")
    record(mongo_uri, [replace(minute(0, allowed=4), users=())])
    assert "For a request with password of user bob: its heaviest use" in page.part("limits", id="app")


def test_client_without_statistics_is_judged_by_its_counters(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 1, "quiet")
    send_hits(limiter, 10, "app")
    send_hits(limiter, 1, "app", "alice")
    send_hits(limiter, 5, "quiet", "bob")

    assert "No requests are recorded in the last hour." in page.part("client", id="quiet")
    assert "At its limit now: 10 hits; allowed: client: 10/hour." in page.part("client", id="app")
    bob = page.part("client", id="quiet", user="bob")
    assert "bob At its limit now: 5 hits;" in bob and "All users of quiet together: No requests are recorded" in bob
    assert "Next request: denied: over the limit client" in page.part("limits", id="app")
    assert re.search(r"^user .* alice user enforce 20 % 1 / 5/hour now As of", page.part("users", id="app"))


def test_time_without_mongodb_is_a_mark_that_says_what_it_cost(still: None, page: Page, mongo_uri: str) -> None:
    """All have one version: the page's own instance, which starts meanwhile, would be a change otherwise."""
    version = package_version()
    now_s = int(time.time()) // 60 * 60
    with closing(Connection(mongo_uri)) as connection:
        store = HeartbeatStore(connection)
        for name, host in (("a:1", "h"), ("a:2", "h"), ("b:1", None)):
            store.put(Heartbeat(name, now_s, now_s, version, "enforce", 1.0, host=host))
            store.note_event(InstanceEvent(name, now_s - 500, "cut off", version))
            store.note_event(InstanceEvent(name, now_s - 300, "reconnected", version))
        store.note_event(InstanceEvent("vm:20016:0763", now_s - 200, "ended", version))
    marks = {mark["at_s"]: mark["text"] for mark in page.traffic()["marks"]}

    assert "3 instances cut off" == marks[now_s - 500]
    assert "worker 20016 on vm ended" == marks[now_s - 200]
    assert "until then they counted apart, so up to 2 times a limit was admitted" in marks[now_s - 300], "two hosts"

    record(mongo_uri, [minute(ago, denied=90) for ago in range(4, -1, -1)])
    assert "an outage of MongoDB until " in page.part("client", id="app")


def test_instances_have_mode_limits_and_changes(page: Page) -> None:
    assert 200 == token_status(page.app)  # with its first request an instance starts
    text = wait_until(
        lambda: (
            (found := page.part("instances", fresh=True)).count("started, version")
            and found.count("enforce") > 1
            and found
        ),
        "the instance and its start show",
    )
    assert "client: 10/hour; user: 5/hour; " in text


def test_clients_are_sorted_filtered_and_paged_by_the_url(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(2, f"shop-{number}", allowed=number + 1) for number in range(30)] + [minute(2, "x")])

    def named(**params: str) -> list[str]:
        return re.findall(r"shop-\d+", page.part("clients", span="15m", **params))

    assert [f"shop-{number}" for number in range(4, -1, -1)] == named(sort="requests", filter="SHOP", page="2")
    assert ["shop-0", "shop-1", "shop-2"] == named(sort="requests", order="up", filter="shop")[:3]
    assert ["shop-0", "shop-1", "shop-10"] == named(sort="client")[:3]


def test_client_day_has_users_grants_bursts_and_a_letter(page: Page, mongo_uri: str) -> None:
    refreshed = ClientMinute("app", minute(5).minute_s, {Source("user", "refresh_token"): Tally(allowed=5)})
    record(mongo_uri, [minute(3, allowed=12, denied=3, retries=2), refreshed])
    text = page.part("day", id="app")

    for words in (
        "Token requests 20, of which 3 over a limit",
        "Share of refreshes 25 %",
        "Retries before Retry-After, at least 2",
        "Most within a second 4",
        "password users 15 12 3 0",
        "alice 17 requests, 3 over a limit",
        "over its limits",
        "Keep each user's access token",
    ):
        assert words in text


def test_client_day_in_the_first_minute_does_not_know_its_users_yet(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [replace(minute(0, allowed=5), users=(), registers={})])
    assert "Users not known before their first minute is over" in page.part("day", id="app")


@pytest.mark.parametrize(("offset", "name"), [("0", "UTC"), ("330", "UTC+05:30")])
def test_letter_and_times_are_in_the_chosen_zone(page: Page, mongo_uri: str, offset: str, name: str) -> None:
    record(mongo_uri, [minute(3, allowed=12, denied=3)])
    period = re.search(r" to (\S+ \S+) (\S+), your", page.part("day", id="app", utc_offset=offset))

    assert period and name == period[2]
    until = datetime.fromisoformat(period[1]).replace(tzinfo=timezone(timedelta(minutes=int(offset))))
    assert abs(until.timestamp() - time.time()) < 60
    assert f"{name}." in page.part("client", id="app", utc_offset=offset)


def test_date_that_no_zone_ahead_of_utc_has_fails_no_page(page: Page, connection: Connection) -> None:
    """Whoever may write to the database can plant the last one."""
    now_s = time.time()
    beat = Heartbeat("node-1:7:aa", now_s, now_s, "1", "enforce", 1.0, config_rejected_at_s=LATEST_S)
    HeartbeatStore(connection).put(beat)
    assert "rejected by 1 instance since Fri 31 Dec 9999 23:59:59 UTC" in page.part("state", utc_offset="840")
    assert "Fri 31 Dec 9999" in Texts(timezone(timedelta(hours=14)), now_s).sentence("9999-12-31T23:59:59Z")


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-12-31T22:59:59Z", "23:59:59 UTC+01:00"),
        ("2026-12-31T23:00:00Z", "Fri 1 Jan 2027 00:00:00 UTC+01:00"),
        ("2026-01-01T08:00:00Z", "Thu 1 Jan 09:00:00 UTC+01:00"),
        ("2028-12-01T08:00:00Z", "Fri 1 Dec 2028 09:00:00 UTC+01:00"),
        ("2025-12-31T08:00:00Z", "Wed 31 Dec 2025 09:00:00 UTC+01:00"),
    ],
)
def test_time_has_its_date_unless_it_is_today_and_its_year_unless_it_is_this_one(at: str, expected: str) -> None:
    """Overrides last up to ten years, and a history is as old as it is."""
    now_s = datetime.fromisoformat("2026-12-31T22:00:00Z").timestamp()
    assert expected == Texts(timezone(timedelta(hours=1)), now_s).sentence(at).striptags()


@pytest.mark.parametrize(
    ("part", "params", "words"),
    [
        ("client", {}, "client id"),
        ("client", {"id": "a" * 2000}, "client id"),
        ("day", {"id": ""}, "client id"),
        *(("day", {"id": "app", "utc_offset": text}, "whole number") for text in ("x", "900", "1.5")),
        ("clients", {"span": "10y"}, "span"),
        ("traffic", {"at": "soon"}, "whole number"),
        ("panel", {"id": "app", "since": "lately"}, "whole number"),
        ("clients", {"sort": "colour"}, "sort"),
        ("clients", {"page": "0"}, "page"),
        ("clients", {"order": "yes"}, "order"),
        ("denial", {"decision": "what?"}, "id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_argument_is_answered_with_what_is_allowed(
    page: Page, part: str, params: dict[str, str], words: str
) -> None:
    assert words in page.part(part, **params)
    assert 'data-kind="input"' in page.get(f"part/{part}", **params).text


def test_username_is_read_from_the_header_and_not_from_the_url(page: Page) -> None:
    response = page.browser.get("/ratelimit/part/limits?id=app&user=alice", headers={"X-Ratelimit-User": "%C3%B6"})
    assert "of user ö" in response.text and "alice" not in response.text


def test_denial_is_found_by_its_decision_id(page: Page) -> None:
    decisions = [app_limiter_of(page.app).limiter.check("app", "alice") for _ in range(6)]
    app_limiter_of(page.app).close()  # writes the record

    assert re.search(
        r"Client app User alice .* Where token Limit user: 5/hour",
        page.part("denial", decision=f" {str(decisions[-1].decision_id).upper()}"),
    )
    assert "No denial with this id is recorded" in page.part("denial", decision="5d4c7a90b1e2f309")


def test_pages_open_and_queries_name_the_problem_without_mongodb(
    cut_off_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.cache.RETRY_AFTER_S", 0.0)

    assert [200] * 4 == [cut_off_page.get(path).status_code for path in ("", "client", "overrides", "instances")]
    for name in PARTS:
        assert "unreachable" in cut_off_page.part(name, id="app", decision="7" * 16)
    for name in ("preview", "apply", "remove"):
        response = cut_off_page.send(name, {**LIMIT, "limit_kind": "user"})
        assert (424, "database") == (response.status_code, response.json["problem"]["kind"])


def test_unreachable_mongodb_is_tried_by_one_request_at_a_time(
    cut_off_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unreachable" in cut_off_page.part("clients")
    reads: list[Any] = []
    monkeypatch.setattr("oauth_ratelimit.flask_authlib.app_limiter.AppLimiter.context", reads.append)

    assert all("unreachable" in cut_off_page.part(name) for name in ("state", "clients", "verdict"))
    assert [] == reads


def test_parts_of_one_request_are_of_one_moment(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = count(time.time())
    monkeypatch.setattr(app_limiter_of(page.app), "now_s", lambda: next(now_s))
    of_client = {"id": "app", "user": "alice", "since": str(int(time.time()))}
    for names, params in (
        ("state,verdict,traffic,clients", {}),
        ("state,client,panel,amounts,limits,traffic,users,day", of_client),
    ):
        html = page.get(f"part/{names}", **params).text
        moments = re.findall(r'data-part="(\w+)" data-at="(\d+\.\d+)"', html)
        assert (names.split(","), 1) == ([name for name, _ in moments], len({at for _, at in moments}))
    assert 404 == page.get("part/state,nothing").status_code


def test_page_never_gets_an_older_state_than_it_shows(still: None, page: Page, mongo_uri: str) -> None:
    """Also if it is opened anew, and of parts that are kept for longer."""
    record(mongo_uri, [lately("app", allowed=5)])
    before = page.part("verdict"), page.part("day", id="app")
    record(mongo_uri, [lately("app", allowed=5, denied=7)])
    shown, newer = str(time.time()), str(time.time() + 1)

    assert before == (page.part("verdict"), page.part("day", id="app", after=shown)), "which others share"
    assert "Denied 7" in page.part("verdict", after=shown)
    assert "Token requests 12," in page.part("day", id="app", kept=newer), "another worker has shown newer ones"
    record(mongo_uri, [lately("app", allowed=5, denied=8)])
    assert '<dd class="bad">8</dd>' in page.get("").text


def test_highest_use_is_none_below_the_present_one(page: Page, limiter: Limiter, mongo_uri: str) -> None:
    """Statistics are written later than counters."""
    send_hits(limiter, 4, "app")
    send_hits(limiter, 3, "app", "bob")
    own = {"source": Source("client", "client_credentials"), "limit": 10, "window_s": 3600}
    record(mongo_uri, [minute(1, allowed=3, share=0.3, **own)])
    assert "Highest use in the last hour: 60 % of user (5/hour)." in page.part("client", id="app")
    day = page.part("day", id="app")
    assert "Highest use of client 40 %: 4 of 10/hour" in day and "Highest use of user 60 %: 3 of 5/hour" in day


def test_panel_of_a_user_has_the_numbers_and_the_verdict_of_the_page(
    still: None, page: Page, limiter: Limiter, mongo_uri: str
) -> None:
    record(mongo_uri, [replace(minute(1, allowed=1, denied=9), users=(UserLoad("bob", 9, 9), UserLoad("al", 1)))])
    record_denials(mongo_uri, denial("app", "bob", count=9))
    send_hits(limiter, 1, "app", "al")
    question = {"id": "app", "user": "al", "since": str(minute(1).minute_s)}
    verdict = re.search(r"app · al (.*?) Nothing to do", page.part("client", **question))

    assert verdict and f"Applied. {verdict[1]}" in (panel := page.part("panel", **question))
    assert panel.startswith("al: user: 1 of 5/hour;") and "All users together: minute" in panel


def test_ten_viewers_at_once_cost_one_computation_until_a_change(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []
    is_waiting = threading.Event()
    read = RollupStore.present

    def slowly(store: RollupStore, now_s: float, changes: Any) -> Any:
        reads.append(now_s)
        is_waiting.wait(0.2)  # the others come meanwhile
        return read(store, now_s, changes)

    monkeypatch.setattr(RollupStore, "present", slowly)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(page.get, ["part/verdict"] * 10))
    assert 1 == len(reads)
    page.send("apply", LIMIT)
    page.part("verdict")
    assert 2 == len(reads)


def test_emergency_switch_keeps_the_page_from_starting_anything(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    page = open_page(store={"uri": "mongodb://127.0.0.1:1/"})

    assert "switches everything off" in page.part("state")
    assert page.app.extensions["oauth_ratelimit"]._worker is None
