"""What the page is told."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, decision_id_of
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import ClientMinute, Peak, Share, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.inspect import CounterDocuments
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.admin.conftest import Page, spend
from tests.support.apps import token_status
from tests.support.helpers import wait_until
from tests.support.mongod import free_port

LIMIT = {"kind": "limit", "client_id": "app", "limits": {"user": ["2/hour"]}, "for": "7d", "reason": "ticket 4711"}


def record(uri: str, minutes: list[ClientMinute]) -> None:
    """Write statistics as a process does."""
    with closing(Connection(uri)) as connection:
        StatisticsStore(connection).put("process", [Share(minute, True) for minute in minutes], keep_s=10_000_000)


def minute(ago: int, client_id: str = "app", **outcomes: int) -> ClientMinute:
    """Return a minute of requests for users, so many minutes ago."""
    start_s = int(time.time() // 60 - ago) * 60
    return ClientMinute(
        client_id,
        start_s,
        {Source("user", "password"): Tally(**outcomes)},
        {"user": Peak(0.5, 5, 10, 60)},
        (UserLoad("alice", sum(outcomes.values()), outcomes.get("denied", 0)),),
        {7: 3},
        burst=4,
    )


def test_status(page: Page) -> None:
    """The mode and where it comes from, the limits, the database, and each instance with its lag and conflicts."""
    assert 200 == token_status(page.app)  # with its first request an instance starts
    told = wait_until(lambda: (found := page.ask("status"))["instances"] and found, "the instance tells of itself")

    assert ("enforce", {"layer": "mode"}, None, 0) == (
        told["mode"],
        told["mode_origin"],
        told["canary"],
        told["override_count"],
    )
    assert {"client": ["client: 10/3600s"], "user": ["user: 5/3600s"], "client_total": ["client_total: 50/3600s"]} == (
        told["limits"]
    )
    assert {"seen_s", "is_late", "conflict_count", "flushed_count", "failure_count"} <= told["instances"][0].keys()


def test_top(page: Page, limiter: Limiter) -> None:
    """Who has used most of a limit comes first; each key once, with the limit that it is nearest to."""
    spend(limiter, 4, "app", "alice")
    spend(limiter, 3, "batch")
    told = page.ask("top")

    assert [("app", "alice", 0.8), ("batch", None, 0.3)] == [
        (row["client_id"], row["username"], round(row["used_ratio"], 3)) for row in told["rows"][:2]
    ]
    assert (True, 4) == (told["is_complete"], told["read_count"])


def test_top_of_more_than_can_be_read(page: Page, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more keys than the page may read at once it reads some, and says so."""
    monkeypatch.setattr("oauth_ratelimit.admin.api.MAX_READ", 3)
    for number in range(5):
        limiter.check(f"client-{number}")
    limiter.sync()
    told = page.ask("top")

    assert (False, 3) == (told["is_complete"], told["read_count"])


