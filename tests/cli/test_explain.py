"""explain: the next request of a client, and recorded denials."""

from contextlib import closing

import pytest
import yaml

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.observe.denials import DenialQueue, DenialRecorder
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from tests.cli.conftest import WHY, Terminal
from tests.support.limiters import send_hits


def test_denied_user_gets_forecast_limits_and_other_users(terminal: Terminal, limiter: Limiter) -> None:
    send_hits(limiter, 6, "app", "alice")
    send_hits(limiter, 3, "app", "bob")
    send_hits(limiter, 2, "app")
    data = terminal.data("explain", "app", "alice")

    assert ("denied", "denied: over user for ") == (data["forecast"]["kind"], data["forecast"]["text"][:22])
    assert [("user", 5.0, 0, {"layer": "limits"}), ("client_total", 10.0, 40, {"layer": "limits"})] == [
        (row["policy"], row["estimate"], row["remaining"], row["origin"]) for row in data["limits"]
    ]
    assert ["bob", None] == [row["username"] for row in data["others"]]
    assert 1 == data["instance_count"]
    assert "Other users of the client's total" in terminal.ok("explain", "app", "alice")


def test_client_with_limits_of_users_alone_is_not_called_unlimited(terminal: Terminal) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "limits": {"user": ["5/hour"]}}))

    assert "For the limits of a user, name one: explain CLIENT USER" in terminal.ok("explain", "app")
    assert "name one" not in terminal.ok("explain", "app", "alice")


@pytest.mark.parametrize(
    ("grant", "hint"),
    [
        ("pass_word", "did you mean password?"),
        ("refresh_tokn", "did you mean refresh_token?"),
        ("own", "'own' is neither"),
    ],
)
def test_unknown_grant_type_is_explained_with_a_hint(terminal: Terminal, grant: str, hint: str) -> None:
    assert hint in terminal.run("explain", "app", "--grant", grant, "--json").stderr
    assert "" == terminal.run("explain", "app", "--grant", "device_code", "--json").stderr


def test_forecast_names_the_limit_that_denies_and_not_a_dry_run_that_lasts_longer(
    terminal: Terminal, limiter: Limiter
) -> None:
    trial = {"name": "trial", "limit": 3, "window": "1d", "mode": "dry-run"}
    settings = {**terminal.settings, "limits": {"user": [{"name": "burst", "limit": 5, "window": "1h"}, trial]}}
    terminal.config_path.write_text(yaml.safe_dump(settings))
    limiter.reconfigure(load_config(settings))
    send_hits(limiter, 6, "app", "alice")

    assert terminal.data("explain", "app", "alice")["forecast"]["text"].startswith("denied: over burst for ")


@pytest.mark.parametrize(
    ("words", "origin"),
    [
        (("partner",), {"layer": "plans.gold"}),
        (("app", "alice", "--grant", "refresh_token"), {"layer": "grants.refresh_token"}),
        (("app", "alice", "--grant", "password"), {"layer": "limits"}),
    ],
)
def test_origin_of_a_limit_is_its_configuration_key(
    terminal: Terminal, words: tuple[str, ...], origin: dict[str, str]
) -> None:
    assert origin == terminal.data("explain", *words)["limits"][0]["origin"]


def test_origin_of_an_overridden_limit_is_author_and_reason(terminal: Terminal) -> None:
    terminal.ok("limit", "set", "partner", "--client", "1/hour", *WHY)
    terminal.ok("mode", "set", "dry-run", *WHY)
    data = terminal.data("explain", "partner")
    origin = {"layer": "override", "by": "ann", "reason": "ticket 4711", "until": None}

    assert (origin, "dry-run", origin) == (data["mode_origin"], data["mode"], data["limits"][0]["origin"])
    assert "override by ann: ticket 4711" in terminal.ok("explain", "partner")


