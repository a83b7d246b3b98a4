"""A MongoDB that asks for a password and grants no more than needed."""

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.admin.blueprint import PARTS
from oauth_ratelimit.background import live_settings
from oauth_ratelimit.background.health import Health
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.failed_auth import NAMING_SCOPES
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.errors import RateLimitError, StoreRejected
from oauth_ratelimit.store.mongo import client
from oauth_ratelimit.store.mongo.client import FAILURES, MIGRATIONS, OVERRIDES, STATISTICS, Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from testbed.clock import Clock, wait_until
from testbed.oauth_server.app import create_app
from testbed.oauth_server.database import BATCH_JOBS
from tests.admin.conftest import Page, open_page
from tests.docs.blocks import blocks_of
from tests.support.apps import app_limiter_of
from tests.support.guarded_mongod import PASSWORD, GuardedMongod, guarded, guarded_server
from tests.support.limiters import limiter_of
from tests.support.stores import mongo_store

pytestmark = pytest.mark.mongo

__all__ = ["guarded", "guarded_server", "open_page"]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
COUNTERS = {"db": "oauth", "collection": "ratelimits"}
SETTINGS = {
    "mode": "enforce",
    "host": "off",  # the tests have different databases
    "sync": {"interval": "100ms"},
    # Tokens are kept, so notices of revocations are read.
    "limits": {"client": ["2/hour"], "client_total": [{"limit": 1000, "window": "1h", "on_limit": "reuse"}]},
    "guard": {"mode": "enforce"},
}
WHY = ("--reason", "ticket 4711", "--operator", "ann")


def sharing(uri: str, clock: Clock, *, timeout: str = "60s") -> Limiter:
    return limiter_of({"store": {"uri": uri, "timeout": timeout}, "limits": {"client": ["5/hour"]}}, clock=clock)


def documented_roles() -> dict[str, list[dict[str, Any]]]:
    """Return the privileges of each role that the page about security prints."""
    roles = [json.loads(block.text) for block in blocks_of(PAGE) if block.language == "json"]
    return {role["createRole"]: role["privileges"] for role in roles}


def privileges_without(lacked: tuple[str, str], role: str) -> list[dict[str, Any]]:
    privileges = [
        {**each, "actions": [word for word in each["actions"] if (each["resource"]["collection"], word) != lacked]}
        for each in documented_roles()[role]
    ]
    return [each for each in privileges if each["actions"]]


@pytest.mark.parametrize("is_prepared", [False, True], ids=["indexes are created", "indexes are prepared"])
def test_documented_role_of_instances_is_enough(
    guarded: GuardedMongod, run: Callable[..., Result], database: Path, is_prepared: bool
) -> None:
    """Nothing is reported as missing. Prepared indexes are found without the right to create them."""
    privileges = documented_roles()["oauthRateLimit"]
    if is_prepared:
        assert 0 == run("oauthRateLimitSetup", "init-db").exit_code
        privileges = [{**each, "actions": [*{*each["actions"]} - {"createIndex"}]} for each in privileges]
    uri = guarded.grant(f"instance{is_prepared}", *privileges)
    with capture_logs() as logs:
        app = create_app(database, SETTINGS, mongo_uri=uri)
        try:
            assert [200, 200] == [a_token(app) for _ in range(2)]
            wait_until(lambda: 429 == a_token(app), "a denial, once a slow MongoDB has sent the overrides")
            assert 401 == a_token(app, secret="wrong")
            wait_until(lambda: guarded.database["ratelimit_failures"].count_documents({}), "a flush")
            wait_until(lambda: guarded.database["ratelimit_stats"].count_documents({}), "a heartbeat")
            assert app_limiter_of(app).health().refused is None
        finally:
            app.extensions["oauth_ratelimit"].close()

    found = {entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")}
    expected = {"authlib_vulnerable", "request_would_be_denied"}  # the oldest Authlib; until the overrides are read
    assert {"request_denied"} == found - expected
    for name in ("ratelimits", "ratelimit_stats", "ratelimit_failures"):
        assert guarded.database[name].count_documents({})
        assert "expire" in guarded.database[name].index_information()
    for record in ("minute", "denial"):
        assert guarded.database["ratelimit_stats"].count_documents({f"_id.{record}": {"$exists": True}})


@pytest.mark.parametrize(
    "lacked",
    [
        (each["resource"]["collection"], action)
        for each in documented_roles()["oauthRateLimit"]
        for action in each["actions"]
        if action != "createIndex"
    ],
    ids=" ".join,
)
def test_each_documented_right_of_instances_is_needed(
    guarded: GuardedMongod, database: Path, monkeypatch: pytest.MonkeyPatch, lacked: tuple[str, str]
) -> None:
    """Without it, log and health say what was refused, and so does the heartbeat if it can be written.

    Tokens are issued. The indexes may be made by another role.
    """
    monkeypatch.setattr(live_settings, "GRACE_S", 60.0)  # a busy machine reads overrides late
    uri, collection = guarded.grant("lacking", *privileges_without(lacked, "oauthRateLimit")), lacked[0]

    def is_shown(found: Health | Heartbeat) -> bool:
        return f" on {collection}" in (found.refused or "")

    with capture_logs() as logs:
        app = create_app(database, SETTINGS, mongo_uri=uri)
        try:
            assert [200, 200, 429] == [a_token(app) for _ in range(3)]
            assert 401 == a_token(app, secret="wrong")
            wait_until(lambda: "Unauthorized (13)" in repr(problems_in(logs)), "what was refused")
            health = app_limiter_of(app).health
            wait_until(lambda: is_shown(health()), "what was refused in the health of the process")
            if collection == "ratelimits":
                wait_until(lambda: health().last_error == "Unauthorized (13)", "the last error")
            if collection != "ratelimit_stats" or lacked[1] == "find":
                with closing(Connection(guarded.uri("root"))) as connection:
                    beats = HeartbeatStore(connection)
                    wait_until(lambda: any(map(is_shown, beats.read(time.time()))), "it in the heartbeat")
        finally:
            app.extensions["oauth_ratelimit"].close()


def problems_in(logs: Sequence[Any]) -> list[Any]:
    return [entry for entry in logs if entry["log_level"] in ("warning", "error")]


def a_token(app: Flask, secret: str = BATCH_JOBS.client_secret or "") -> int:
    auth = (BATCH_JOBS.client_id, secret)
    return app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth).status_code