def test_top_finds_the_busy_among_many(
    page: Page, limiter: Limiter, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more keys than the page may read at once, those that statistics name as busy are not missed."""
    monkeypatch.setattr("oauth_ratelimit.admin.api.MAX_READ", 3)
    spend(limiter, 4, "zzz", "alice")
    for number in range(5):
        limiter.check(f"client-{number}")
    limiter.sync()
    record(mongo_uri, [minute(1, "zzz", allowed=4)])

    assert ("zzz", "alice") == tuple(page.ask("top")["rows"][0][name] for name in ("client_id", "username"))


def test_client(page: Page, limiter: Limiter) -> None:
    """A client's page explains as the command line does, and lists its users."""
    spend(limiter, 6, "app", "alice")
    told = page.ask("client", id="app", user="alice")

    assert ("denied", "enforce", None) == (told["forecast"]["kind"], told["mode"], told["trusted"])
    assert [("user", {"layer": "limits"}), ("client_total", {"layer": "limits"})] == [
        (row["policy"], row["origin"]) for row in told["limits"]
    ]
    assert ["alice"] == [row["username"] for row in told["users"] if row["username"]]


@pytest.mark.parametrize("question", [{}, {"id": ""}, {"id": "a" * 2000}], ids=["none", "empty", "long"])
def test_client_that_cannot_be(page: Page, question: dict[str, str]) -> None:
    """A question about no possible client is answered with what would be one."""
    for name in ("client", "client-day"):
        response = page.get(f"api/{name}", **question)
        assert 400 == response.status_code
        assert "client id" in response.json["problem"]["text"]


def test_name_of_a_user_in_the_address(page: Page) -> None:
    """The name of a user comes in a header; it is not taken from an address, which access logs keep."""
    response = page.browser.get("/ratelimit/api/client?id=app&user=alice", headers={"X-Ratelimit-User": "%C3%B6"})
    assert "ö" == response.json["username"]


def test_traffic_before_there_are_statistics(page: Page) -> None:
    """Without statistics the time is there and nothing is in it."""
    told = page.ask("traffic", span="1h")

    assert (60, [], None, 0) == (len(told["times"]), told["lines"], told["rest"], told["total"]["offered"])


def test_traffic(page: Page, mongo_uri: str) -> None:
    """Each minute's requests stand in it by what became of them, for each client, with its limit as a rate."""
    record(
        mongo_uri, [minute(3, allowed=7, denied=2, would_deny=1), minute(2, allowed=5), minute(2, "other", trusted=9)]
    )
    told = page.ask("traffic", span="15m")
    lines = {line["client_id"]: line for line in told["lines"]}

    assert ([8.0, 5.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]) == (
        lines["app"]["issued"][-4:],
        lines["app"]["denied"][-4:],
    )
    assert [0.0, 9.0, 0.0, 0.0] == lines["other"]["issued"][-4:]
    assert [{"policy": "client_total: 50/3600s", "per_minute": 0.833}] == lines["app"]["rates"]
    assert {"offered": 24, "issued": 22, "denied": 2, "would_deny": 1, "trusted": 9, "retries": 0} == told["total"]
    assert [("app", 15, 0.5), ("other", 9, 0.5)] == [
        (row["client_id"], row["offered"], row["highest_use"]) for row in told["clients"]
    ]


def test_traffic_of_many_clients(page: Page, mongo_uri: str) -> None:
    """Five clients have lines: those most over a limit first, then the busiest; the others are one line together."""
    busy = [minute(2, f"busy-{number}", allowed=100 + number) for number in range(8)]
    record(mongo_uri, [*busy, minute(2, "small-and-denied", denied=1), minute(2, "", allowed=3)])
    told = page.ask("traffic", span="15m")

    assert ["small-and-denied", "busy-7", "busy-6", "busy-5", "busy-4"] == [line["client_id"] for line in told["lines"]]
    assert (5, 100 + 101 + 102 + 103 + 3) == (told["rest_count"], sum(told["rest"]["issued"]))


def test_traffic_that_is_too_much_to_read(page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More minutes than the page may read are read as a sample, rates stay what they were, and that is said."""
    monkeypatch.setattr("oauth_ratelimit.admin.traffic.MAX_READ", 100)
    record(mongo_uri, [minute(ago, allowed=10) for ago in range(1, 400)])
    told = page.ask("traffic", span="1d")
    rates = {rate for rate in told["lines"][0]["issued"][-30:-2] if rate is not None}

    assert (5, {10.0}) == (told["sampled_every"], rates)
    assert 3990 == pytest.approx(told["total"]["offered"], abs=100)


def test_span_that_is_not_offered(page: Page) -> None:
    """The lengths of time are fixed."""
    assert 400 == page.get("api/traffic", span="10y").status_code


def test_habits(page: Page, mongo_uri: str) -> None:
    """A client's habits of a day: users, tokens per user and hour, refreshes, bursts, by grant type."""
    refreshed = ClientMinute("app", minute(5).minute_s, {Source("user", "refresh_token"): Tally(allowed=5)})
    record(mongo_uri, [minute(3, allowed=12, denied=3, retries=2), refreshed])
    told = page.ask("client-day", id="app")

    assert (20, 3, 2, 4) == (told["offered"], told["over"], told["retries"], told["burst"])
    assert ({"password": 15, "refresh_token": 5}, [("alice", 17)]) == (
        {row["grant"]: row["offered"] for row in told["grants"]},
        [(user["username"], user["offered"]) for user in told["users"]],
    )
    assert (0.25, 1.0) == (told["refresh_share"], round(told["user_count"]))
    assert 20.0 == pytest.approx(told["per_user_hour"], abs=0.2)
    assert "over its limits" == told["verdict"]
    assert any("3" in text for text in told["faults"])
    assert "Keep each user's access token" in told["letter"]


def test_client_with_a_long_name(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """A client whose name is too long to be stored whole has its traffic, its own limits beside it, and its habits."""
    name = "a" * 600
    page = open_page(store={"uri": mongo_uri}, clients={name: {"limits": {"client_total": ["120/minute"]}}})
    record(mongo_uri, [minute(3, storable_name(name), allowed=30)])
    line, habits = page.ask("traffic", span="15m", id=name)["lines"][0], page.ask("client-day", id=name)

    assert (name, 30.0, [120.0]) == (
        line["client_id"],
        sum(line["issued"]),
        [rate["per_minute"] for rate in line["rates"]],
    )
    assert 30 == habits["offered"]


def test_habits_of_a_client_that_is_not_there(page: Page) -> None:
    """Of a client without statistics there is nothing to tell."""
    assert 0 == page.ask("client-day", id="nobody")["offered"]


def test_denial(page: Page, mongo_uri: str) -> None:
    """A denial that a client complains about is found by its id; an unknown one is said to be unknown."""
    told = Denial(
        first_id=1000,
        at_s=1_700_000_000.0,
        client_id="app",
        username="alice",
        scope=None,
        grant_type="password",
        policy="user",
        limit=5,
        window_s=3600,
        mode="enforce",
        is_canary=False,
        retry_after_s=12.0,
        trace=Trace(),
    )
    with closing(Connection(mongo_uri)) as connection:
        DenialStore(connection).put([DenialRecord(told, "node-1", 1_700_000_030.0, 3)], keep_s=1e9)
    found = page.ask("denial", decision=decision_id_of(1002))["denial"]

    assert ("app", "alice", "user", 2, decision_id_of(1000)) == tuple(
        found[name] for name in ("client_id", "username", "policy", "position", "logged_decision_id")
    )
    assert page.ask("denial", decision=decision_id_of(10))["denial"] is None
    assert "input" == page.get("api/denial", decision="what?").json["problem"]["kind"]


def test_preview_changes_nothing(page: Page, limiter: Limiter) -> None:
    """A preview tells what is now and what would be, whom it would hit, and stores nothing."""
    spend(limiter, 3, "app", "alice")
    told = page.send("preview", LIMIT).json

    assert [("user limit", "user: 5/3600s", "user: 2/3600s")] == [
        (row["what"], row["before"], row["after"]) for row in told["changes"] if row["is_changed"]
    ]
    assert (0, 1) == (told["keys"]["denied_before_count"], told["keys"]["denied_after_count"])
    assert [] == page.ask("overrides")["history"]


def test_preview_says_what_might_surprise(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """Whom a change passes by is named: own rules, a canary, trust, the override that it replaces."""
    page = open_page(
        store={"uri": mongo_uri},
        canary={"percent": 10},
        trusted_clients=["friend"],
        clients={"partner": {"mode": "dry-run"}},
    )
    everybody = page.send("preview", {"kind": "mode", "client_id": None, "mode": "enforce", "reason": "x"}).json
    friend = page.send("preview", {**LIMIT, "client_id": "friend"}).json
    page.send("apply", LIMIT)
    again = page.send("preview", LIMIT).json

    assert {"partner", "canary", "will be denied"} == {
        words for words in ("partner", "canary", "will be denied") if any(words in note for note in everybody["notes"])
    }
    assert any("trusted" in note for note in friend["notes"])
    assert ["ann"] == [override["by"] for override in again["replaces"]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LIMIT, ("limit", "user", ["user: 2/3600s"], None)),
        ({**LIMIT, "limits": {"client": ["none"]}}, ("limit", "client", [], None)),
        ({"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "x"}, ("mode", None, [], "dry-run")),
        ({"kind": "trusted", "client_id": "mobile-*", "reason": "x"}, ("trusted", None, [], None)),
    ],
    ids=["limit", "no limit", "mode", "trust"],
)
def test_put_and_remove(page: Page, body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """What an operator puts in force is in force under their name, and can be taken back; both stay on record."""
    with capture_logs() as logs:
        assert 200 == page.send("apply", body).status_code
        (found,) = page.ask("overrides")["overrides"]
        target = {name: found[name] for name in ("kind", "client_id", "limit_kind")}
        assert page.send("remove", {**target, "reason": "done"}).json["is_removed"]
        assert not page.send("remove", {**target, "reason": "done"}).json["is_removed"]

    assert expected == (found["kind"], found["limit_kind"], found["limits"], found["mode"])
    assert "ann" == found["by"]
    told = page.ask("overrides")
    assert ([], [("unset", "ann", "done"), ("set", "ann", body["reason"])]) == (
        told["overrides"],
        [(entry["action"], entry["by"], entry["reason"]) for entry in told["history"]],
    )
    changes = [entry for entry in logs if entry["event"] == "override_changed"]
    assert [("ann", "set"), ("ann", "unset")] == [(entry["operator"], entry["action"]) for entry in changes]


def test_preview_of_the_past(page: Page, mongo_uri: str) -> None:
    """Where there are statistics, a preview tells what the limit would have done in the last day."""
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])
    (past,) = page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"], "client": ["1/second"]}}).json["past"]

    assert ("user", 30, 1, 1) == (past["kind"], past["offered"], past["concerned_count"], past["bearer_count"])
    assert 6 <= past["at_least"] <= past["denied"] <= past["at_most"] <= 16


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"by": "user", "limit": "20"}, (60, 0, 0)),
        ({"by": "user", "limit": "4"}, (60, 2, 2)),
        ({"by": "total", "limit": "4", "id": "app"}, (30, 1, 1)),
        ({"by": "total", "limit": "31", "window": "10"}, (60, 0, 0)),
        ({"by": "client"}, (0, 0, 0)),
    ],
    ids=str,
)
def test_what_if(page: Page, mongo_uri: str, question: dict[str, str], expected: tuple[int, int, int]) -> None:
    """The slider is told whom a limit would have hit, within bounds."""
    record(mongo_uri, [minute(ago, client_id, allowed=10) for ago in (5, 6, 7) for client_id in ("app", "other")])
    told = page.ask("what-if", span="hour", **question)

    assert expected == (told["offered"], told["concerned_count"], sum(row["denied"] > 0 for row in told["bearers"]))
    assert told["at_least"] <= told["denied"] <= told["at_most"]
    assert told["highest"] >= max([1, *(row["peak"] for row in told["bearers"])])


