"""explain: the next request of a client, and recorded denials."""

import time

import pytest
import yaml

from oauth_ratelimit import Limiter
from oauth_ratelimit.cli.explain import LIMIT_COLUMNS
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import ClientMinute, Denials, Source, Tally, UserLoad
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.observe.events import DenialRecorder
from oauth_ratelimit.operations.format import usage_data, utc_time
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection
from oauth_ratelimit.store.mongo.fields import date_of
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal
from tests.support.limiters import send_hits


def test_denied_user_gets_forecast_and_limits(terminal: Terminal, limiter: Limiter) -> None:
    send_hits(limiter, 6, "app", "alice")
    send_hits(limiter, 3, "app", "bob")
    data = terminal.data("explain", "app", "alice")
    text = terminal.ok("explain", "app", "alice")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}

    assert "denied" == data["forecast"]["kind"]
    assert ["denied:", "over", "the", "limit", "user", "for", "another"] == rows["forecast"][1:8]
    assert ["50/hour", "limits,", "for", "everybody", "enforce", "8", "42"] == rows["client_total:"][1:8]


def test_hits_and_those_left_add_up_to_the_limit() -> None:
    """A hit that counts in part takes the place of a whole one."""
    policy = Policy("client", 200, Window.of(60))
    usage = LimitUsage(Key("app", None), LimitKind.CLIENT, policy, Mode.ENFORCE, 90.4, 0.0, 60.0)
    texts = {
        column.title: column.text(usage_data(usage)) for column in LIMIT_COLUMNS if column.title in ("hits", "left")
    }

    assert {"hits": "91", "left": "109"} == texts


def test_client_is_explained_with_its_users_that_are_denied(terminal: Terminal, connection: Connection) -> None:
    users = (UserLoad("bob", 60, 52), UserLoad("alice", 9))
    minute_s = int(time.time()) // 60 * 60 - 60
    minutes = [ClientMinute("app", minute_s, {Source("user", "password"): Tally(17, 52)}, users=users)]
    StatisticsStore(connection).put("process", minutes, keep_s=1e6)

    users_over = "In the last hour these users were over a limit, as far as is recorded: bob (52 of 60 requests)."
    assert f"{users_over} To explain one: explain app bob\n" == terminal.run("explain", "app").stderr
    assert "" == terminal.run("explain", "app", "alice").stderr


def test_user_and_client_in_a_dry_run_are_told_since_when_they_would_be_denied(
    terminal: Terminal, connection: Connection, limiter: Limiter
) -> None:
    """Denials of a dry run have no records; users are known when their minute is over."""
    store, minute_s = StatisticsStore(connection), int(time.time()) // 60 * 60 - 60
    of_dry_run = ("user", "password", "would_deny")
    users = (UserLoad("bob", 60, 0, 52), UserLoad("alice", 9))
    denials = {of_dry_run: Denials(52, minute_s + 7, int(time.time()), 5, 3600)}
    tallies = {Source("user", "password"): Tally(17, would_deny=52)}
    store.put("process", [ClientMinute("app", minute_s, tallies, users=users, denials=denials)], keep_s=1e6)
    store.put("process", [ClientMinute("new", minute_s, tallies, denials=denials)], keep_s=1e6)
    text = f"would be denied (dry run) since {utc_time(minute_s + 7)} by the limit user (5/hour), password."
    span = f"from {utc_time(minute_s)} to {utc_time(minute_s + 60)}"

    def found(*words: str) -> str:
        return " ".join(terminal.ok("explain", *words).split())

    assert f"bob of app: {text}" in found("app")
    of_bob = f"bob would be denied (dry run): 52 of 60 requests {span} were over a limit."
    assert f"{of_bob} bob of app: {text}" in found("app", "bob")
    assert "would be denied" not in found("app", "alice") and "would be denied" not in found("new", "bob")
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run"}))
    send_hits(limiter, 5, "new", "bob")
    assert f"users of new: {text}" in found("new", "bob"), "its counter is at the limit"


EFFECT = "In full minutes 140 of 160 requests were over a limit before it, 133 of 160 since then.\n"