def test_trusted_client_is_admitted(terminal: Terminal) -> None:
    data = terminal.data("explain", "mobile-1", "alice")

    assert ({"layer": "trusted_clients[mobile-*]"}, "admitted: trusted", []) == (
        data["trusted"],
        data["forecast"]["text"],
        data["limits"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("app", "--endpoint", "revokation"), "'revokation', allowed: token"),
        (("--id", "4711"), "a decision id is 16 hexadecimal digits"),
        (("--id", "0x00000000000abc"), "a decision id is 16 hexadecimal digits"),
        (("app", "--id", "0" * 16), "name either a CLIENT or a denial"),
        ((), "name either a CLIENT or a denial"),
    ],
)
def test_wrong_arguments_are_a_usage_error(terminal: Terminal, words: tuple[str, ...], message: str) -> None:
    result = terminal.run("explain", *words)

    assert 2 == result.exit_code
    assert message in result.stderr


@pytest.fixture
def ids(limiter: Limiter, denials: DenialQueue, now_s: float, mongo_uri: str) -> list[str]:
    """The ids of four denials of one user. The first was logged."""
    with closing(Connection(mongo_uri)) as connection:
        recorder = DenialRecorder(
            denials, DenialStore(connection), instance="node-1", keep_s=lambda: 3600.0, clock=lambda: now_s
        )
        decisions = [limiter.check("app", "alice", grant_type="refresh_token") for _ in range(11)]
        recorder.close()
    return [decision.decision_id for decision in decisions if decision.decision_id]


def test_logged_denial_is_found_by_its_id(terminal: Terminal, ids: list[str]) -> None:
    data = terminal.data("explain", "--id", ids[0])

    assert data["first_at"] == data["last_at"]
    assert {
        "decision_id": ids[0],
        "logged_decision_id": ids[0],
        "position": 0,
        "is_recorded": True,
        "client_id": "app",
        "username": "alice",
        "scope": "grant:refresh_token",
        "grant_type": "refresh_token",
        "policy": "user",
        "limit": 7,
        "window_s": 3600,
        "mode": "enforce",
        "canary": False,
        "suppressed_count": 3,
        "instance": "node-1",
        "trace_id": "4bf92f",
        "request_id": None,
    } == {name: value for name, value in data.items() if name not in ("first_at", "last_at", "retry_after_s")}
    assert 0 < data["retry_after_s"] <= 7200


def test_copied_id_may_have_spaces_and_capitals(terminal: Terminal, ids: list[str]) -> None:
    output = terminal.ok("explain", "--id", f" {ids[0].upper()} ")

    for text in ("7 in 1 h", "alice", "grant:refresh_token", "4bf92f", "the first; 3 more within a minute"):
        assert text in output


def test_suppressed_denial_is_found_with_its_position(terminal: Terminal, ids: list[str]) -> None:
    assert [(ids[0], position) for position in range(4)] == [
        (data["logged_decision_id"], data["position"])
        for data in (terminal.data("explain", "--id", name) for name in ids)
    ]
    output = terminal.ok("explain", "--id", ids[2])
    assert f"number 2 of 3 after the first denial, {ids[0]}" in output
    assert "4bf92f, of the first denial" in output


def test_denial_that_is_not_reported_yet_is_found(terminal: Terminal, ids: list[str]) -> None:
    name = f"{int(ids[0], 16) + 10:016x}"

    assert not terminal.data("explain", "--id", name)["is_recorded"]
    assert "its instance has reported 3 more so far" in terminal.ok("explain", "--id", name)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["for people", "as JSON"])
def test_unknown_id_exits_with_one_and_the_possible_reasons(
    terminal: Terminal, ids: list[str], words: tuple[str, ...]
) -> None:
    unknown = f"{(int(ids[0], 16) - 1) % 2**64:016x}"
    result = terminal.run("explain", "--id", unknown, *words)

    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"No denial with the id {unknown} is recorded.")
    assert "(30 d)" in result.stderr
