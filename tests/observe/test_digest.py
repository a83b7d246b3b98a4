"""
The daily digest, from statistics in a real MongoDB to a real webhook.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.statistics import ClientMinute, Peak, Source, Tally, UserLoad
from oauth_ratelimit.demo.authserver import seed
from oauth_ratelimit.demo.mongod import free_port
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.observe import delivery
from oauth_ratelimit.observe.delivery import LEASE_S
from oauth_ratelimit.observe.digest import LOOK_EVERY_S, DigestSender
from oauth_ratelimit.report.digest import DAY_S, Digest, due_day_s, name_of_day
from oauth_ratelimit.report.findings import find
from oauth_ratelimit.store.connection import Connection
from oauth_ratelimit.store.digests import DigestStore
from oauth_ratelimit.store.statistics import Share, StatisticsStore
from tests.edge.protected import config, protected
from tests.helpers import Clock, wait_until
from tests.observe.hook import Hook, listening

DAY = "2033-05-17"
DAY_START_S = 1_999_900_800
MINIMUM = 5
ALL_CLIENTS = [f"app-{number:02d}" for number in range(6)]


class Fleet:
    """
    Instances with one database, one clock and one webhook.
    """

    def __init__(self, uri: str, hook: Hook, clock: Clock) -> None:
        self.connection = Connection(uri)
        self.hook = hook
        self.clock = clock
        self.url = hook.url
        self.senders: list[DigestSender] = []

    def settings(self) -> Settings:
        """
        Return the configuration of all.
        """
        digest = {"url": self.url, "at": 6, "minimum": MINIMUM, "secret": "not much of a secret", "timeout": "2s"}
        clients = {"app-05": {"mode": "enforce"}}
        return load_config({"digest": digest, "clients": clients, "denial": {"error_uri": "https://example.com/reuse"}})

    def instance(self, name: str) -> DigestSender:
        """
        Start an instance.
        """
        sender = DigestSender(
            self.settings, connection=self.connection, instance=name, clock=self.clock, agent="oauth_ratelimit/1"
        )
        self.senders.append(sender)
        return sender

    def look(self, *senders: DigestSender) -> None:
        """
        Let the background threads come by, some time later, and wait until they have done what they began.
        """
        self.clock.advance(LOOK_EVERY_S)
        for sender in senders:
            sender.run(self.clock())
        wait_until(lambda: not any(sender.is_busy for sender in senders), "everything is sent")

    def close(self) -> None:
        """
        End all instances.
        """
        for sender in self.senders:
            sender.close()
        self.connection.close()


@pytest.fixture
def fleet(mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """
    A fleet on the morning after a day on which six clients were over their limits, and another was not often.
    """
    monkeypatch.setattr(delivery, "PAUSES_S", (0.0, 0.0))
    clock.now_s = DAY_START_S + DAY_S + 7 * 3600.0
    with listening() as hook, closing(Fleet(mongo_uri, hook, clock)) as fleet:
        statistics = StatisticsStore(fleet.connection)
        for minute_s in (DAY_START_S, DAY_START_S + DAY_S - 60):
            shares = [a_minute(client_id, minute_s) for client_id in ALL_CLIENTS]
            shares += [a_minute("innocent", minute_s, over=1), a_minute("", minute_s)]
            statistics.put("one", [Share(minute, is_complete=True) for minute in shares], keep_s=90 * 86_400.0)
        others = [a_minute("yesterday", DAY_START_S - 60), a_minute("today", DAY_START_S + DAY_S)]
        statistics.put("one", [Share(minute, is_complete=True) for minute in others], keep_s=90 * 86_400.0)
        yield fleet


def a_minute(client_id: str, minute_s: int, *, over: int = 10) -> ClientMinute:
    """
    Return a minute with some requests over the limit.
    """
    return ClientMinute(
        client_id=client_id,
        minute_s=minute_s,
        tallies={
            Source("user", "refresh_token"): Tally(
                allowed=20, denied=over if client_id == "app-05" else 0, would_deny=0 if client_id == "app-05" else over
            )
        },
        peaks={"user": Peak(1.5, 75.0, 50, 10), "client": Peak(0.5, 30.0, 60, 60)},
        users=(UserLoad("alice", 30),),
        registers={7: 2},
    )


def test_two_instances(fleet: Fleet) -> None:
    """
    However many instances there are and however often they look, each client's digest is sent once.
    """
    senders = [fleet.instance(f"node-{number}") for number in range(2)]
    with capture_logs() as logs:
        for _ in range(3):
            fleet.look(*senders)

    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()
    assert [(DAY, 6, 0)] == [
        (entry["day"], entry["client_count"], entry["refused_count"])
        for entry in logs
        if entry["event"] == "digest_sent"
    ]


def test_what_is_sent(fleet: Fleet) -> None:
    """
    A digest tells what the client did, what became of it, and has a text for its owner; it names no user.
    """
    fleet.look(fleet.instance("node-1"))
    message = fleet.hook.taken[0]

    assert {
        "type": "oauth_ratelimit.digest",
        "version": 1,
        "namespace": None,
        "day": DAY,
        "client_id": "app-00",
        "mode": "dry-run",
        "requests": {
            "offered": 60,
            "allowed": 40,
            "denied": 0,
            "would_deny": 20,
            "retries_while_denied": 0,
            "needless": 58,
        },
        "user_count": 1,
        "busiest_minute_requests": 30,
        "limits": [
            {"policy": "client", "limit": 60, "window_s": 60, "most_used": 30.0},
            {"policy": "user", "limit": 50, "window_s": 10, "most_used": 75.0},
        ],
        "faults": ["refreshes-early", "over-limit"],
        "subject": "Your client app-00 asks for too many access tokens",
    } == {name: value for name, value in message.json.items() if name != "text"}
    text = message.json["text"]
    assert "your OAuth client app-00 sent our token endpoint 60 requests for access tokens" in text
    assert "30 requests per user and hour, mostly refreshes of tokens that were still good." in text
    assert (
        "20 requests over the limit, admitted all the same in a dry run; where limits are enforced, the answer is"
        in text
    )
    assert text.endswith("More about it: https://example.com/reuse\n")
    assert "alice" not in message.body.decode()
    assert message.headers["oauth-ratelimit-signature"].startswith(f"t={int(fleet.clock())},v1=")


def test_two_issuers() -> None:
    """
    Clients of the same name at two issuers have keys of their own.
    """
    [finding] = find([a_minute("app", DAY_START_S)])
    keys = [
        Digest(DAY_START_S, finding, mode=Mode.ENFORCE, token_lifetime_s=60.0, namespace=namespace).key
        for namespace in (None, "one", "two")
    ]

    assert 3 == len(set(keys))
    assert all(key.startswith(f"oauth_ratelimit-{DAY}-") for key in keys)


def test_client_that_is_denied(fleet: Fleet) -> None:
    """
    The owner of a client that is enforced already hears of denials, not of what may come.
    """
    fleet.look(fleet.instance("node-1"))
    text = fleet.hook.taken[-1].json["text"]

    assert "20 requests over the limit, answered with status 429." in text
    assert "where limits are enforced" not in text


def test_crash(fleet: Fleet, mongo_uri: str) -> None:
    """
    After a crash another instance goes on where the first one was, when its lease has run out; only the client whose
    fate is unknown may come twice, under the same key.
    """
    fleet.hook.answers = [204, 204]
    store = DigestStore(fleet.connection, holder="crashed")
    progress = store.claim(DAY, day_s=DAY_START_S, lease_s=3600.0)
    assert progress is not None
    assert store.keep(DAY, type(progress)(after="app-02", sent_count=3), lease_s=0.0)
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-2"))

    assert dict.fromkeys(ALL_CLIENTS[3:], 1) == fleet.hook.times_taken()
    assert [6] == [entry["client_count"] for entry in logs if entry["event"] == "digest_sent"]


def test_day_that_somebody_is_at_work_on(fleet: Fleet) -> None:
    """
    While one instance holds the day, no other sends; when it has crashed, its claims are not taken any more.
    """
    store = DigestStore(fleet.connection, holder="busy")
    progress = store.claim(DAY, day_s=DAY_START_S, lease_s=3600.0)
    assert progress is not None
    fleet.look(fleet.instance("node-2"))
    assert {} == fleet.hook.times_taken()

    assert store.keep(DAY, progress, lease_s=0.0)
    fleet.look(fleet.senders[0])
    assert not store.keep(DAY, progress, lease_s=3600.0)
    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()


def test_thirty_instances_at_once(fleet: Fleet) -> None:
    """
    When all look in the same moment, one gets the day.
    """
    stores = [DigestStore(fleet.connection, holder=f"node-{number}") for number in range(30)]
    with ThreadPoolExecutor(len(stores)) as pool:
        claims = list(pool.map(lambda store: store.claim(DAY, day_s=DAY_START_S, lease_s=60.0), stores))

    assert 1 == sum(claim is not None for claim in claims)


def test_instance_that_hangs_for_too_long(fleet: Fleet) -> None:
    """
    An instance that wakes up after its lease has run out sends no more clients, and leaves the day to its new holder.
    """
    fleet.hook.pause = threading.Event()
    sender = fleet.instance("node-1")
    fleet.clock.advance(LOOK_EVERY_S)
    sender.run(fleet.clock())
    wait_until(lambda: fleet.hook.received, "the first client is sent")
    state = fleet.connection.collection("ratelimit_stats")
    state.update_one({"_id.digest": DAY}, {"$set": {"holder": "node-2"}})
    fleet.hook.pause.set()
    wait_until(lambda: not sender.is_busy, "the instance gives up")

    assert {"app-00": 1} == fleet.hook.times_taken()
    [found] = state.find({"_id.digest": DAY})
    assert ("node-2", False, "") == (found["holder"], found["isDone"], found["after"])


def test_mongodb_that_fails_while_sending(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When MongoDB goes away in between, the day is free again after its lease.
    """

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(StatisticsStore, "minutes", fail)
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-1"))

    assert [("digest_failed", "away", 300.0)] == [
        (entry["event"], entry["error"], entry["retry_in_s"]) for entry in logs
    ]


