"""Change of store.uri in the file of a running process, on a MongoDB that asks for passwords."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit.cli import command
from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store import factory as reconnector
from oauth_ratelimit.store.factory import FORMER_KEPT_S, NOT_TRIED, RETRY_S, Reconnector, open_stores
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from testbed.clock import Clock, wait_until
from testbed.mongod import Mongod
from tests.support.apps import app_limiter_of, protected_app
from tests.support.guarded_mongod import PASSWORD, GuardedMongod, guarded, guarded_server
from tests.support.guards import guess, secret
from tests.support.limiters import KEY
from tests.support.stores import a_change

pytestmark = pytest.mark.mongo

__all__ = ["guarded", "guarded_server"]

LIMIT = 20
MANY = 10**6
SETTINGS = {
    "mode": "enforce",
    "sync": {"interval": "100ms", "max_interval": "100ms"},
    "limits": {"user": [{"limit": MANY, "window": "1h"}], "client": [{"limit": LIMIT, "window": "1h"}]},
    "guard": {"mode": "enforce"},
}
ALL_RIGHTS = [
    {"resource": {"db": "oauth", "collection": ""}, "actions": ["find"]},
    {"resource": {"db": "oauth", "collection": ""}, "actions": ["insert", "update", "remove", "createIndex"]},
]


def write(path: Path, uri: str, **changed: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({**SETTINGS, "store": {"uri": uri}, **changed}))
    new.replace(path)


def new_user(server: GuardedMongod, name: str) -> str:
    server.root.admin.command("createUser", name, pwd=PASSWORD, roles=[{"role": "readWrite", "db": "oauth"}])
    return server.uri(name)


@pytest.fixture(autouse=True)
def users(guarded: GuardedMongod) -> Iterator[None]:
    yield
    for user in guarded.root.admin.command("usersInfo")["users"]:
        if user["user"] != "root":
            guarded.root.admin.command("dropUser", user["user"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.yaml"


def running(path: Path) -> Any:
    return protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time)


class Load:
    """Requests of users without end to one instance, and how many were admitted."""

    def __init__(self, app: Flask) -> None:
        self.limiter = app_limiter_of(app).limiter
        self.admitted: Counter[str] = Counter()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.001):
            for number in range(10):
                name = f"user-{number}"
                self.admitted[name] += self.limiter.check("app", name).allowed

    def ask(self, count: int) -> int:
        """Return how many of some requests without a user are admitted."""
        return sum(self.limiter.check("app").allowed for _ in range(count))

    @property
    def remaining(self) -> int:
        return self.limiter.peek("app").remaining


def held_by(server: GuardedMongod) -> Counter[str]:
    held: Counter[str] = Counter()
    for document in server.database["ratelimits"].find():
        for frames in document["requestCounters"].values():
            held[document["_id"]["username"]] += sum(frames.values())
    return held


def changed_count(logs: list[Any]) -> int:
    return sum(entry["event"] == "connection_changed" for entry in logs)


def test_new_user_is_taken_over_under_load_and_no_hit_is_lost(guarded: GuardedMongod, path: Path) -> None:
    """The former user is dropped at once, so hits wait meanwhile. Overrides, failures and heartbeats go on, too."""
    write(path, new_user(guarded, "former"))
    with capture_logs() as logs, ExitStack() as stack:
        apps = [stack.enter_context(running(path)) for _ in range(2)]
        loads = [stack.enter_context(Load(app)) for app in apps]
        assert [5, 5] == [load.ask(5) for load in loads]
        wait_until(lambda: [10, 10] == [load.remaining for load in loads], "both know of the requests of both")

        write(path, new_user(guarded, "latter"))
        guarded.root.admin.command("dropUser", "former")
        wait_until(lambda: changed_count(logs) == 2, "both use the new user")
        assert 10 == loads[0].ask(LIMIT)
        wait_until(lambda: loads[1].remaining == 0, "the other one knows")
        assert 0 == loads[1].ask(LIMIT)

        guess(cast(Guard, app_limiter_of(apps[0]).guard()), secret())
        with closing(Connection(guarded.uri("latter"))) as connection:
            override = Override(Target(OverrideKind.MODE, None), "ann", "", 0.0, mode=Mode.DRY_RUN)
            OverrideStore(connection).put(override)
        wait_until(lambda: all(load.ask(1) for load in loads), "the override is obeyed")
        instances = {app_limiter_of(app).health().instance for app in apps}
    admitted = sum((load.admitted for load in loads), Counter({None: LIMIT}))  # type: ignore[dict-item]

    assert admitted == held_by(guarded)
    assert guarded.database["ratelimit_failures"].count_documents({})
    history = guarded.database["ratelimit_stats"].find_one({"_id.history": "instances"}) or {}
    assert instances == {entry["instance"] for entry in history["entries"] if entry["kind"] == "ended"}
    events = {entry["event"] for entry in logs}
    assert events.isdisjoint({"restart_needed", "hits_undelivered", "hits_unconfirmed", "connection_change_failed"})
    assert PASSWORD not in repr(logs)


def test_user_that_was_dropped_and_created_again_is_used_again_and_no_hit_is_lost(
    guarded: GuardedMongod, path: Path
) -> None:
    """After a login that failed the driver looks for the server with its next heartbeat."""
    write(path, f"{new_user(guarded, 'same')}&heartbeatFrequencyMS=500")
    with running(path) as app:
        with Load(app) as load:
            assert 5 == load.ask(5)
            wait_until(lambda: held_by(guarded)[None] == 5, "MongoDB has the first hits")
            guarded.root.admin.command("dropUser", "same")
            assert 5 == load.ask(5)
            wait_until(lambda: app_limiter_of(app).health().refused, "the dropped user is refused")
            new_user(guarded, "same")
        admitted = load.admitted + Counter({None: 10})  # type: ignore[dict-item]
        wait_until(lambda: held_by(guarded) == admitted, "MongoDB has all hits")


def test_address_that_does_not_work_is_tried_again_while_the_former_one_is_used(
    guarded: GuardedMongod, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log, health and heartbeat have the reason. All else that the file says applies."""
    monkeypatch.setattr(reconnector, "RETRY_S", 0.1)
    write(path, guarded.grant("former", *ALL_RIGHTS))
    with capture_logs() as logs, running(path) as app:
        limiter = app_limiter_of(app)
        assert limiter.limiter.check("app").allowed

        def problem() -> str | None:
            return limiter.health().connection_problem

        write(path, guarded.uri("latter"), mode="dry-run")  # there is no such user
        wait_until(lambda: problem() == "AuthenticationFailed (18)", "it is refused")
        assert Mode.DRY_RUN is limiter.settings.policies.mode
        beats = guarded.database["ratelimit_stats"]
        wait_until(lambda: beats.find_one({"connection_problem": problem()}), "the heartbeat says it")
        guarded.grant("latter", *(right for right in ALL_RIGHTS if "find" in right["actions"]))
        wait_until(lambda: problem() == "Unauthorized (13)", "without the right to write it is not used")
        assert limiter.limiter.check("app").allowed
        wait_until(lambda: held_by(guarded)[None] == 2, "the former user still writes")  # type: ignore[index]

        guarded.grant("latter", *ALL_RIGHTS)
        wait_until(lambda: problem() is None, "the new user is used")
        write(path, guarded.uri("former"))
        wait_until(lambda: changed_count(logs) == 2, "and the former one again")
    failures = [entry for entry in logs if entry["event"] == "connection_change_failed"]
    assert ["MongoDB refused the connection: AuthenticationFailed (18)"] == [entry["error"] for entry in failures]
    assert PASSWORD not in repr(logs)


