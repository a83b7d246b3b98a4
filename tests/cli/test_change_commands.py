"""Commands that change what instances go by."""

import time

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.cli.conftest import Terminal

WHY = ("--reason", "ticket 4711", "--by", "ann")


def test_limit_set(terminal: Terminal, overrides: OverrideStore) -> None:
    """A limit is put in force for one client and kind, with who, when, why and until when."""
    output = terminal.ok("limit", "set", "partner", "--user", "100/minute", "--for", "7d", *WHY)
    (override,) = overrides.read()

    assert Target(OverrideKind.LIMIT, "partner", LimitKind.USER) == override.target
    assert (Policy("user", 100, Window.of(60)),) == override.policies
    assert ("ann", "ticket 4711") == (override.author, override.reason)
    assert override.made_at_s == pytest.approx(time.time(), abs=60)
    assert 7 * 86_400 == pytest.approx((override.until_s or 0) - override.made_at_s)
    assert "within 2 s" in output


def test_limit_set_with_everything(terminal: Terminal, overrides: OverrideStore) -> None:
    """Several kinds, tiers, a whole mapping and no limit at all can be named in one command."""
    text = "{limit: 9, window: 1m, name: trial, frames: 6, mode: dry-run, count_denied: true}"
    terminal.ok("limit", "set", "app", "--client", "5/second", "--client", text, "--client-total", "none", *WHY)
    found = {override.target.limit_kind: override.policies for override in overrides.read()}

    assert () == found[LimitKind.CLIENT_TOTAL]
    assert (
        Policy("client-1s", 5, Window.of(1)),
        Policy("trial", 9, Window.of(60, 6), count_denied=True, mode=Mode.DRY_RUN),
    ) == found[LimitKind.CLIENT]


def test_limit_of_everybody(terminal: Terminal, overrides: OverrideStore) -> None:
    """The defaults can be changed, too."""
    data = terminal.data("limit", "set", "--everybody", "--client", "20000/minute", *WHY)

    assert [None] == [override.target.client_id for override in overrides.read()]
    assert ("limit", None, ["client: 20000/60s"]) == (data[0]["kind"], data[0]["client_id"], data[0]["limits"])


def test_limit_unset(terminal: Terminal, overrides: OverrideStore) -> None:
    """All limits of a client are taken back, or one kind; when there is none the exit code is 1."""
    terminal.ok("limit", "set", "app", "--client", "5/second", "--user", "5/second", *WHY)
    terminal.ok("limit", "unset", "app", "--kind", "user", *WHY)
    assert [LimitKind.CLIENT] == [override.target.limit_kind for override in overrides.read()]

    assert {"removed_count": 1} == terminal.data("limit", "unset", "app", *WHY)
    assert () == overrides.read()
    assert 1 == terminal.run("limit", "unset", "app", *WHY).exit_code


@pytest.mark.parametrize(
    ("words", "exit_code", "expected"),
    [
        (("limit", "set", "app", "--user", "0/minute"), 2, 'limits.user[0]: got "0/minute", allowed: 1 to 2^53'),
        (("limit", "set", "app", "--user", "many"), 2, "limits.user[0]: got"),
        (("limit", "set", "app", "--user", "{limit: 1, windw: 1m}"), 2, "limits.user[0].windw: unknown key"),
        (("limit", "set", "app", "--user", "{limit: 1"), 2, "not usable YAML"),
        (("limit", "set", "app", "--user", "1/second", "--user", "2/second"), 2, "several limits have the name"),
        (
            ("limit", "set", "app", "--user", "{limit: 1, window: 1m, name: client_total}"),
            2,
            "give each a name of its own",
        ),
        (("limit", "set", "app"), 2, "name at least one limit"),
        (("limit", "set", "--user", "1/second"), 2, "either a CLIENT or --everybody"),
        (("limit", "set", "app", "--everybody", "--user", "1/second"), 2, "either a CLIENT or --everybody"),
        (("limit", "set", "", "--user", "1/second"), 2, "1 to 1024 characters"),
        (("limit", "set", "\udc80", "--user", "1/second"), 2, "1 to 1024 characters"),
        (("limit", "set", "app", "--user", "1/second", "--for", "soon"), 2, "allowed: seconds"),
        (("limit", "set", "app", "--user", "1/second", "--for", "1e9d"), 2, "allowed: seconds"),
        (("limit", "set", "app", "--user", "1/second", "--for", "0s"), 2, "more than 0 s"),
        (("limit", "set", "app", "--user", "1/second", "--until", "2020-01-01T00:00:00Z"), 2, "is in the past"),
        (("limit", "set", "app", "--user", "1/second", "--until", "2120-01-01T00:00:00"), 2, "with its zone"),
        (("limit", "set", "app", "--user", "1/second", "--until", "x"), 2, "with its zone"),
        (
            ("limit", "set", "app", "--user", "1/second", "--for", "1h", "--until", "2120-01-01T00:00:00Z"),
            2,
            "either --for or --until",
        ),
        (("mode", "set", "loud"), 2, "'loud' is not one of"),
        (("trust", "add", ""), 2, "1 to 1024 characters"),
    ],
)
def test_change_that_makes_no_sense(
    terminal: Terminal, overrides: OverrideStore, words: tuple[str, ...], exit_code: int, expected: str
) -> None:
    """A mistake is explained, and nothing is changed."""
    result = terminal.run(*words, *WHY)

    assert expected in result.stderr.replace("\n", " ")
    assert exit_code == result.exit_code
    assert () == overrides.read()