@pytest.mark.parametrize(
    ("owner", "name", "expected_s"),
    [(StatisticsStore, "minutes", 60.0), (Connection, "another", LEASE_S)],
    ids=["in the delivery", "before it"],
)
def test_bug_while_sending(
    fleet: Fleet, owner: type, name: str, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Anything unexpected is said once, and tried again later: as after a webhook that fails, or when the lease has ended.
    """

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(owner, name, fail)
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-1"), fleet.instance("node-2"))

    assert [("digest_failed", DAY, "ZeroDivisionError('a bug')", expected_s)] == [
        (entry["event"], entry["day"], entry["error"], entry["retry_in_s"]) for entry in logs
    ]
    assert "in fail" in logs[0]["traceback"]


def test_many_minutes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While there is much to read, the lease is renewed, and reading pauses.
    """
    monkeypatch.setattr(delivery, "READ_AT_ONCE", 2)
    monkeypatch.setattr(delivery, "RENEW_EVERY_S", 0.0)
    fleet.look(fleet.instance("node-1"))

    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()


def test_instance_that_ends(fleet: Fleet) -> None:
    """
    An instance that ends stops before the next client, and another goes on at once.
    """
    fleet.hook.pause = threading.Event()
    first = fleet.instance("node-1")
    fleet.clock.advance(LOOK_EVERY_S)
    first.run(fleet.clock())
    wait_until(lambda: fleet.hook.received, "the first client is sent")
    closer = threading.Thread(target=first.close)
    closer.start()
    wait_until(first._stopping.is_set, "the instance is told to end")
    fleet.hook.pause.set()
    closer.join()
    assert {"app-00": 1} == fleet.hook.times_taken()

    fleet.look(fleet.instance("node-2"))
    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()


def test_webhook_that_fails_for_a_moment(fleet: Fleet) -> None:
    """
    A client is tried again, under the same key.
    """
    fleet.hook.answers = [500, 0]
    fleet.look(fleet.instance("node-1"))

    keys = [message.headers["idempotency-key"] for message in fleet.hook.received]
    assert (keys[0], 6) == (keys[2], len(set(keys)))
    assert keys[0] == keys[1]
    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()


def test_webhook_that_fails(fleet: Fleet) -> None:
    """
    Three attempts, then a pause that doubles; the rest of the day is for any instance after it.
    """
    fleet.hook.answers = [204, 503, 503, 503]
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-1"))
        fleet.look(fleet.instance("node-2"))

    assert {"app-00": 1} == fleet.hook.times_taken()
    assert 4 == len(fleet.hook.received)
    assert [("status 503", 60.0)] == [
        (entry["error"], entry["retry_in_s"]) for entry in logs if entry["event"] == "digest_failed"
    ]


@pytest.mark.parametrize(("failure_count", "expected"), [(1, "digest_failed"), (14, "digest_given_up")])
def test_webhook_that_goes_on_failing(fleet: Fleet, failure_count: int, expected: str) -> None:
    """
    The day is given up in the end, so that it does not haunt the next.
    """
    store = DigestStore(fleet.connection, holder="before")
    progress = store.claim(DAY, day_s=DAY_START_S, lease_s=3600.0)
    assert progress is not None
    store.keep(DAY, type(progress)(failure_count=failure_count), lease_s=0.0)
    fleet.url = f"http://127.0.0.1:{free_port()}/"
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-1"))

    assert [expected] == [entry["event"] for entry in logs]
    assert (expected == "digest_given_up") == store.is_done(DAY)
    assert "ConnectionRefusedError" == logs[0]["error"]


def test_message_that_is_refused(fleet: Fleet) -> None:
    """
    A client whose digest the receiver will never take is passed over.
    """
    fleet.hook.answers = [204, 422]
    with capture_logs() as logs:
        fleet.look(fleet.instance("node-1"))

    assert {"app-01"} == set(ALL_CLIENTS) - set(fleet.hook.times_taken())
    assert [(5, 1)] == [
        (entry["client_count"], entry["refused_count"]) for entry in logs if entry["event"] == "digest_sent"
    ]


def test_mongodb_that_goes_away(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without MongoDB nothing is claimed, and nothing is said: the sync cycle does.
    """
    with closing(Connection(f"mongodb://127.0.0.1:{free_port()}/?serverSelectionTimeoutMS=50")) as away:
        sender = DigestSender(
            fleet.settings, connection=away, instance="node-1", clock=fleet.clock, agent="oauth_ratelimit/1"
        )
        with capture_logs() as logs:
            sender.run(fleet.clock())
        sender.close()

    assert ([], []) == (logs, fleet.hook.received)


def test_application(fleet: Fleet, mongo_uri: str, tmp_path: Path) -> None:
    """
    An application whose configuration has the section sends it, from its background and to its end.
    """
    database = tmp_path / "demo.sqlite3"
    seed(database)
    digest = {"url": fleet.url, "minimum": MINIMUM}
    settings = config(store={"uri": mongo_uri}, sync={"interval": "50ms"}, digest=digest)
    with protected(database, settings, clock=fleet.clock) as site:
        assert 0.0 <= site.gate.health().lag_s
        wait_until(lambda: len(fleet.hook.times_taken()) == len(ALL_CLIENTS), "all clients are sent")

    assert dict.fromkeys(ALL_CLIENTS, 1) == fleet.hook.times_taken()
    assert "oauth-ratelimit-signature" not in fleet.hook.taken[0].headers


def test_application_without_a_store(tmp_path: Path) -> None:
    """
    Where there are no statistics in MongoDB there can be no digest, and that is said at the start.
    """
    database = tmp_path / "demo.sqlite3"
    seed(database)
    with capture_logs() as logs, protected(database, config(digest={"url": "https://example.com"})) as site:
        site.gate.health()

    assert 1 == sum(entry["event"] == "digest_impossible" for entry in logs)


def test_no_digest_is_configured(fleet: Fleet) -> None:
    """
    Without the section nothing is sent and nothing is written.
    """
    sender = DigestSender(
        lambda: load_config({}), connection=fleet.connection, instance="node-1", clock=fleet.clock, agent="x"
    )
    sender.run(fleet.clock())

    assert 0 == fleet.connection.collection("ratelimit_stats").count_documents({"_id.digest": {"$exists": True}})


@pytest.mark.parametrize(
    ("after_s", "hour", "expected"),
    [
        (DAY_S + 6 * 3600 + 299, 6, -1),
        (DAY_S + 6 * 3600 + 300, 6, 0),
        (2 * DAY_S + 6 * 3600 + 299, 6, 0),
        (DAY_S + 299, 0, -1),
        (DAY_S + 300, 0, 0),
        (2 * DAY_S - 1, 23, 0),
    ],
)
def test_when_a_day_is_due(after_s: int, hour: int, expected: int) -> None:
    """
    A day is due from its hour of the next day on, and five minutes, so that everything is in MongoDB.
    """
    assert DAY_START_S + expected * DAY_S == due_day_s(DAY_START_S + after_s, hour=hour)
    assert DAY == name_of_day(DAY_START_S)


def test_text_is_plain_json(fleet: Fleet) -> None:
    """
    What is sent is ASCII, whatever the client calls itself; in what people read its name shows what it is.
    """
    name = "\u202e\x1b[2J\r\nBcc: all\U0001f600"
    StatisticsStore(fleet.connection).put(
        "one", [Share(a_minute(name, DAY_START_S), is_complete=True)], keep_s=90 * 86_400.0
    )
    fleet.look(fleet.instance("node-1"))
    [message] = [message for message in fleet.hook.taken if not message.client_id.startswith("app-")]

    assert message.body.isascii()
    assert name == json.loads(message.body)["client_id"]
    assert message.json["subject"].isprintable()
    assert message.json["text"].replace("\n", "").isprintable()
