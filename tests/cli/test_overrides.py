"""limit, mode, trust, reset and overrides."""

import re
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from pymongo.errors import ExecutionTimeout

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection
from oauth_ratelimit.store.mongo.counters import CounterDocuments
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.store.mongo.overrides import MAX_OVERRIDES, OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import WHY, Terminal, send_heartbeat

SET_USER_LIMIT = ("limit", "set", "app", "--limit", "1/second", "--kind", "user", "--yes")


def test_limits_are_set_and_removed_by_kind_and_for_everybody(terminal: Terminal, overrides: OverrideStore) -> None:
    (data,) = terminal.data("limit", "set", "--everybody", "--limit", "20000/minute", "--kind", "client", "--yes", *WHY)
    assert ("limit", None, ["client: 20000/minute"]) == (data["kind"], data["client_id"], data["limits"])
    tiers = ("--limit", "5/second", "--limit", "9/minute", "--kind", "client", "--for", "7d")
    output = terminal.ok("limit", "set", "app", *tiers, "--yes", *WHY)
    terminal.ok("limit", "set", "--client", "app", "--limit", "none", "--kind", "user", "--yes", *WHY)
    assert "Takes effect on every instance within 2 s." in output
    assert [("everybody", "20000/minute"), ("app", "9/minute"), ("app", "limit")] == [
        (line.split()[2], re.split("no end|20..-", line)[0].split()[-1])
        for line in terminal.ok("limit", "list").splitlines()[1:]
    ]

    assert "1 override removed" in terminal.ok("limit", "unset", "app", "--kind", "user", *WHY)
    assert {"removed_count": 1} == terminal.data("limit", "unset", "--everybody", *WHY)
    (override,) = overrides.read()
    assert Target(OverrideKind.LIMIT, "app", LimitKind.CLIENT) == override.target
    assert Policy("client-1s", 5, Window.of(1)) == override.policies[0]
    assert ("ann", "ticket 4711") == (override.author, override.reason)
    assert override.made_at_s == pytest.approx(time.time(), abs=60)
    assert 7 * 86_400 == pytest.approx((override.until_s or 0) - override.made_at_s)


@pytest.mark.parametrize(
    ("before", "words", "hint"),
    [
        (("trust", "add", "app"), SET_USER_LIMIT, "'app' is a trusted client"),
        (
            ("mode", "set", "dry-run"),
            ("mode", "set", "enforce", "--client", "app", "--yes", "--json"),
            "app stays in mode dry-run, because this comes first: override by ann: ticket 4711.",
        ),
    ],
)
def test_change_without_an_effect_says_why(
    terminal: Terminal, before: tuple[str, ...], words: tuple[str, ...], hint: str
) -> None:
    terminal.run(*before, *WHY)

    assert hint in terminal.run(*words, *WHY).stderr


def test_trust_is_added_listed_and_removed_and_the_configuration_trusts_on(terminal: Terminal) -> None:
    terminal.ok("trust", "add", "batch", *WHY)
    assert [("batch", "ann", None)] == [
        (entry["client_id"], entry["by"], entry["until"]) for entry in terminal.data("trust", "list")
    ]
    terminal.ok("trust", "remove", "batch", *WHY)
    assert [] == terminal.data("trust", "list")
    assert ["No override trusts a client."] == terminal.ok("trust", "list").splitlines()
    result = terminal.run("trust", "remove", "mobile-1", *WHY)
    assert 1 == result.exit_code
    assert ["Still trusted by the configuration: mobile-*", "No such override."] == result.stderr.splitlines()


