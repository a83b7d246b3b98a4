"""limit, mode, trust, reset and overrides."""

import time

import pytest
import yaml

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.cli.conftest import WHY, Terminal


def test_limit_set_stores_limit_author_reason_and_end(terminal: Terminal, overrides: OverrideStore) -> None:
    output = terminal.ok("limit", "set", "partner", "--user", "100/minute", "--for", "7d", *WHY)
    (override,) = overrides.read()

    assert Target(OverrideKind.LIMIT, "partner", LimitKind.USER) == override.target
    assert (Policy("user", 100, Window.of(60)),) == override.policies
    assert ("ann", "ticket 4711") == (override.author, override.reason)
    assert override.made_at_s == pytest.approx(time.time(), abs=60)
    assert 7 * 86_400 == pytest.approx((override.until_s or 0) - override.made_at_s)
    assert "Takes effect on every instance within 2 s." in output


def test_limit_set_takes_kinds_tiers_mappings_and_none(terminal: Terminal, overrides: OverrideStore) -> None:
    text = "{limit: 9, window: 1m, name: trial, frames: 6, mode: dry-run, count_denied: true}"
    terminal.ok("limit", "set", "app", "--client", "5/second", "--client", text, "--client-total", "none", *WHY)
    policies = {override.target.limit_kind: override.policies for override in overrides.read()}

    assert () == policies[LimitKind.CLIENT_TOTAL]
    assert (
        Policy("client-1s", 5, Window.of(1)),
        Policy("trial", 9, Window.of(60, 6), count_denied=True, mode=Mode.DRY_RUN),
    ) == policies[LimitKind.CLIENT]


def test_limit_set_for_everybody_changes_the_defaults(terminal: Terminal, overrides: OverrideStore) -> None:
    (data,) = terminal.data("limit", "set", "--everybody", "--client", "20000/minute", *WHY)

    assert [None] == [override.target.client_id for override in overrides.read()]
    assert ("limit", None, ["client: 20000/minute"]) == (data["kind"], data["client_id"], data["limits"])


def test_limit_unset_removes_one_kind_or_all(terminal: Terminal, overrides: OverrideStore) -> None:
    terminal.ok("limit", "set", "app", "--client", "5/second", "--user", "5/second", *WHY)
    assert "1 override removed" in terminal.ok("limit", "unset", "app", "--kind", "user", *WHY)
    assert [LimitKind.CLIENT] == [override.target.limit_kind for override in overrides.read()]

    assert {"removed_count": 1} == terminal.data("limit", "unset", "app", *WHY)
    assert () == overrides.read()


@pytest.mark.parametrize("words", [("limit", "unset", "app"), ("mode", "unset"), ("trust", "remove", "app")])
def test_removing_without_an_override_exits_with_one(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words, *WHY)

    assert 1 == result.exit_code
    assert "No such override." in result.stderr


SET = ("limit", "set", "app", "--user")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SET, "0/minute"), 'limits.user[0]: got "0/minute", allowed: 1 to 2^53'),
        ((*SET, "many"), "limits.user[0]: got"),
        ((*SET, "{limit: 1, windw: 1m}"), "limits.user[0].windw: unknown key"),
        ((*SET, "{limit: 1"), "not usable YAML"),
        ((*SET, "1/second", "--user", "2/second"), "several limits have the name"),
        ((*SET, "{limit: 1, window: 1m, name: client_total}"), "give each a name of its own"),
        (("limit", "set", "app"), "name at least one limit"),
        (("limit", "set", "--user", "1/second"), "either a CLIENT or --everybody"),
        ((*SET, "1/second", "--everybody"), "either a CLIENT or --everybody"),
        (("limit", "set", "", "--user", "1/second"), "1 to 1024 characters"),
        (("limit", "set", "\udc80", "--user", "1/second"), "1 to 1024 characters"),
        ((*SET, "1/second", "--for", "soon"), "allowed: seconds"),
        ((*SET, "1/second", "--for", "1e9d"), "allowed: seconds"),
        ((*SET, "1/second", "--for", "0s"), "more than 0 s"),
        ((*SET, "1/second", "--until", "2020-01-01T00:00:00Z"), "is in the past"),
        ((*SET, "1/second", "--until", "2120-01-01T00:00:00"), "with its zone"),
        ((*SET, "1/second", "--until", "x"), "with its zone"),
        ((*SET, "1/second", "--for", "1h", "--until", "2120-01-01T00:00:00Z"), "either --for or --until"),
        (("mode", "set", "loud"), "'loud' is not one of"),
        (("trust", "add", ""), "1 to 1024 characters"),
        (("mode", "set", "off", "--reason", " "), "--reason"),
        (("mode", "set", "off", "--reason", "x" * 1001), "up to 1000 characters"),
    ],
)
def test_invalid_change_is_a_usage_error_and_changes_nothing(
    terminal: Terminal, overrides: OverrideStore, words: tuple[str, ...], message: str
) -> None:
    result = terminal.run(*words, *(() if "--reason" in words else WHY))

    assert message in result.stderr.replace("\n", " ")
    assert 2 == result.exit_code
    assert () == overrides.read()