def test_server_that_never_answers_delays_neither_mode_off_nor_the_end(guarded: GuardedMongod, path: Path) -> None:
    write(path, guarded.uri("root"))
    with socket.create_server(("127.0.0.1", 0)) as silent, running(path) as app:
        limiter = app_limiter_of(app)
        assert limiter.limiter.check("app").allowed
        uri = guarded.uri("root").replace(guarded.address, f"127.0.0.1:{silent.getsockname()[1]}")
        write(path, f"{uri}&connectTimeoutMS=20000&serverSelectionTimeoutMS=20000&socketTimeoutMS=20000")
        wait_until(lambda: limiter.health().connection_problem == NOT_TRIED, "it is being tried")
        began_s = time.monotonic()
        write(path, guarded.uri("root"), mode="off")
        wait_until(lambda: limiter.settings.policies.mode is Mode.OFF, "limits are off")
        assert time.monotonic() - began_s < 3
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 7


def test_other_database_of_the_same_name_is_named_before_and_when_it_is_taken_over(path: Path) -> None:
    with Mongod() as one, Mongod() as two:
        here, elsewhere = (f"mongodb://{each.address}/oauth?directConnection=true" for each in (one, two))
        write(path, here)
        new = path.with_name("later.yaml")

        def compared(uri: str) -> str:
            write(new, uri)
            result = CliRunner().invoke(command, ["--config", str(path), "check-config", str(new), "--running"])
            return result.stdout

        with capture_logs() as logs, running(path) as app:
            assert app_limiter_of(app).limiter.check("app").allowed
            with one.client() as client:
                beats = client["oauth"]["ratelimit_stats"]
                wait_until(lambda: beats.find_one({"_id.instance": {"$exists": True}}), "a heartbeat")
            assert compared(f"{here}&appname=other").endswith("no restart needed by 1 instance\n")
            assert "leads to another database" in compared(elsewhere)
            assert "its store.uri cannot be used" in compared("mongodb://127.0.0.1:1/oauth")
            for count, uri in enumerate((f"{here}&appname=other", elsewhere), 1):
                write(path, uri)
                wait_until(lambda count=count: changed_count(logs) == count, "it is used")  # type: ignore[misc]
        assert 1 == [entry["event"] for entry in logs].count("database_changed")