def test_mode_is_set_for_everybody_or_one_client_and_removed(terminal: Terminal, overrides: OverrideStore) -> None:
    terminal.ok("trust", "add", "batch", *WHY)
    assert "No override changes the mode." == terminal.ok("mode").splitlines()[-1], "another override does not count"
    assert ["No override changes a limit."] == terminal.ok("limit", "list").splitlines()
    terminal.ok("trust", "remove", "batch", *WHY)
    assert "enforce" == terminal.ok("mode").splitlines()[0]
    terminal.ok("mode", "set", "dry-run", *WHY)
    terminal.ok(*SET_USER_LIMIT, *WHY)
    changed = r"^Last change of a mode: \S+Z: mode dry-run for everybody \(ann\)\.$"
    assert re.search(changed, terminal.ok("mode"), re.M), "a later change of a limit is none of a mode"
    terminal.ok("limit", "unset", "app", *WHY)
    terminal.ok("mode", "set", "off", "--client", "app", *WHY)
    assert {None: Mode.DRY_RUN, "app": Mode.OFF} == {
        override.target.client_id: override.mode for override in overrides.read()
    }
    data = terminal.data("mode")
    assert ("dry-run", 2) == (data["mode"], len(data["overrides"]))

    terminal.ok("mode", "unset", *WHY)
    assert "enforce" == terminal.ok("mode").splitlines()[0]
    terminal.ok("mode", "unset", "--client", "app", *WHY)
    assert () == overrides.read()


def record(
    connection: Connection, *, minutes_ago: int = 2, reuse: int = 0, grant: str = "password", **over: int
) -> None:
    """Record 100 requests of each client in one minute, so many of them over a limit in a dry run."""
    minute_s = int(time.time() // 60 - minutes_ago) * 60
    source = Source("user", grant)
    tallies = {name: Tally(100 - count, would_deny=count, would_reuse=reuse) for name, count in over.items()}
    users = (UserLoad("alice", 100),)
    shares = [ClientMinute(name, minute_s, {source: tally}, users=users) for name, tally in tallies.items()]
    StatisticsStore(connection).put(f"one-{grant}", shares, keep_s=86_400.0)  # a share is written whole


@pytest.mark.parametrize(
    ("config", "is_recorded", "reason"),
    [
        ({"mode": "dry-run"}, False, "No dry run shows whom these limits deny. Add --canary 5"),
        ({"mode": "off"}, True, "No dry run shows whom these limits deny"),
        ({"mode": "dry-run", "canary": {"percent": 9}}, True, "A canary is active: 9 % of the clients. Add --canary 9"),
        ({"mode": "enforce", "canary": {"instances": ["a"]}}, True, "A canary is active: instances a. Add --canary 5"),
        ({"surprise": 1}, True, "invalid, so nobody knows whether it has a canary. Add --canary 5"),
        ({"mode": "dry-run"}, True, "Enforce limits for everybody? There is no terminal to ask on; add --yes"),
    ],
)
def test_nobody_enforces_for_everybody_by_accident(
    terminal: Terminal,
    overrides: OverrideStore,
    connection: Connection,
    config: dict[str, object],
    is_recorded: bool,
    reason: str,
) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, **config}))
    if is_recorded:
        record(connection, shop=1)
    result = terminal.run("mode", "set", "enforce", *WHY)

    assert (2, True) == (result.exit_code, reason in " ".join(result.stderr.split())), result.stderr
    assert () == overrides.read()


def test_enforcing_shows_whom_it_denies_and_takes_its_share_along(
    terminal: Terminal, overrides: OverrideStore, connection: Connection
) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run", "canary": {"percent": 1}}))
    record(connection, shop=3, calm=0, **{f"app-{number}": 9 for number in range(6)})
    terminal.ok("mode", "set", "enforce", "shop", "--yes", *WHY)  # so it is denied already
    everybody = terminal.run("mode", "set", "enforce", "--canary", "100", "--yes", *WHY)
    assert [
        "In the last hour this would have denied 54 of 800 requests, of 6 of 8 clients:",
        *[f"  app-{number}: 9 of 100 requests" for number in range(5)],
        "  and 1 more",
    ] == everybody.stderr.splitlines()[:-1]
    terminal.ok("mode", "unset", "shop", *WHY)
    terminal.ok("mode", "set", "dry-run", *WHY)

    assert "would have hit nobody" in terminal.run("mode", "set", "enforce", "calm", "--yes", *WHY).stderr
    terminal.ok("mode", "unset", "calm", *WHY)
    terminal.ok("mode", "set", "enforce", "--canary", "40", "--yes", *WHY)
    (override,) = overrides.read()
    canaries = [terminal.ok("explain", name).partition("% of the clients, ")[2].split()[0] for name in ("shop", "calm")]
    assert (Mode.ENFORCE, 40.0, ["without", "with"]) == (override.mode, override.canary_percent, canaries)
    expected = "override by ann: ticket 4711; the configuration has dry-run"
    assert ["enforce for 40 % of the clients", f"From {expected}."] == terminal.ok("mode").splitlines()[:2]
    for command in ("status", "rollout"):
        assert expected in terminal.ok(command)
        assert "dry-run" == terminal.data(command)["file_mode"]