@pytest.mark.parametrize(
    "question",
    [
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "9" * 30},
        {"limit": "²"},
        {"by": "all"},
        {"span": "year"},
        {"window": "7"},
    ],
    ids=str,
)
def test_what_if_of_nonsense(page: Page, question: dict[str, str]) -> None:
    """A question that makes no sense is answered with what does."""
    response = page.get("api/what-if", **question)

    assert (400, "input") == (response.status_code, response.json["problem"]["kind"])


def test_what_if_of_too_much(page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page cannot read within a moment it does not begin to read; the preview of an override does without."""
    monkeypatch.setattr("oauth_ratelimit.admin.statistics.MAX_READ", 2)
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])

    assert "command line" in page.get("api/what-if", by="total").json["problem"]["text"]
    assert [] == page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"]}}).json["past"]


HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J/../?#"


def test_hostile_names(page: Page, limiter: Limiter) -> None:
    """Whatever a client or user is called, it is data in JSON and text in pages, never markup."""
    spend(limiter, 4, HOSTILE, HOSTILE)
    told = page.ask("top")["rows"][0]
    shown = page.ask("client", id=HOSTILE, user=HOSTILE)

    assert (HOSTILE, HOSTILE) == (told["client_id"], told["username"]) == (shown["client_id"], shown["username"])
    assert "<script>alert" not in page.get("client", id=HOSTILE, user=HOSTILE).text


def test_hostile_operator(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """Nor does the name of an operator become markup."""
    page = open_page(authorize=lambda: "<b>ann</b>\ud800", store={"uri": mongo_uri})

    assert "&lt;b&gt;ann&lt;/b&gt;?" in page.get("overrides").text
    assert 200 == page.send("apply", LIMIT).status_code


QUERIES = [
    ("status", {}),
    ("top", {}),
    ("client", {"id": "app"}),
    ("overrides", {}),
    ("traffic", {}),
    ("client-day", {"id": "app"}),
    ("what-if", {}),
    ("denial", {"decision": decision_id_of(7)}),
]


@pytest.mark.usefixtures("quick_reconnect")
def test_database_that_is_away(open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without MongoDB every page opens, every question is answered with why there is no answer, and no request fails.
    """
    monkeypatch.setattr("oauth_ratelimit.admin.cache.RETRY_AFTER_S", 0.0)
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})

    assert [200] * 4 == [page.get(path).status_code for path in ("", "client", "overrides", "instances")]
    for name, question in QUERIES:
        problem = page.ask(name, **question)["problem"]
        assert ("database", True) == (problem["kind"], "unreachable" in problem["text"])
    for name in ("preview", "apply", "remove"):
        response = page.send(name, {**LIMIT, "limit_kind": "user"})
        assert (424, "database") == (response.status_code, response.json["problem"]["kind"])