def test_change_that_hardly_helped_is_shown_with_what_was_over_a_limit_before_and_after(
    terminal: Terminal, connection: Connection
) -> None:
    store, own = StatisticsStore(connection), Source("client", "client_credentials")
    now_s = int(time.time()) // 60 * 60
    minutes = []
    for ago_min, over in ((7, 70), (6, 70), (3, 67), (2, 66)):
        at_s = now_s - 60 * ago_min
        denials = {("client", "client_credentials", "denied"): Denials(over, at_s, at_s + 59, 10, 60)}
        minutes.append(ClientMinute("app", at_s, {own: Tally(80 - over, over)}, denials=denials))
    store.put("process", minutes, keep_s=1e6)
    target = Target(OverrideKind.LIMIT, "app", LimitKind.CLIENT)
    limits = (Policy(LimitKind.CLIENT, 13, Window.of(60)),)
    OverrideStore(connection).put(Override(target, "ann", "x", now_s, policies=limits))
    made = {"$set": {"history.0.at": date_of(now_s - 240)}}
    connection.collection(OVERRIDES).update_one({"_id.clientId": "app"}, made)

    text = terminal.ok("explain", "app")
    assert f"Changed since it began, at {utc_time(now_s - 240)}: client limit 13/minute for app (ann).\n" in text
    assert EFFECT in text
    terminal.ok("trust", "add", "app", "--reason", "x")  # more than a minute after the last denial
    assert EFFECT in terminal.ok("explain", "app")


def test_client_with_limits_of_users_alone_is_not_called_unlimited(terminal: Terminal) -> None:
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "limits": {"user": ["5/hour"]}}))

    assert "For the limits of a user, name one: explain CLIENT USER" in terminal.ok("explain", "app")
    assert "name one" not in terminal.ok("explain", "app", "alice")
    terminal.ok("trust", "add", "app", "--reason", "x")
    assert "No limit applies: the client is trusted." in terminal.ok("explain", "app")


def test_grant_types_that_are_counted_apart_are_named(terminal: Terminal) -> None:
    app = {"mode": "off", "grants": {"password": {"mode": "enforce"}}}
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "clients": {"app": app}}))

    def counted_at(*words: str) -> str:
        lines = terminal.ok("explain", "app", "alice", *words).splitlines()
        return next(line.removeprefix("where").strip() for line in lines if line.startswith("where"))

    assert "token; apart, with --grant: refresh_token, password" == counted_at()
    assert "token; apart, with --grant: refresh_token, password" == counted_at("--grant", "implicit")
    assert "grant:password" == counted_at("--grant", "password")


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("app", "--endpoint", "revokation"), "'revokation', allowed: token"),
        (("--id", "4711"), "a decision id is 16 hexadecimal digits"),
        (("--id", "0x00000000000abc"), "a decision id is 16 hexadecimal digits"),
    ],
)
def test_wrong_arguments_are_a_usage_error(terminal: Terminal, words: tuple[str, ...], message: str) -> None:
    result = terminal.run("explain", *words)

    assert (2, True) == (result.exit_code, message in result.stderr)


@pytest.fixture
def ids(limiter: Limiter, denials: DenialRecorder) -> list[str]:
    """The ids of four denials of one user. The first was logged."""
    decisions = [limiter.check("app", "alice", grant_type="refresh_token") for _ in range(11)]
    denials.close(Deadline())
    return [decision.decision_id for decision in decisions if decision.decision_id]


def test_denial_is_found_by_its_id_even_if_copied_with_spaces_and_capitals(terminal: Terminal, ids: list[str]) -> None:
    data = terminal.data("explain", "--id", ids[0])
    text = terminal.ok("explain", "--id", f" {ids[0].upper()} ")
    expected = {"decision_id": ids[0], "scope": "grant:refresh_token", "limit": 7, "suppressed_count": 3}

    assert expected.items() <= data.items()
    assert data["first_at"] == data["last_at"]
    for fact in (
        "limit  user: 7/hour",
        "username  alice",
        "scope  grant:refresh_token",
        "trace id  4bf92f",
        "canary  no",
    ):
        name, value = fact.split("  ")
        assert f"{name.ljust(16)}  {value}\n" in text


def test_unknown_id_exits_with_one_and_the_possible_reasons(terminal: Terminal) -> None:
    for words in ((), ("--json",)):
        result = terminal.run("explain", "--id", "0" * 16, *words)

        assert (1, "") == (result.exit_code, result.stdout)
        assert result.stderr.startswith(f"No denial with the id {'0' * 16} is recorded.")