@pytest.mark.parametrize("amount", ["10/minute", "20/minute"], ids=["the same", "another"])
def test_limit_in_place_of_one_with_another_end_says_so_before_it_asks(terminal: Terminal, amount: str) -> None:
    command = ("limit", "set", "app", "--kind", "user", *WHY, "--limit")
    terminal.ok(*command, "10/minute", "--for", "2h", "--yes")
    before, _, end = terminal.run(*command, amount).stderr.partition("This replaces")

    assert re.match(" the override by ann, which ends at 20.*Z, with one that has no end[.]\nUsage: ", end)
    assert (amount == "10/minute") == (before == "")


def test_change_that_does_not_ask_says_what_end_it_replaces(terminal: Terminal) -> None:
    for command in (("mode", "set", "dry-run"), ("mode", "set", "off", "app"), ("trust", "add", "app")):
        assert "This replaces" not in terminal.run(*command, *WHY).stderr
        assert "This replaces" not in terminal.run(*command, *WHY).stderr, "it still has no end"
        limited, endless = (terminal.run(*command, *more, *WHY).stderr for more in (("--for", "2h"), ()))
        assert re.search("override by ann, which has no end, with one that ends at 20.*Z[.]\n", limited)
        assert re.search("override by ann, which ends at 20.*Z, with one that has no end[.]\n", endless)


def test_enforcing_what_is_enforced_asks_and_writes_nothing(terminal: Terminal, overrides: OverrideStore) -> None:
    """Unless the override of that would end at another time."""
    command = ("mode", "set", "enforce", "--canary", "100", *WHY)
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "enforce"}))
    expected = (0, "", "This applies already, so nothing changes.\n")
    for words in (command, command[:3] + WHY):
        result = terminal.run(*words)
        assert expected == (result.exit_code, result.stdout, result.stderr)
    assert ([], ()) == (terminal.data(*command), overrides.read())

    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run"}))
    terminal.ok(*command, "--for", "1d", "--yes")
    terminal.ok(*command, "--yes")
    (written,) = overrides.read()
    assert written.until_s is None, "it has a new end"
    assert ["ann"] == [each["by"] for each in terminal.data(*command, "--operator", "bob")]
    assert (written,) == overrides.read()


def test_enforcing_counts_only_grant_types_that_it_concerns(terminal: Terminal, connection: Connection) -> None:
    limits = {"limits": {"user": ["5/hour", {"limit": 3, "window": 60, "mode": "dry-run", "name": "trial"}]}}
    grants = {"grants": {"password": {"mode": "dry-run"}, "implicit": {"mode": "enforce"}}}
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run", **grants, **limits}))
    command = ("mode", "set", "enforce", "--canary", "100", "--yes", *WHY)
    record(connection, shop=40)
    assert "would have hit nobody: no request that it concerns was over" in terminal.run(*command).stderr
    terminal.ok("mode", "unset", *WHY)
    record(connection, grant="refresh_token", shop=5)
    error = terminal.run(*command).stderr
    assert "this would have denied 5 of 200 requests, of 1 of 1 client" in error
    assert "only be over a limit that stays in a dry run of its own: trial." in error


