"""Documents that anybody could have put under the keys of ours hide no change of an operator.

A command takes effect on instances that ran before and on those that start, or it exits with 3 and names the
document that is stored there.
"""

import time
from contextlib import ExitStack, closing
from typing import Any

from bson import Int64
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import OverrideCache
from oauth_ratelimit.config.settings import ReuseSettings
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import apply_overrides
from oauth_ratelimit.core.policy import LimitKind, PolicySet
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.erasure import PARTS, Erasure, Person
from oauth_ratelimit.store.mongo.heartbeats import RevocationNotices
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.token_cache import KeptToken, TokenCache
from testbed.clock import Clock
from tests.cli.conftest import WHY, Terminal, terminal
from tests.support.bson_values import Content, bodies, identities, put_alone, records, values
from tests.support.limiters import in_flight

__all__ = ["terminal"]

APP = {"kind": "trusted", "clientId": "app"}
MODE = {"kind": "mode", "clientId": None}
LIMIT = {"kind": "limit", "clientId": "app", "limitKind": "user"}
RESETS = {"kind": "counters", "clientId": "app"}
NOTICE = {"revocation": "app"}
ALICE = {"clientId": "app", "username": "alice"}
GUESS = {"clientId": "app", "username": "192.0.2.7 alice", "scope": "failures:user"}
COUNTED = {"version": Int64(405), "requestCounters": {"6": {"1999999998": 3}}}

COMMANDS = {
    "mode": ("mode", "set", "dry-run", *WHY),
    "trust": ("trust", "add", "app", "--for", "1h", *WHY),
    "limit": ("limit", "set", "app", "--limit", "7/minute", "--kind", "user", "--yes", *WHY),
    "unset": ("limit", "unset", "app", *WHY),
    "reset": ("reset", "app", "alice", "--yes", *WHY),
    "forget": ("forget-tokens", "app"),
    "erase": ("erase", "--user", "alice", "--yes"),
}

