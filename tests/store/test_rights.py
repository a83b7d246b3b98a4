"""A MongoDB that asks for a password and grants no more than needed."""

import json
import logging
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result
from flask import Flask
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, seed
from demo.server import create_app
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.admin.api import QUERIES
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.statistics import ClientMinute, Share, Source, Tally
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.errors import RateLimitError, StoreRejected
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.admin.conftest import Page, open_page
from tests.support.guarded_mongod import PASSWORD, GuardedMongod, guarded, guarded_server
from tests.support.helpers import Clock, wait_until
from tests.support.stores import mongo_store

pytestmark = pytest.mark.mongo

__all__ = ["guarded", "guarded_server", "open_page"]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
COUNTERS = {"db": "oauth", "collection": "ratelimits"}
STATISTICS = {"db": "oauth", "collection": "ratelimit_stats"}
SETTINGS = {
    "mode": "enforce",
    "sync": {"interval": "100ms"},
    "limits": {"client": ["2/hour"]},
    "guard": {"mode": "enforce"},
}
WHY = ("--reason", "ticket 4711", "--by", "ann")


def a_limiter(uri: str, clock: Clock, *, timeout: str = "60s") -> Limiter:
    """Return a limiter that shares its counters there."""
    return Limiter(
        load_config({"mode": "enforce", "store": {"uri": uri, "timeout": timeout}, "limits": {"client": ["5/hour"]}}),
        clock=clock,
    )


def documented_roles() -> dict[str, list[dict[str, Any]]]:
    """Return the privileges of each role that the page about security prints."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    roles = map(json.loads, blocks)
    return {role["createRole"]: role["privileges"] for role in roles}


def test_counters_need_find_insert_and_update_only(guarded: GuardedMongod, clock: Clock) -> None:
    uri = guarded.grant("minimal", {"resource": COUNTERS, "actions": ["find", "insert", "update"]})
    with capture_logs() as logs:
        one, other = a_limiter(uri, clock), a_limiter(uri, clock)
        for _ in range(3):
            one.check("app")
            assert (None, None) == (one.sync().error, other.sync().error)
        other.check("app")
        for _ in range(2):
            assert (None, None) == (other.sync().error, one.sync().error)
        assert 1 == one.peek("app").remaining
        assert 1 == other.preload()
        one.close()
        other.close()

    assert ["expiry_index_missing"] * 2 == [entry["event"] for entry in logs]


def test_documented_role_of_instances_is_enough(guarded: GuardedMongod, tmp_path: Path) -> None:
    """Nothing is logged as missing, and the indexes are created."""
    uri = guarded.grant("documented", *documented_roles()["oauthRateLimit"])
    seed(tmp_path / "demo.sqlite3")
    with capture_logs() as logs:
        app = create_app(tmp_path / "demo.sqlite3", SETTINGS, mongo_uri=uri)
        try:
            assert [200, 200, 429] == [a_token(app) for _ in range(3)]
            assert 401 == a_token(app, secret="wrong")
            wait_until(lambda: _stored(uri), "a flush")
            wait_until(lambda: _heartbeats(uri), "a heartbeat")
        finally:
            app.extensions["oauth_ratelimit"].close()

    assert {"request_denied"} == {entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")}
    for name in ("ratelimits", "ratelimit_stats", "ratelimit_failures"):
        assert "expire" in guarded.indexes(name)
    assert guarded.count("ratelimit_stats", {"_id.minute": {"$exists": True}})
    assert guarded.count("ratelimit_stats", {"_id.denial": {"$exists": True}})


def test_prepared_indexes_are_found_without_the_right_to_create_them(
    guarded: GuardedMongod, run: Callable[..., Result], tmp_path: Path
) -> None:
    """An instance of the documented role without that right logs no missing index."""
    assert 0 == run("oauthRateLimitSetup", "init-db").exit_code
    privileges = [
        {**each, "actions": [action for action in each["actions"] if action != "createIndex"]}
        for each in documented_roles()["oauthRateLimit"]
    ]
    uri = guarded.grant("withoutIndexes", *privileges)
    seed(tmp_path / "demo.sqlite3")
    with capture_logs() as logs:
        app = create_app(tmp_path / "demo.sqlite3", SETTINGS, mongo_uri=uri)
        try:
            assert (200, 401) == (a_token(app), a_token(app, secret="wrong"))
            wait_until(lambda: guarded.count("ratelimit_failures", {}), "a flush")
            wait_until(lambda: _heartbeats(uri), "a heartbeat")
        finally:
            app.extensions["oauth_ratelimit"].close()

    assert [] == [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert guarded.count("ratelimit_stats", {"_id.minute": {"$exists": True}})
    assert "expire" in guarded.indexes("ratelimit_failures")


def a_token(app: Flask, secret: str = BATCH_JOBS.client_secret or "") -> int:
    """Ask for a token, and return the status."""
    auth = (BATCH_JOBS.client_id, secret)
    return app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth).status_code


def _stored(uri: str) -> bool:
    store = mongo_store(uri)
    try:
        return bool(store.read([Key(BATCH_JOBS.client_id, None)]))
    finally:
        store.close()


def _heartbeats(uri: str) -> bool:
    connection = Connection(uri)
    try:
        return connection.collection("ratelimit_stats").find_one() is not None
    finally:
        connection.close()


@pytest.fixture
def run(guarded: GuardedMongod, tmp_path: Path) -> Callable[..., Result]:
    """Runs a command as the MongoDB user with a documented role."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, "store": {"uri": "mongodb://localhost:1/oauth"}}))
    structlog.reset_defaults()

    def run(role: str, *words: str) -> Result:
        uri = guarded.grant(role, *documented_roles()[role])
        return CliRunner().invoke(command, ["--config", str(path), "--mongo-uri", uri, *words], catch_exceptions=False)

    return run