def test_enforcing_shows_how_many_denials_reuse_spares(terminal: Terminal, connection: Connection) -> None:
    limits = {"limits": {"client": [{"limit": 5, "window": 60, "on_limit": "reuse"}]}}
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run", **limits}))
    record(connection, shop=40, reuse=38)
    command = ("mode", "set", "enforce", "--canary", "100", "--yes", *WHY)
    assert [
        "In the last hour this would have denied 40 of 100 requests, of 1 of 1 client:",
        "  shop: 40 of 100 requests",
        "Of these, on_limit: reuse would have answered 38 with the token that the client had.",
    ] == terminal.run(*command).stderr.splitlines()[:-1]


def test_impact_of_a_time_that_is_not_summed_up_says_so(terminal: Terminal, connection: Connection) -> None:
    record(connection, shop=3)
    command = ("mode", "set", "enforce", "shop", "--yes", *WHY)
    assert "not summed up yet" not in terminal.run(*command).stderr
    terminal.ok("mode", "unset", "shop", *WHY)
    record(connection, shop=3, minutes_ago=30)
    assert "Some of that time is not summed up yet, so these numbers are too low." in terminal.run(*command).stderr


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("40/minute", r"With client_total at \d+/hour and user at 130/minute: none denied in the next 1 h 10 min."),
        ("1/second", "trust the bounds alone"),
        ("200/minute", r"With client_total at \d+/hour: none denied in the next 1 h 10 min."),
    ],
)
def test_new_limit_shows_what_it_does_before_it_asks(
    terminal: Terminal, overrides: OverrideStore, connection: Connection, limit: str, words: str
) -> None:
    record(connection, shop=0, other=0)
    result = terminal.run("limit", "set", "shop", "--limit", limit, "--kind", "user", *WHY)
    lines = result.stderr.splitlines()

    assert (2, ()) == (result.exit_code, overrides.read())
    assert re.search(words, result.stderr), result.stderr
    assert "Set the user limits of 'shop'? There is no terminal to ask on; add --yes to do it." in lines[-1]


SET_CLIENT_LIMIT = ("limit", "set", "nightly", "--kind", "client", "--limit", "10/minute", *WHY)