def test_new_connection_sees_all_that_the_former_one_has_written(replica_set_uri: str) -> None:
    """Else a former primary may answer, and a write that was applied would be taken for one that was not."""
    settings = StoreSettings(uri=replica_set_uri)
    stores = open_stores(settings)
    assert stores is not None
    with closing(stores):
        stores.counters.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        former = stores.counters._open()[1]
        stores.reconnect(replace(settings, uri=f"{replica_set_uri}&appname=other"))[0].close()
        latter = stores.counters._open()[1]

        assert former.client is not latter.client
        assert former.operation_time == latter.operation_time
        assert 1 == stores.counters.read([KEY])[KEY].version
        assert [KEY] == list(stores.counters.latest(10))  # nothing was written to see whether it works


def test_address_is_tried_at_once_and_then_seldom(clock: Clock) -> None:
    """Until it works, or the file names another one, or the former one again. Nothing is tried for another database."""
    stores, former = Mock(), StoreSettings(uri="mongodb://one/oauth")
    stores.reconnect.side_effect = StoreRejected("no", code="no")
    follower = Reconnector(stores, former, clock=clock)

    def tries(name: str, passed_s: float = 0.0) -> int:
        clock.advance(passed_s)
        follower.follow(StoreSettings(uri=f"mongodb://{name}"))
        for thread in follower._threads:
            thread.join()
        return int(stores.reconnect.call_count)

    with capture_logs() as logs:
        assert [0, 0, 0] == [tries("one/oauth"), tries("two/other"), tries("two")]
        assert [1, 1, 2] == [tries("two/oauth"), tries("two/oauth", RETRY_S - 0.1), tries("two/oauth", 0.1)]
        assert "no" == follower.problem
        assert [3, 3] == [tries("three/oauth"), tries("one/oauth")]
        assert follower.problem is None
        former_connection = Mock()
        stores.reconnect.side_effect, stores.reconnect.return_value = None, (former_connection, False)
        follower.follow(StoreSettings(uri="mongodb://two/oauth"))
        wait_until(lambda: "connection_changed" in repr(logs), "it works")
        assert (None, False) == (follower.problem, former_connection.close.called)  # operations may still use it
        follower.stop(Deadline())
        assert former_connection.close.called
    logs.pop()
    assert ["connection_change_failed"] * 2 == [entry["event"] for entry in logs]


def test_address_that_is_named_while_another_one_is_tried_is_a_problem_until_it_is_used(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each former connection is kept for the timeout of its operations, and the end waits for all."""
    one, two, three = (StoreSettings(uri=f"mongodb://{name}/oauth") for name in ("one", "two", "three"))
    one = replace(one, timeout_s=30.0)
    formers, waits, may_connect = [Mock(), Mock()], list[float | None](), threading.Event()

    def reconnect(wanted: StoreSettings) -> tuple[Mock, bool]:
        assert may_connect.wait(10)
        return formers[wanted == three], False

    class Ending(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(timeout)

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        ended.add(thread)
        join(thread, timeout)

    others = set(threading.enumerate())  # of earlier tests
    ended, join = set[threading.Thread](), threading.Thread.join
    follower = Reconnector(Mock(reconnect=reconnect), one, clock=clock)
    follower._ending = Ending()
    follower.follow(two)
    follower.follow(three)
    may_connect.set()
    wait_until(lambda: len(waits) == 1, "two is used")
    assert NOT_TRIED == follower.problem
    clock.advance(RETRY_S)
    follower.follow(three)
    wait_until(lambda: len(waits) == 2, "three is used")
    assert (None, [30.0, FORMER_KEPT_S]) == (follower.problem, waits)

    threads = {each for each in threading.enumerate() if each.name == "oauth_ratelimit-connect"} - others
    monkeypatch.setattr(threading.Thread, "join", joined)
    follower.stop(Deadline())
    assert (2, threads) == (len(threads), ended)
    assert all(former.close.called for former in formers)