minute = st.integers(0, 3).map(lambda ago: Int64((time.time() // 60 - ago) * 60))
places = st.one_of(
    st.tuples(st.just("ratelimit_overrides"), st.sampled_from([MODE, APP, LIMIT, RESETS, "revision"]), records),
    st.tuples(st.just("ratelimit_stats"), st.sampled_from([NOTICE, {"revocation": ""}]), records),
    st.tuples(
        st.just("ratelimit_stats"),
        st.one_of(
            st.fixed_dictionaries({"clientId": st.just("app"), "minute": minute}),
            st.fixed_dictionaries({"instance": st.sampled_from(["a", "node-1:7:aa"])}),
            st.fixed_dictionaries({"denial": st.sampled_from(["0" * 16, "f" * 16])}),
            st.fixed_dictionaries({"history": st.sampled_from(["instances", "configurations"])}),
        ),
        records,
    ),
    st.tuples(st.sampled_from(["ratelimits", "ratelimit_failures"]), st.sampled_from([ALICE, GUESS]), bodies),
    st.tuples(st.sampled_from(["ratelimit_overrides", "ratelimit_stats", "ratelimits"]), identities, records),
)
sizes = st.sampled_from([0, 0, 0, 9_000, 40_000, 3_000_000])
planted = st.tuples(places, sizes, st.dictionaries(st.sampled_from(["active", "users", "history"]), values))
contents = st.lists(planted.map(lambda each: (*each[0][:2], {**each[0][2], **each[2], "more": "x" * each[1]})))


class Instance:
    """What a process would do that has run all the time, and that shares a database with the commands."""

    def __init__(self, uri: str, undo: ExitStack) -> None:
        connection = undo.enter_context(closing(Connection(uri)))
        self.overrides = OverrideCache(OverrideStore(connection), clock=lambda: 0.0)
        self.tokens = TokenCache(ReuseSettings, may_reuse=bool, notices=RevocationNotices(connection))
        self.limiter = undo.enter_context(
            closing(Limiter(load_config({"mode": "enforce", "store": {"uri": uri}}), clock=Clock(time.time())))
        )
        self.limiter.check("app", "alice")
        self.limiter.sync()
        issue = self.tokens.begin("app", b"")
        assert issue is not None
        self.tokens.end(issue, KeptToken(issue.begun_s, b"{}", 3600.0))

    def policies(self) -> PolicySet:
        self.overrides.refresh()
        return apply_overrides(self.limiter.settings.policies, self.overrides.overrides)

    @property
    def has_token(self) -> bool:
        self.tokens.run()
        return bool(self.tokens._clients["app"].tokens)

    def remaining(self, username: str) -> int:
        for _ in range(2):  # between two cycles, so that it reads all keys
            self.limiter.sync()
        return self.limiter.peek("app", username).remaining


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(content=contents)
@example(content=[("ratelimit_overrides", each, {"active": True, "more": "x" * 40_000}) for each in (MODE, APP, LIMIT)])
@example(content=[("ratelimit_overrides", each, {"history": ["x" * 15_000_000]}) for each in (MODE, RESETS)])
@example(content=[("ratelimit_stats", NOTICE, {"stamp": 5, "more": "x" * 15_000_000})])
@example(content=[("ratelimits", ALICE, {**COUNTED, "writers": 5}), ("ratelimit_overrides", "revision", {"value": 7})])
@example(content=[("ratelimits", each, {}) for each in ({**ALICE, "more": 1}, dict(reversed(ALICE.items())))])
def test_change_takes_effect_or_is_refused(terminal: Terminal, content: Content) -> None:
    uri: str = terminal.settings["store"]["uri"]
    put_alone(uri, content)
    with ExitStack() as undo, capture_logs():
        instance = Instance(uri, undo)
        instance.policies()
        had_token = instance.has_token
        unsent = in_flight(instance.limiter, Key("app", "alice"))  # MongoDB may remove a damaged document at any time
        results = {name: terminal.run(*COMMANDS[name]) for name in ("mode", "trust", "limit", "reset", "forget")}
        policies = instance.policies()
        assert policies == apply_overrides(instance.limiter.settings.policies, overrides_of(uri, undo).read())
        is_seen = {
            "mode": policies.mode is Mode.DRY_RUN,
            "trust": policies.trusts("app"),
            "limit": [7] == [each.limit for each in policies.limits_at("app")[1].user],
            "reset": bool(unsent) or instance.remaining("alice") == instance.remaining("nobody"),
            "forget": not (had_token and instance.has_token),
        }
        results["unset"] = terminal.run(*COMMANDS["unset"])
        is_seen["unset"] = LimitKind.USER not in {each.target.limit_kind for each in overrides_of(uri, undo).read()}
        undo.close()  # what an instance sends meanwhile is the matter of other tests
        results["erase"] = terminal.run(*COMMANDS["erase"])
        is_seen["erase"] = results["erase"].exit_code == 0 and not left_of_alice(uri)  # else it may not be readable

    if results["limit"].exit_code == 3 and results["unset"].exit_code == 1:
        del results["unset"]  # there was nothing to remove
    for name, result in results.items():
        assert result.exit_code in (0, 3), result.output
        assert is_seen[name] or result.exit_code == 3, f"{name}: {result.output}"
        assert result.exit_code == 0 or "Error: " in result.stderr


def overrides_of(uri: str, undo: ExitStack) -> OverrideStore:
    return OverrideStore(undo.enter_context(closing(Connection(uri))))


def left_of_alice(uri: str) -> Any:
    person = Person(("alice",), ("alice",), ("alice",))
    with closing(Connection(uri)) as connection, MongoClient[dict[str, Any]](uri) as client:
        erasure = Erasure(connection, collection="ratelimits", person=person)
        documents = client.get_default_database()["ratelimits"]
        named = documents.count_documents({"_id.username": "alice"})
        return named or {part: count for part in PARTS if (count := erasure.count(part, remove=False))}