def test_change_without_a_reason(terminal: Terminal) -> None:
    """Every change has a reason."""
    for words in ((), ("--reason", " ")):
        result = terminal.run("mode", "set", "off", *words)

        assert 2 == result.exit_code
        assert "--reason" in result.stderr


def test_limit_of_a_trusted_client(terminal: Terminal) -> None:
    """Whoever limits a client that nothing is denied to is told."""
    terminal.run("trust", "add", "app", *WHY)

    assert "'app' is a trusted client" in terminal.run("limit", "set", "app", "--user", "1/second", *WHY).stderr
    assert "trusted" not in terminal.run("limit", "set", "shop", "--user", "1/second", *WHY).stderr


def test_trust(terminal: Terminal, overrides: OverrideStore) -> None:
    """A client is trusted, listed, and trusted no longer."""
    terminal.ok("trust", "add", "batch-*", "--until", "2120-01-01T00:00:00+02:00", *WHY)
    assert [Target(OverrideKind.TRUSTED, "batch-*")] == [override.target for override in overrides.read()]
    assert ["2119-12-31T22:00:00Z"] == [entry["until"] for entry in terminal.data("trust", "list")]

    terminal.ok("trust", "remove", "batch-*", *WHY)
    assert () == overrides.read()


def test_trust_that_the_file_gives(terminal: Terminal) -> None:
    """A client that the configuration trusts cannot be untrusted from here, and that is said."""
    result = terminal.run("trust", "remove", "mobile-1", *WHY)

    assert 1 == result.exit_code
    assert "Still trusted by the configuration: mobile-*" in result.stderr


def test_mode(terminal: Terminal, overrides: OverrideStore) -> None:
    """The mode is shown, changed for everybody or one client, and taken back."""
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
    assert 1 == terminal.run("mode", "unset", *WHY).exit_code
    terminal.ok("mode", "unset", "--client", "app", *WHY)
    assert () == overrides.read()


def test_reset_of_a_client(terminal: Terminal, limiter: Limiter) -> None:
    """A denied client is admitted again after its counters were reset."""
    for _ in range(11):
        limiter.check("app")
    limiter.sync()
    assert not limiter.peek("app").allowed

    assert {"reset_count": 2} == terminal.data("reset", "app")
    limiter.sync()
    limiter.sync()
    assert limiter.peek("app").allowed


def test_reset_of_a_user(terminal: Terminal, limiter: Limiter) -> None:
    """One user is reset and no other."""
    limiter.check("app", "alice")
    limiter.check("app", "bob")
    limiter.sync()
    terminal.ok("reset", "app", "alice")

    assert {"bob"} == {row["username"] for row in terminal.data("show", "app") if row["estimate"] and row["username"]}


def test_reset_on_record(terminal: Terminal) -> None:
    """A reset stays on record: when, by whom, of which counters, and why if that was said."""
    terminal.ok("reset", "app", "alice", "--by", "ann", "--reason", "ticket 7")
    terminal.ok("reset", "app", "--by", "bob")

    first, second = terminal.data("overrides", "app", "--history")
    assert {"action": "reset", "kind": "counters", "client_id": "app", "username": "alice"}.items() <= first.items()
    assert {"by": "ann", "reason": "ticket 7", "mode": None, "limits": [], "until": None}.items() <= first.items()
    assert ("bob", None, "") == (second["by"], second["username"], second["reason"])
    assert [] == terminal.data("overrides")
    shown = terminal.ok("overrides", "--history")
    assert "counters" in shown
    assert "app alice" in shown


def test_history(terminal: Terminal) -> None:
    """Everything that was done stays on record."""
    terminal.ok("limit", "set", "app", "--client", "5/second", "--reason", "one", "--by", "ann")
    terminal.ok("limit", "unset", "app", "--reason", "two", "--by", "bob")
    terminal.ok("mode", "set", "off", "--reason", "three", "--by", "ann")

    assert [("set", "ann", "one"), ("unset", "bob", "two"), ("set", "ann", "three")] == [
        (entry["action"], entry["by"], entry["reason"]) for entry in terminal.data("overrides", "--history")
    ]
    assert 2 == len(terminal.data("overrides", "app", "--history"))
    assert 1 == len(terminal.data("overrides"))
    assert "three" in terminal.ok("overrides", "--history")


@pytest.mark.parametrize("words", [("mode", "set", "dry-run"), ("trust", "add", "app"), ("reset", "app")])
def test_text_that_is_no_unicode(terminal: Terminal, words: tuple[str, ...]) -> None:
    """What a terminal sends in another encoding is put on record all the same; what is too long is refused."""
    terminal.ok(*words, "--reason", "f\udcfcr alle", "--by", "J\udcfcrgen")
    told = terminal.run(*words, "--reason", "x" * 1001)

    assert [("f?r alle", "J?rgen")] == [
        (entry["reason"], entry["by"]) for entry in terminal.data("overrides", "--history")
    ]
    assert (2, True) == (told.exit_code, "up to 1000 characters" in told.stderr)