@pytest.fixture
def run(guarded: GuardedMongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command as the MongoDB user with a documented role, whose password no argument shows."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, "store": {"uri": "mongodb://localhost:1/oauth"}}))
    monkeypatch.setattr("oauth_ratelimit.cli.database.sleep", lambda _seconds: None)

    def run(role: str, *words: str, privileges: Sequence[dict[str, Any]] = ()) -> Result:
        uri = guarded.grant(role, *(privileges or documented_roles()[role]))
        monkeypatch.setenv("OAUTH_RATELIMIT_MONGO_URI", uri)
        return CliRunner().invoke(command, ["--config", str(path), *words], catch_exceptions=False)

    return run


COMMANDS = {
    "oauthRateLimitSetup": [("init-db",), ("init-db", "--check")],
    "oauthRateLimitOperator": [
        ("status",),
        ("show",),
        ("show", "app"),
        ("explain", "app", "alice"),
        ("limit", "set", "app", "--limit", "5/minute", "--kind", "user", "--yes", *WHY),
        ("limit", "unset", "app", *WHY),
        ("trust", "add", "app", *WHY),
        ("mode", "set", "dry-run", *WHY),
        ("overrides", "--history"),
        ("reset", "app", "--yes"),
        ("forget-tokens", "app"),
    ],
    "oauthRateLimitErasure": [
        ("erase", "--user", "ann", "--yes"),
        ("erase", "--user", "ann", "--yes", "--client", "app", "--dry-run"),
    ],
}


@pytest.mark.parametrize("role", COMMANDS)
def test_documented_roles_of_operators_are_enough(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock, role: str
) -> None:
    for _ in range(2):
        results = [run(role, *words) for words in COMMANDS[role]]
        assert [0] * len(results) == [result.exit_code for result in results], [result.output for result in results]
        limiter = sharing(guarded.uri("root"), clock)
        limiter.check("app", "ann")
        limiter.close()


RIGHTS = [
    pytest.param(role, (resource, action), id=f"{role}: {action} {resource}")
    for role in COMMANDS
    for resource, actions in ((each["resource"]["collection"], each["actions"]) for each in documented_roles()[role])
    for action in actions
]
RECORDS_OF_ANN: dict[str, dict[str, Any]] = {
    "ratelimits": {"_id": {"clientId": "app", "username": "ann"}},
    "ratelimit_failures": {"_id": {"clientId": "app", "username": "192.0.2.1 ann", "scope": NAMING_SCOPES[0]}},
    "ratelimit_overrides": {
        "_id": {"kind": "counters", "clientId": "app"},
        "history": [{"action": "reset", "username": "ann"}],
    },
    "ratelimit_stats": {"_id": {"denial": "0123456789abcdef"}, "clientId": "app", "username": "ann"},
}


@pytest.mark.parametrize(("role", "lacked"), RIGHTS)
def test_each_documented_right_of_operators_is_needed(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock, role: str, lacked: tuple[str, str]
) -> None:
    if role != "oauthRateLimitSetup":
        with closing(sharing(guarded.uri("root"), clock)) as limiter:
            limiter.check("app")
        for name, record in RECORDS_OF_ANN.items():
            guarded.database[name].insert_one(dict(record))
    results = [run(role, *words, privileges=privileges_without(lacked, role)) for words in COMMANDS[role]]

    said = "".join(result.output for result in results)
    assert 3 in [result.exit_code for result in results], said
    assert "Unauthorized (13)" in said
    assert PASSWORD not in said


def test_documented_roles_name_the_collections_of_this_package() -> None:
    """MongoDB refuses all else. An index on another collection could remove an application's tokens."""
    own = {COUNTERS["collection"], FAILURES, STATISTICS, OVERRIDES, MIGRATIONS}
    for privileges in documented_roles().values():
        for each in privileges:
            name = each["resource"]["collection"]
            assert name in own or (name, each["actions"]) == ("", ["listCollections"])


def test_erase_names_the_parts_it_may_not_read(
    guarded: GuardedMongod, run: Callable[..., Result], clock: Clock
) -> None:
    limiter = sharing(guarded.uri("root"), clock)
    limiter.check("app", "ann")
    limiter.close()
    result = run("oauthRateLimitOperator", "erase", "--user", "ann", "--dry-run", "--json")

    assert 3 == result.exit_code
    data = json.loads(result.stdout)
    assert ({"counters", "statistics", "denials", "overrides"}, {"failures"}) == (
        set(data["found"]),
        set(data["refused"]),
    )


def test_erase_says_what_it_removed_although_it_may_not_read_heartbeats(
    guarded: GuardedMongod, run: Callable[..., Result]
) -> None:
    guarded.database["ratelimits"].insert_one(dict(RECORDS_OF_ANN["ratelimits"]))
    role = "oauthRateLimitErasure"
    result = run(
        role,
        "erase",
        "--user",
        "ann",
        "--yes",
        "--json",
        privileges=privileges_without(("ratelimit_stats", "find"), role),
    )

    assert 3 == result.exit_code
    data = json.loads(result.stdout)
    assert (1, True) == (data["removed"]["counters"], "heartbeats" in data["refused"])


def test_admin_page_needs_the_documented_addition_to_change_something(
    guarded: GuardedMongod, open_page: Callable[..., Page]
) -> None:
    role = documented_roles()["oauthRateLimit"]
    page = open_page(store={"uri": guarded.grant("paged", *role)})
    asked = {"id": "app", "decision": "0123456789abcdef"}
    answers = {name: page.get(f"part/{name}", **asked).text for name in PARTS}
    assert {} == {path: answer for path, answer in answers.items() if "problem" in answer}
    change = {"kind": "mode", "client_id": "app", "mode": "dry-run", "reason": "ticket 4711"}
    refused = page.send("apply", change)
    assert (424, True) == (refused.status_code, "Unauthorized (13)" in refused.text)

    more = {"resource": {"db": "oauth", "collection": "ratelimit_overrides"}, "actions": ["insert", "update"]}
    guarded.grant("paged", *role, more)
    wait_until(lambda: 200 == page.send("apply", change).status_code, "the right to be known")
    assert 200 == page.send("remove", change).status_code


def test_address_without_a_user_does_not_connect_anew_for_each_operation(
    guarded: GuardedMongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOGIN_INTERVAL_S", math.inf)
    with closing(Connection(f"mongodb://{guarded.address}/oauth")) as connection:
        used = []
        for _ in range(4):
            used.append(connection.client)
            with pytest.raises(StoreRejected, match=r"Unauthorized \(13\)"):
                MongoStore(connection).read([Key("app", None)])
        assert 2 == len({*map(id, used)}), "the first may have been of a user that was dropped"


def test_hits_wait_for_the_right_to_write(guarded: GuardedMongod, clock: Clock) -> None:
    """The log names what was refused by code and operation: MongoDB's text repeats the names of users."""
    uri = guarded.grant("reader", {"resource": COUNTERS, "actions": ["find"]})
    with capture_logs() as logs:
        limiter = sharing(uri, clock)
        for _ in range(3):
            assert limiter.check("app").allowed
            limiter.check("app", "kim-the-user")
            error = limiter.sync().error
            assert error is not None
            assert "Unauthorized (13)" == error.code
        guarded.grant("reader", {"resource": COUNTERS, "actions": ["find", "insert", "update"]})
        wait_until(lambda: limiter.sync().error is None, "the right to be known")
        limiter.close()

    assert ["flush_failed", "expiry_index_missing", "flush_recovered"] == [entry["event"] for entry in logs]
    assert "MongoDB refused update on ratelimits: Unauthorized (13)" == logs[0]["error"]
    assert "kim-the-user" not in f"{logs} {_chain(error)}"
    store = mongo_store(uri)
    assert 3 == sum(store.read([Key("app", None)])[Key("app", None)].hits[Series(360)].values())
    store.close()


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
            limiter = sharing(text, clock, timeout="300ms")
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