def record_nightly(connection: Connection, *tallies: Tally, last_ago: int = 1) -> int:
    """Record a minute of each, the last one so many minutes ago, and return its start."""
    end_s = int(time.time() // 60 - last_ago) * 60
    source, starts = Source("client", "client_credentials"), range(end_s - 60 * len(tallies) + 60, end_s + 1, 60)
    minutes = [ClientMinute("nightly", at_s, {source: each}) for at_s, each in zip(starts, tallies, strict=True)]
    StatisticsStore(connection).put("one", minutes, keep_s=86_400.0)
    return end_s


def test_preview_soon_after_the_start_is_of_the_recorded_minutes(
    terminal: Terminal, connection: Connection, mongo_uri: str
) -> None:
    """The first of them is left out, because it may have begun within that minute. The start is no change."""
    send_heartbeat(terminal, mongo_uri, "node-1")
    record_nightly(connection, Tally(5), Tally(20), Tally(20))
    text = terminal.run(*SET_CLIENT_LIMIT).stderr

    assert re.match(r"In the last (2 minutes|minute): 0 of 20 requests per minute denied\. ", text), text
    assert "over the limit client at once" in text


def test_preview_in_the_first_minute_says_what_is_recorded_and_when_to_ask(
    terminal: Terminal, connection: Connection
) -> None:
    begun_s = record_nightly(connection, Tally(7), last_ago=0)
    since, at = (datetime.fromtimestamp(begun_s + after_s, UTC).strftime("%H:%M:%SZ") for after_s in (0, 72))
    expected = f"T{since}, none in the full minutes before, so nobody knows what this does. Ask again at "
    text = terminal.run(*SET_CLIENT_LIMIT).stderr

    assert text.startswith("7 requests since ") and expected in text and f"T{at}." in text, text


@pytest.mark.parametrize(
    ("denied", "words"),
    [(90, r"90 of 15\d requests were over a limit since \S+, none in the full minutes before, "), (3, "In the last ")],
    ids=["storm", "a few"],
)
def test_preview_of_denials_that_have_just_begun_does_not_say_that_nobody_is_denied(
    terminal: Terminal, connection: Connection, denied: int, words: str
) -> None:
    """The last full minutes know nothing of them."""
    record_nightly(connection, Tally(5), Tally(6), Tally(5), Tally(60, denied=denied), last_ago=0)
    assert re.match(words, text := terminal.run(*SET_CLIENT_LIMIT).stderr), text


def test_preview_of_the_first_recorded_minute_says_that_it_may_lack_requests(
    terminal: Terminal, connection: Connection
) -> None:
    record_nightly(connection, Tally(9), last_ago=2)
    assert "Records begin within the first of these minutes, so some of its" in terminal.run(*SET_CLIENT_LIMIT).stderr


def test_preview_after_a_change_does_not_count_what_the_limit_before_denied(
    terminal: Terminal, connection: Connection
) -> None:
    record_nightly(connection, Tally(90), Tally(60, denied=30), Tally(60, denied=30), Tally(60, denied=30))
    terminal.ok(*SET_CLIENT_LIMIT, "--yes")
    changed = terminal.run("limit", "set", "nightly", "--kind", "client", "--limit", "99/minute", *WHY).stderr
    enforced = terminal.run("mode", "set", "dry-run", *WHY)

    assert re.search(
        r"In the last [23] minutes, before the last change: 30 of 90 requests per minute denied\.", changed
    )
    assert "What was over a limit before" not in enforced.stderr, "which shows no impact"
    assert "What was over a limit before the change at 20" in terminal.run("mode", "set", "enforce", *WHY).stderr


def test_file_that_switches_off_beats_every_mode(terminal: Terminal) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "off"}))
    result = terminal.run("mode", "set", "enforce", "--canary", "100", "--yes", *WHY)

    assert result.stderr.startswith("The configuration has mode: off, which beats every override. Change it there")
    assert 1 == result.stderr.count("Change it there first"), "before the question and not again"
    assert "applies already" not in result.stderr, "for it is stored, and applies later"
    assert "Takes effect when the configuration no longer has mode: off." in result.stdout
    assert ("off", "off") == (terminal.data("status")["mode"], terminal.data("explain", "app")["mode"])
    assert ["# in the configuration file: mode: dry-run"] == terminal.data("rollout")["next"]


def test_history_has_every_change(terminal: Terminal) -> None:
    terminal.ok(*SET_USER_LIMIT, "--reason", "one", "--operator", "ann")
    terminal.ok("limit", "unset", "app", "--reason", "two", "--operator", "bob")
    terminal.ok("mode", "set", "off", "--reason", "three", "--operator", "ann")
    terminal.ok("reset", "app", "alice", "--yes", "--operator", "cat", "--reason", "four")

    history = terminal.data("overrides", "--history")
    assert [("set", "one", "ann"), ("unset", "two", "bob"), ("set", "three", "ann"), ("reset", "four", "cat")] == [
        (entry["action"], entry["reason"], entry["by"]) for entry in history
    ]
    expected = {"kind": "counters", "client_id": "app", "username": "alice", "mode": None, "limits": [], "until": None}
    assert expected.items() <= history[3].items()
    assert 3 == len(terminal.data("overrides", "app", "--history"))
    assert ["mode"] == [entry["kind"] for entry in terminal.data("overrides")]
    assert "app alice" in terminal.ok("overrides", "--history")


FLOOD = {"active": True, "at": datetime(2099, 1, 1, tzinfo=UTC)}