@pytest.mark.usefixtures("quick_reconnect")
def test_database_that_is_away_is_asked_once(open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch) -> None:
    """While MongoDB is known to be away no further request waits for it: threads are for tokens."""
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})
    assert "database" == page.ask("top")["problem"]["kind"]
    asked = []
    monkeypatch.setattr("oauth_ratelimit.flask_authlib.app_limiter.AppLimiter.context", lambda gate: asked.append(gate))

    assert ["database"] * 3 == [page.ask(name, **question)["problem"]["kind"] for name, question in QUERIES[:3]]
    assert [] == asked


def test_answers_are_shared(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """What several open pages ask for within a moment is read once, and again after a change."""
    first = page.ask("status")["now_s"]
    assert first == page.ask("status")["now_s"]
    page.send("apply", LIMIT)
    assert (True, 1) == (first < (told := page.ask("status"))["now_s"], told["override_count"])


def test_names_are_kept(page: Page, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of an unknown client asks again and again; what its name is compared with is read once."""
    spend(limiter, 1, "partner")
    read = []
    find = CounterDocuments.latest

    def count(self: CounterDocuments, *args: Any) -> Any:
        read.append(args)
        return find(self, *args)

    monkeypatch.setattr(CounterDocuments, "latest", count)
    hints = [page.ask("client", id=name)["hint"] for name in ("partnr", "partnr", "partne")]

    assert ["did you mean 'partner'?"] * 3 == [hint.partition("; ")[2] for hint in hints]
    assert 1 == len(read)


def test_nothing_is_shared(open_page: Callable[..., Page]) -> None:
    """Without a database there is nothing to look at, and that is said."""
    assert "no store.uri" in open_page().ask("top")["problem"]["text"]


def test_emergency_switch(open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the emergency switch pulled nothing is started, by the page neither, and that is said."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    page = open_page(store={"uri": "mongodb://127.0.0.1:1/"})

    assert "switches everything off" in page.ask("status")["problem"]["text"]
    assert page.app.extensions["oauth_ratelimit"]._worker is None