def test_change_needs_a_reason(terminal: Terminal) -> None:
    result = terminal.run("mode", "set", "off")

    assert (2, True) == (result.exit_code, "--reason" in result.stderr)


def test_limit_of_a_trusted_client_gives_a_warning(terminal: Terminal) -> None:
    terminal.run("trust", "add", "app", *WHY)

    assert "'app' is a trusted client" in terminal.run(*SET, "1/second", *WHY).stderr
    assert "trusted" not in terminal.run("limit", "set", "shop", "--user", "1/second", *WHY).stderr


def test_trust_is_added_listed_and_removed(terminal: Terminal, overrides: OverrideStore) -> None:
    terminal.ok("trust", "add", "batch", "--until", "2120-01-01T00:00:00+02:00", *WHY)
    assert [Target(OverrideKind.TRUSTED, "batch")] == [override.target for override in overrides.read()]
    assert ["2119-12-31T22:00:00Z"] == [entry["until"] for entry in terminal.data("trust", "list")]

    terminal.ok("trust", "remove", "batch", *WHY)
    assert () == overrides.read()


def test_trust_in_a_pattern_is_taken_literally_and_says_so(terminal: Terminal) -> None:
    result = terminal.run("trust", "add", "batch-*", *WHY)

    assert "'batch-*', taken literally" in result.stderr
    assert terminal.data("explain", "batch-*")["trusted"]
    assert not terminal.data("explain", "batch-1")["trusted"]


def test_client_that_the_configuration_trusts_stays_trusted(terminal: Terminal) -> None:
    result = terminal.run("trust", "remove", "mobile-1", *WHY)

    assert 1 == result.exit_code
    assert "Still trusted by the configuration: mobile-*" in result.stderr


def test_mode_is_set_for_everybody_or_one_client_and_removed(terminal: Terminal, overrides: OverrideStore) -> None:
    assert "enforce" == terminal.ok("mode").splitlines()[0]
    terminal.ok("mode", "set", "dry-run", *WHY)
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


STAYS = "app stays in mode {}, because this comes first: override by ann: ticket 4711."
OWN = "These have a mode of their own, which stays: clients.app (dry-run)."
APP = ("--client", "app")


@pytest.mark.parametrize(
    ("before", "words", "effective", "message"),
    [
        (("mode", "set", "dry-run"), ("enforce", *APP), "dry-run", STAYS.format("dry-run")),
        (("mode", "set", "off"), ("dry-run", *APP), "off", STAYS.format("off")),
        (("mode", "set", "dry-run", *APP), ("enforce",), "dry-run", OWN),
        (("trust", "add", "app"), ("enforce", *APP), "enforce", "'app' is a trusted client: its limits have no effect"),
        (("mode", "set", "enforce", *APP), ("dry-run",), "dry-run", ""),
        (("mode", "set", "dry-run"), ("off", *APP), "off", ""),
        (("mode", "set", "dry-run", *APP), ("enforce", *APP), "enforce", ""),
        (("mode", "set", "dry-run"), ("enforce",), "enforce", ""),
    ],
)
def test_mode_that_is_not_effective_says_what_comes_first(
    terminal: Terminal, before: tuple[str, ...], words: tuple[str, ...], effective: str, message: str
) -> None:
    terminal.ok(*before, *WHY)
    result = terminal.run("mode", "set", *words, *WHY, "--json")

    assert (0, message) == (result.exit_code, result.stderr.strip())
    assert effective == terminal.data("explain", "app")["mode"]