def test_way_back_works_whatever_was_planted_before(
    terminal: Terminal, overrides: OverrideStore, connection: Connection
) -> None:
    """A large document under its key, and more small ones than are read. Other changes exit with 3 and say why."""
    documents = connection.collection(OVERRIDES)
    documents.insert_one({"_id": {"kind": "mode", "clientId": None}, "active": True, "more": "x" * 40_000})
    documents.insert_many(
        {"_id": {"kind": "mode", "clientId": f"{number:05}"}, **FLOOD} for number in range(MAX_OVERRIDES + 1)
    )
    refused = terminal.run("trust", "add", "app", *WHY)
    assert (3, "") == (refused.exit_code, refused.stdout)
    assert "ratelimit_overrides {'kind': 'trusted', 'clientId': 'app'}: there are more overrides" in refused.stderr
    assert ["dry-run"] == [each["mode"] for each in terminal.data("mode", "set", "dry-run", *WHY)]
    assert "dry-run" == terminal.ok("mode").splitlines()[0]
    documents.delete_many({"_id.kind": "mode", "limits": {"$exists": False}})
    assert {"dry-run", "trusted"} == {each["mode"] or each["kind"] for each in terminal.data("overrides")}
    terminal.ok("mode", "unset", *WHY)
    assert [OverrideKind.TRUSTED] == [each.target.kind for each in overrides.read()]


@pytest.mark.parametrize(
    ("planted", "exit_code"), [({"requestCounters": []}, 0), ({"writers": 5}, 3), ({"version": "text"}, 3)], ids=str
)
def test_reset_names_a_counter_that_instances_do_not_read(
    terminal: Terminal, limiter: Limiter, documents: Any, planted: dict[str, Any], exit_code: int
) -> None:
    """Of a damaged document each instance goes on by what it has counted itself. The others are set to zero."""
    for username in ("alice", "bob"):
        limiter.check("app", username)
    limiter.sync()
    documents.update_one({"_id.username": "alice"}, {"$set": planted})
    result = terminal.run("reset", "app", "--yes")
    assert exit_code == result.exit_code
    named = f"1 of the first 200 in ratelimits: {{'clientId': 'app', 'username': 'alice'}} ({next(iter(planted))})"
    assert (named in result.stderr) is (exit_code == 3)
    assert "requestCounters" not in documents.find_one({"_id.username": "bob"})