COMMANDS = {
    "oauthRateLimitSetup": [("init-db",), ("db", "upgrade"), ("db", "status")],
    "oauthRateLimitOperator": [
        ("status",),
        ("top",),
        ("show", "app"),
        ("explain", "app", "alice"),
        ("limit", "set", "app", "--user", "5/minute", *WHY),
        ("limit", "unset", "app", *WHY),
        ("trust", "add", "app", *WHY),
        ("mode", "set", "dry-run", *WHY),
        ("overrides", "--history"),
        ("reset", "app"),
        ("export", "counters"),
    ],
    "oauthRateLimitErasure": [("erase", "ann"), ("erase", "ann", "--client", "app", "--dry-run")],
}


@pytest.mark.parametrize("role", COMMANDS)
def test_documented_roles_of_operators_are_enough(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock, role: str
) -> None:
    """For every command, on an empty database and on one with counters."""
    for _ in range(2):
        results = [run(role, *words) for words in COMMANDS[role]]
        assert [0] * len(results) == [result.exit_code for result in results], [result.output for result in results]
        limiter = a_limiter(guarded.uri("root"), clock)
        limiter.check("app", "ann")
        limiter.close()


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("oauthRateLimit", ("mode", "set", "off", *WHY)),
        ("oauthRateLimit", ("init-db",)),
        ("oauthRateLimitOperator", ("erase", "ann")),
        ("oauthRateLimitOperator", ("init-db",)),
        ("oauthRateLimitErasure", ("init-db",)),
        ("oauthRateLimitSetup", ("show", "app")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_role_cannot_do_what_another_is_for(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock, role: str, words: tuple[str, ...]
) -> None:
    """MongoDB refuses, and the command says so."""
    limiter = a_limiter(guarded.uri("root"), clock)
    limiter.check("app")
    limiter.check("app", "ann")
    limiter.close()
    result = run(role, *words)

    assert 3 == result.exit_code
    assert "not authorized" in result.stderr
    assert PASSWORD not in result.output


NEIGHBOURS: dict[str, Callable[[Collection[Any]], Any]] = {
    "TTL index": lambda tokens: tokens.create_index("created", expireAfterSeconds=0),
    "create": lambda tokens: tokens.database.create_collection("tokens_too"),
    "find": lambda tokens: tokens.find_one(),
    "insert": lambda tokens: tokens.insert_one({}),
    "update": lambda tokens: tokens.update_one({}, {"$set": {"a": 1}}),
    "remove": lambda tokens: tokens.delete_one({}),
    "drop": lambda tokens: tokens.drop(),
}


@pytest.mark.parametrize("act", NEIGHBOURS.values(), ids=NEIGHBOURS)
@pytest.mark.parametrize("role", [*COMMANDS, "oauthRateLimit"])
def test_role_cannot_touch_the_collections_of_others(
    guarded: GuardedMongod, role: str, act: Callable[[Collection[Any]], Any]
) -> None:
    """An index could remove an application's tokens."""
    with closing(Connection(guarded.uri("root"))) as root:
        root.database["tokens"].insert_one({"created": None})
    uri = guarded.grant(role, *documented_roles()[role])
    with closing(Connection(uri)) as connection, pytest.raises(OperationFailure, match="not authorized"):
        act(connection.database["tokens"])


def test_erase_names_the_parts_it_may_not_read(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock
) -> None:
    limiter = a_limiter(guarded.uri("root"), clock)
    limiter.check("app", "ann")
    limiter.close()
    result = run("oauthRateLimitOperator", "erase", "ann", "--dry-run", "--json")

    assert 3 == result.exit_code
    data = json.loads(result.stdout)
    assert ({"counters", "statistics", "denials", "overrides"}, {"failures"}) == (
        set(data["found"]),
        set(data["refused"]),
    )


def test_admin_page_needs_the_documented_addition_to_change_something(
    guarded: GuardedMongod, open_page: Callable[..., Page]
) -> None:
    role = documented_roles()["oauthRateLimit"]
    page = open_page(store={"uri": guarded.grant("paged", *role)})
    asked = {"id": "app", "decision": "0123456789abcdef"}
    answers = {name: page.get(f"api/{name}", **asked).json for name in QUERIES}
    assert {} == {name: answer["problem"] for name, answer in answers.items() if "problem" in (answer or {})}
    change = {"kind": "mode", "client_id": "app", "mode": "dry-run", "reason": "ticket 4711"}
    refused = page.send("apply", change)
    assert (424, True) == (refused.status_code, "not authorized" in refused.text)

    more = {"resource": {"db": "oauth", "collection": "ratelimit_overrides"}, "actions": ["insert", "update"]}
    guarded.grant("paged", *role, more)
    wait_until(lambda: 200 == page.send("apply", change).status_code, "the right to be known")
    assert 200 == page.send("remove", change).status_code


def test_hits_wait_for_the_right_to_write(guarded: GuardedMongod, clock: Clock) -> None:
    uri = guarded.grant("reader", {"resource": COUNTERS, "actions": ["find"]})
    with capture_logs() as logs:
        limiter = a_limiter(uri, clock)
        for _ in range(3):
            assert limiter.check("app").allowed
            assert limiter.sync().error is not None
        guarded.grant("reader", {"resource": COUNTERS, "actions": ["find", "insert", "update"]})
        wait_until(lambda: limiter.sync().error is None, "the right to be known")
        limiter.close()

    assert ["expiry_index_missing", "flush_failed", "flush_recovered"] == [entry["event"] for entry in logs]
    store = mongo_store(uri)
    assert 3 == sum(store.read([Key("app", None)])[Key("app", None)].hits[Series(360)].values())
    store.close()


@pytest.fixture
def a_share() -> Share:
    """Something for the statistics."""
    return Share(ClientMinute("app", 2_000_000_040, {Source("client", "none"): Tally(1)}), is_complete=True)


def test_refused_write_names_the_right(guarded: GuardedMongod, a_share: Share) -> None:
    uri = guarded.grant("counting", {"resource": COUNTERS, "actions": ["find", "insert", "update"]})
    with closing(Connection(uri)) as connection, pytest.raises(StoreRejected, match="not authorized"):
        StatisticsStore(connection).put("one-0", [a_share], keep_s=60.0)


def test_statistics_work_without_indexes(guarded: GuardedMongod, a_share: Share) -> None:
    uri = guarded.grant("writing", {"resource": STATISTICS, "actions": ["find", "insert", "update"]})
    with closing(Connection(uri)) as connection, capture_logs() as logs:
        statistics = StatisticsStore(connection)
        for _ in range(2):
            assert [] == statistics.put("one-0", [a_share], keep_s=60.0)
        assert [a_share.minute] == list(statistics.minutes(0, 4e9))

    assert ["expiry_index_missing", "minute_index_missing"] == [entry["event"] for entry in logs]


@pytest.mark.usefixtures("quick_ending")
@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://root:{password}@{address}/oauth?authSource=admin",
        "mongodb://root:{password}@127.0.0.1:1/oauth?serverSelectionTimeoutMS=50",
        "mongodb://root:{password}@{address}/oauth?authMechanism=NONSENSE",
        "mongodb://root:{password}@{address}/oauth?tlsCAFile=/nowhere&tls=true",
        "mongodb://root:{password}@{address}:99999/oauth",
        "mongodb://root:{password}/{address}/oauth",
        "mongodb://root:12:{password}@{address}/oauth",
        "mongodb://{password}",
        "mongodb://root:12/{password}@{address}/oauth",
        "mongodb://{address}/oauth?w={password}&wtimeoutMS={password}&maxPoolSize={password}",
        "mongodb+srv://root:{password}@a.invalid:27017/oauth",
    ],
)
def test_password_is_in_no_message(
    guarded: GuardedMongod, clock: Clock, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder, uri: str
) -> None:
    """Whatever is wrong with a connection string: no log, no error, no warning repeats it."""
    secret = "wrong-horse"
    said: list[str] = []
    text = uri.format(password=secret, address=guarded.address)
    with capture_logs() as logs, caplog.at_level(logging.WARNING):
        try:
            limiter = a_limiter(text, clock, timeout="300ms")
            limiter.check("app")
            said.append(repr(limiter.sync()))
            limiter.preload()
            limiter.close()
        except RateLimitError as exc:
            said.append(_chain(exc))
        connection = Connection(text)
        try:
            assert connection.client
        except RateLimitError as exc:
            said.append(_chain(exc))
        connection.close()
    said += [repr(logs), caplog.text, *(str(warning.message) for warning in recwarn)]

    assert secret not in "\n".join(said)


def _chain(exc: BaseException | None) -> str:
    """Return what a traceback would say."""
    messages = []
    while exc is not None:
        messages.append(f"{exc!r} {exc}")
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return "\n".join(messages)