@pytest.mark.parametrize("words", [(), APP])
def test_file_that_switches_off_beats_every_mode(terminal: Terminal, words: tuple[str, ...]) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "off"}))
    result = terminal.run("mode", "set", "enforce", *words, *WHY)

    assert "The configuration has mode: off, which beats every override. Change it there first." in result.stderr
    assert ("off", "off") == (terminal.data("status")["mode"], terminal.data("explain", "app")["mode"])
    assert ["# in the configuration file: mode: dry-run"] == terminal.data("rollout")["next"]


def test_mode_for_everybody_names_what_the_file_keeps_from_it(terminal: Terminal) -> None:
    own = {f"app-{number}": {"mode": "dry-run"} for number in range(6)}
    changed = {**terminal.settings, "clients": own, "grants": {"password": {"mode": "off"}}, "canary": {"percent": 10}}
    terminal.config_path.write_text(yaml.safe_dump(changed))
    result = terminal.run("mode", "set", "enforce", *WHY)

    assert [
        "These have a mode of their own, which stays: clients.app-0 (dry-run), clients.app-1 (dry-run), "
        "clients.app-2 (dry-run), clients.app-3 (dry-run), clients.app-4 (dry-run) and 2 more.",
        "The canary stays: enforced for 10 % of the clients, a dry run for the others.",
    ] == result.stderr.splitlines()


def test_list_of_one_kind_does_not_deny_overrides_of_another(terminal: Terminal) -> None:
    terminal.ok("limit", "set", "app", "--user", "5/minute", *WHY)

    assert "No override of the mode: that of the configuration applies." in terminal.ok("mode")
    assert "No client is trusted by an override" in terminal.ok("trust", "list")
    terminal.ok("limit", "unset", "app", *WHY)
    assert "No override of limits" in terminal.ok("limit", "list")


def test_reset_client_is_admitted_again(terminal: Terminal, limiter: Limiter) -> None:
    for _ in range(11):
        limiter.check("app")
    limiter.sync()
    assert not limiter.peek("app").allowed

    assert {"reset_count": 2} == terminal.data("reset", "app")
    limiter.sync()
    limiter.sync()
    assert limiter.peek("app").allowed


def test_reset_of_a_user_keeps_the_other_users(terminal: Terminal, limiter: Limiter) -> None:
    limiter.check("app", "alice")
    limiter.check("app", "bob")
    limiter.sync()
    terminal.ok("reset", "app", "alice")

    assert {"bob"} == {row["username"] for row in terminal.data("show", "app") if row["estimate"] and row["username"]}


def test_history_has_every_change(terminal: Terminal) -> None:
    terminal.ok("limit", "set", "app", "--client", "5/second", "--reason", "one", "--by", "ann")
    terminal.ok("limit", "unset", "app", "--reason", "two", "--by", "bob")
    terminal.ok("mode", "set", "off", "--reason", "three", "--by", "ann")
    terminal.ok("reset", "app", "alice", "--by", "cat", "--reason", "four")
    terminal.ok("reset", "app", "--by", "cat")

    history = terminal.data("overrides", "--history")
    assert [("set", "one"), ("unset", "two"), ("set", "three"), ("reset", "four"), ("reset", "")] == [
        (entry["action"], entry["reason"]) for entry in history
    ]
    assert ["ann", "bob", "ann", "cat", "cat"] == [entry["by"] for entry in history]
    expected = {"kind": "counters", "client_id": "app", "username": "alice", "mode": None, "limits": [], "until": None}
    assert expected.items() <= history[3].items()
    assert history[4]["username"] is None
    assert 4 == len(terminal.data("overrides", "app", "--history"))
    assert ["mode"] == [entry["kind"] for entry in terminal.data("overrides")]
    text = terminal.ok("overrides", "--history")
    assert "three" in text
    assert "app alice" in text


@pytest.mark.parametrize("words", [("mode", "set", "dry-run"), ("trust", "add", "app"), ("reset", "app")])
def test_invalid_unicode_from_the_terminal_is_replaced_in_the_history(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    terminal.ok(*words, "--reason", "f\udcfcr alle", "--by", "J\udcfcrgen")

    assert [("f?r alle", "J?rgen")] == [
        (entry["reason"], entry["by"]) for entry in terminal.data("overrides", "--history")
    ]