def test_reset_looks_at_a_bounded_number_of_documents(
    limiter: Limiter, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may have any number of users."""
    monkeypatch.setattr("oauth_ratelimit.store.mongo.counters.MAX_LOOKED_AT", 2)
    limiter.check("app")
    for number in range(4):
        limiter.check("app", str(number))
    limiter.sync()
    connection.collection("ratelimits").update_many({"_id.clientId": "app"}, {"$set": {"writers": 5}})
    with pytest.raises(StoreRejected, match="instances do not read 2 of the first 2 in ratelimits: "):
        CounterDocuments(connection, collection="ratelimits").reset("app")


def test_reset_is_made_although_nobody_can_look_at_it(
    terminal: Terminal, limiter: Limiter, documents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter.check("app")
    limiter.sync()

    def fail(*_: Any, **__: Any) -> Any:
        raise ExecutionTimeout("operation exceeded time limit", 50)

    with monkeypatch.context() as patch:
        patch.setattr("oauth_ratelimit.store.mongo.counters.parse_all", fail)
        terminal.ok("reset", "app", "--yes")
    assert "requestCounters" not in documents.find_one({"_id.clientId": "app"})


@pytest.mark.parametrize("ahead_s", [-7200, 7200], ids=["behind", "ahead"])
def test_wrong_clock_of_the_host_hides_no_override(
    terminal: Terminal, overrides: OverrideStore, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The time is that of MongoDB, in which overrides end, and which instances go by."""
    now_s = time.time()
    monkeypatch.setattr("oauth_ratelimit.cli.context.time.time", lambda: now_s + ahead_s)
    terminal.ok("trust", "add", "app", "--for", "1h", *WHY)
    (override,) = overrides.read()
    assert override.until_s == pytest.approx(now_s + 3600, abs=60)
    found = terminal.data("overrides")
    monkeypatch.setattr("oauth_ratelimit.cli.context.time.time", lambda: now_s - ahead_s)
    assert found == terminal.data("overrides") != []


def test_forgotten_tokens_that_cannot_be_announced_are_an_error(terminal: Terminal, connection: Connection) -> None:
    connection.database.create_collection("ratelimit_stats", validator={"stamp": {"$exists": False}})
    result = terminal.run("forget-tokens", "app")
    assert (3, "") == (result.exit_code, result.stdout)
    assert "instances do not see the notice: error (121)" in result.stderr


def test_limit_of_a_user_through_all_clients_takes_no_client(terminal: Terminal) -> None:
    words = ("limit", "set", "--kind", "user_total", "--limit", "5/minute", "--yes", *WHY)
    refused = terminal.run(*words, "app")
    assert (2, True) == (refused.exit_code, "user_total takes no CLIENT" in refused.stderr)
    terminal.ok(*words)
    [limit] = [each for each in terminal.data("explain", "app", "alice")["limits"] if each["kind"] == "user_total"]
    assert (5, "override") == (limit["limit"], limit["origin"]["layer"])
    assert "user_total" not in terminal.ok("explain", "app")
    assert "removed" in terminal.ok("limit", "unset", "--kind", "user_total", *WHY).lower()


def test_counts_of_a_user_through_all_clients_are_shown_and_reset_under_a_star(terminal: Terminal) -> None:
    settings = {**terminal.settings, "limits": {"user_total": ["9/day"]}}
    terminal.config_path.write_text(yaml.safe_dump(settings))
    with closing(Limiter(load_config(settings))) as limiter:
        for client_id in ("one", "two"):
            limiter.check(client_id, "alice")
    assert [2.0] == [each["estimate"] for each in terminal.data("show", "*", "alice")]
    terminal.ok("reset", "*", "alice", "--yes")
    assert [0.0] == [each["estimate"] for each in terminal.data("show", "*", "alice")]


@pytest.mark.parametrize("user", [(), ("alice",)])
def test_reset_under_a_star_needs_a_limit_through_all_clients(terminal: Terminal, user: tuple[str, ...]) -> None:
    result = terminal.run("reset", "*", *user, "--yes")
    assert (2, True) == (
        result.exit_code,
        "CLIENT: got '*', allowed: a client id such as partner-app." in result.stderr,
    )
    assert [] == terminal.data("overrides", "--history")

    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "limits": {"user_total": ["9/day"]}}))
    assert "" == terminal.run("reset", "*", *user, "--yes").stderr, "it is no pattern"
    assert "partner-*" in terminal.run("reset", "partner-*", *user, "--yes").stderr


@pytest.mark.parametrize(
    ("late_s", "refused", "expected"),
    [
        (
            (0,),
            "find on ratelimit_overrides, update on ratelimits",
            (3, "without effect on 1 instance (worker 17 on node-0)"),
        ),
        ((0,), "update on ratelimit_overrides", (0, "")),
        (
            (0, 60),
            None,
            (0, "Whether all instances obey is not known: no report for 30 s from 1 instance (worker 17 on node-1)."),
        ),
        ((60,), None, (3, "stored, but there was no report for 30 s from 1 instance (worker 17 on node-0)")),
        ((), None, (0, "Whether all instances obey is not known: none has reported in the last 10 minutes.")),
    ],
)
def test_change_that_instances_cannot_read_fails_and_names_them(
    terminal: Terminal,
    connection: Connection,
    late_s: tuple[int, ...],
    refused: str | None,
    expected: tuple[int, str],
) -> None:
    for number, seconds in enumerate(late_s):
        at_s = time.time() - seconds
        beat = Heartbeat(f"node-{number}:17:0a", at_s, at_s, "0.1.0", "enforce", 1.0, refused=refused)
        HeartbeatStore(connection).put(beat)

    for words in (("mode", "set", "off"), ("mode", "unset")):
        result = terminal.run(*words, *WHY)
        assert (expected[0], True) == (result.exit_code, expected[1] in result.stderr), result.stderr
