"""All of a person's records are found and removed, on a real MongoDB."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import Any

import pytest
import yaml
from pymongo import MongoClient
from pymongo.collection import Collection

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.failed_auth import FailureKind, failure_key
from oauth_ratelimit.core.key import Key, PseudonymKey, Pseudonyms
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.statistics import ClientMinute, UserLoad
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.guard import Guess
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.operations.format import instance_text
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo.client import FAILURES, OVERRIDES, Connection
from oauth_ratelimit.store.mongo.counters import CounterDocuments
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.erasure import Erasure
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal, terminal
from tests.store.test_denials import DENIAL, RECORD
from tests.support.stores import FAR_S, everything_in, mongo_store

__all__ = ["terminal"]

ALICE, BOB = "$Alice (50%).$", "bob"
CLIENTS = ("app", "portal", "z/last")
SECRETS = {"NAME_KEY_OLD": "o" * 32, "NAME_KEY_NEW": "n" * 32}
FORMS = [PseudonymKey.of(SECRETS[name].encode()) for name in ("NAME_KEY_NEW", "NAME_KEY_OLD")]
HASHED = {"user_names": "hashed", "keys": [{"env": "NAME_KEY_NEW"}, {"env": "NAME_KEY_OLD"}]}
OLDER = {"user_names": "hashed", "keys": [{"env": "NAME_KEY_OLD"}]}


class Records:
    """Everything that MongoDB may hold of users."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.uri: str = terminal.settings["store"]["uri"]

    def configure(self, privacy: dict[str, Any]) -> Pseudonyms:
        """Have commands and instances use a section ``privacy`` from now on, and return its pseudonyms."""
        self.terminal.settings |= {"privacy": privacy, "sync": {"interval": "10ms"}}
        self.terminal.config_path.write_text(yaml.safe_dump(self.terminal.settings))
        return load_config(self.terminal.settings).privacy.pseudonyms()

    def fill(self, privacy: dict[str, Any]) -> None:
        names = self.configure(privacy)
        self.check(*product(CLIENTS, (ALICE, BOB)))
        for number, user in enumerate((ALICE, BOB)):
            claim = str(names(user.casefold()))
            self._fail(claim)
            with closing(Connection(self.uri)) as connection:
                self._tell(connection, str(names(user)), claim, number=number)

    def check(self, *requests: tuple[str, str]) -> None:
        """Have an instance count a grant of each kind for these clients and users, and end."""
        with closing(Limiter(load_config(self.terminal.settings))) as limiter:
            for client_id, user in requests:
                limiter.check(client_id, user)
                limiter.check(client_id, user, grant_type="refresh_token")

    def _fail(self, name: str) -> None:
        with closing(mongo_store(self.uri, collection=FAILURES)) as store:
            places = (("203.0.113.9", "failures:user"), ("2001:db8::/64", "failures:passed_on"))
            for number, (address, scope) in enumerate(places):
                key = Key("app", f"{address} {name}", scope)
                store.compare_and_set("w", [Change(key, None, 7 + number, 1, {Series(6): {600: 1}}, FAR_S)])

    def _tell(self, connection: Connection, name: str, claim: str, *, number: int) -> None:
        """Leave what instances and operators say about a user."""
        for writer in ("one", "two"):
            minute = ClientMinute("app", 1_900_000_020, users=(UserLoad(name, 5, 1, 0), UserLoad("eve", 1, 0, 0)))
            StatisticsStore(connection).put(writer, [minute], keep_s=3600)
        denials = [
            DENIAL._replace(decision_id=f"{number}-token", username=name, scope=None),
            DENIAL._replace(decision_id=f"{number}-guess", username=f"192.0.2.1 {claim}", scope="failures:user"),
        ]
        DenialStore(connection).put([RECORD._replace(denial=denial) for denial in denials], keep_s=3600)
        override = Override(
            Target(OverrideKind.MODE, f"client-{number}"),
            author=name,
            reason=f"because of {name}: flood; not of {name}x",
            made_at_s=time.time(),
            mode=Mode.DRY_RUN,
        )
        OverrideStore(connection).put(override)
        OverrideStore(connection).note_reset(Counters("app", name), author="ops", reason="")


@pytest.fixture
def records(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Records:
    """An empty database."""
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    return Records(terminal)


FOUND = {"counters": 6, "failures": 2, "statistics": 1, "denials": 2, "overrides": 2}


@pytest.mark.parametrize("privacy", [{}, OLDER, HASHED], ids=["plain", "hashed", "two keys"])
def test_erase_leaves_nothing_of_a_person_and_everything_of_others(records: Records, privacy: dict[str, Any]) -> None:
    records.fill(privacy)
    names = [ALICE, ALICE.casefold(), *(form(name) for form in FORMS for name in (ALICE, ALICE.casefold()))]
    others = str(records.configure(privacy)(BOB))
    before = everything_in(records.uri)
    assert any(name in before for name in names)

    assert FOUND == records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]
    after = everything_in(records.uri)
    assert [] == [name for name in names if name in after.replace(f"{name}x", "")]
    assert before.count(others) == after.count(others)
    assert before.count("'eve'") == after.count("'eve'")
    assert dict.fromkeys(FOUND, 0) == records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]


def test_erase_finds_records_under_former_keys_and_plain_names(records: Records) -> None:
    records.fill({})
    records.fill(OLDER)
    records.configure(HASHED)

    removed = records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]
    assert {"counters": 12, "failures": 4, "statistics": 1, "denials": 2, "overrides": 2} == removed
    assert ALICE not in everything_in(records.uri).replace(f"{ALICE}x", "")


def test_erase_finds_tokens_that_other_sites_have_asked_for(records: Records) -> None:
    records.configure(HASHED)
    with closing(Limiter(load_config(records.terminal.settings))) as limiter:
        _, held = limiter.hold("app", ALICE, is_cross_site=True)
        limiter.confirm(held)

    assert 1 == records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]["counters"]


def test_erase_takes_the_hash_of_a_log_line(records: Records) -> None:
    records.fill(OLDER)
    shown = str(records.configure(OLDER)(ALICE))

    assert FOUND | {"failures": 0, "denials": 1} == records.terminal.data("erase", "--user", shown, "--yes")["removed"]
    assert shown not in everything_in(records.uri).replace(f"{shown}x", "")


def test_erase_at_one_client_leaves_the_records_at_others(records: Records) -> None:
    """Overrides are about clients, so the name is blanked everywhere, except for resets elsewhere."""
    records.fill({})

    removed = [
        records.terminal.data("erase", "--user", ALICE, "--yes", "--client", name)["removed"]
        for name in ("z/last", "app")
    ]
    assert dict.fromkeys(FOUND, 0) | {"counters": 2, "overrides": 1} == removed[0]
    assert FOUND | {"counters": 2, "overrides": 1} == removed[1]
    assert [("portal", ALICE)] * 2 == [
        (row["client_id"], row["username"]) for row in records.terminal.data("show", "portal", ALICE)
    ]


def test_dry_run_and_an_empty_name_remove_nothing(records: Records) -> None:
    """The dry run counts what a run would remove. An unset variable of a script gives an empty name."""
    records.fill({})
    before = everything_in(records.uri)

    data = records.terminal.data("erase", "--user", ALICE, "--dry-run")
    assert (FOUND, True, {}, {}) == (data["found"], data["is_dry_run"], data["refused"], data["came_back"])
    assert [2, 2] == [records.terminal.run("erase", "--user", user, "--yes").exit_code for user in ("", " ")]
    assert before == everything_in(records.uri)


def test_table_names_what_was_removed_and_what_stays(records: Records) -> None:
    records.fill({})
    text = records.terminal.ok("erase", "--user", ALICE, "--yes")

    assert ["counters", "6"] in [line.split() for line in text.splitlines()]
    assert "log files" in text
    assert "Run it again in 120 s" in text


def test_reset_during_an_erasure_hides_no_entry(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new entry moves all entries of a full history."""
    monkeypatch.setattr("oauth_ratelimit.store.mongo.overrides.MAX_HISTORY", 3)
    with closing(Connection(records.uri)) as connection:
        store = OverrideStore(connection)

        def note_reset(user: str) -> None:
            store.note_reset(Counters("app", user), author="ann", reason=f"asked by {user}")

        find = Collection.find

        def find_and_be_overtaken(self: Collection[dict[str, Any]], query: Any, *args: Any, **options: Any) -> Any:
            found = find(self, query, *args, **options)
            if self.name != OVERRIDES or "history" not in query:
                return found
            patch.setattr(Collection, "find", find)
            documents = list(found)
            note_reset("carol")
            return documents

        for user in (BOB, ALICE, BOB):
            note_reset(user)
        with monkeypatch.context() as patch:
            patch.setattr(Collection, "find", find_and_be_overtaken)
            assert 1 == records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]["overrides"]

    assert [("[erased]", "asked by [erased]"), (BOB, "asked by bob"), ("carol", "asked by carol")] == [
        (entry["username"], entry["reason"]) for entry in records.terminal.data("overrides", "--history")
    ]


def test_damaged_statistics_hide_no_record(records: Records) -> None:
    records.fill({})
    client: MongoClient[dict[str, Any]] = MongoClient(records.uri)
    with client:
        statistics = client.get_default_database()["ratelimit_stats"]
        for minute_s, users in enumerate((7, {"w": 7}, {"w": {"d": 7}}, {"w": {"d": [1]}}, {"w": {"d": [1, 1, 1, 7]}})):
            statistics.insert_one({"_id": {"clientId": "app", "minute": minute_s}, "users": users})

    assert FOUND == records.terminal.data("erase", "--user", ALICE, "--yes")["removed"]


@pytest.mark.parametrize("user", ["\udc80", "x" * 5000, "a\0b", ".*", "^[^ ]+ (", "\u202e"])
def test_any_name_is_found_as_itself(records: Records, user: str) -> None:
    records.check(("app", user), ("app", BOB))

    assert (
        dict.fromkeys(FOUND, 0) | {"counters": 2} == records.terminal.data("erase", "--user", user, "--yes")["removed"]
    )
    assert 2 == everything_in(records.uri).count(BOB)


def test_entries_of_any_form_keep_no_name_in_others(records: Records) -> None:
    """What cannot be blanked is named."""
    records.fill({})
    client: MongoClient[dict[str, Any]] = MongoClient(records.uri)
    with client:
        overrides = client.get_default_database()["ratelimit_overrides"]
        refused = [[{"by": ALICE}], {"by": ALICE}]
        for number, history in enumerate((refused, [{"by": [ALICE]}], ALICE)):
            overrides.insert_one({"_id": {"kind": f"a{number}", "clientId": "app"}, "history": history})
        overrides.insert_one({"_id": {"kind": "\x1b[2J" + "x" * 5000, "clientId": "app"}, "history": refused})
        result = records.terminal.run("erase", "--user", ALICE, "--yes")
        found = list(overrides.find({"_id.kind": {"$in": ["mode", "counters"]}}))

    assert (3, 3) == (result.exit_code, len(found))
    assert f"{ALICE}:" not in str(found).replace(f"{ALICE}x", "")
    assert "a name stays in 2 of ratelimit_overrides: " in result.stderr
    assert "{'kind': 'a0', 'clientId': 'app'}: error (28)" in result.stderr
    assert "x" * 250 in result.stderr and "x" * 300 not in result.stderr


class Instances:
    """Workers on a real MongoDB that count Ann and Bob, and go on while Ann is erased."""

    def __init__(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = {"limits": {"user": ["100000/minute"]}, "guard": {"mode": "enforce"}}
        found = load_config({**terminal.settings, "mode": "enforce", **limits})
        self.terminal = terminal
        self.workers = [
            Worker(LiveSettings(found, lambda: None), callbacks=Callbacks(has_grant=bool), clock=time.time)
            for _ in range(2)
        ]
        self.waited_s: list[float] = []
        self.active: list[str] = []  # users with a request in each pause
        monkeypatch.setattr("oauth_ratelimit.cli.database.sleep", self._pause)
        for worker in self.workers:
            worker.after_cycle(None)
        self.count("ann", "bob")
        self.send()

    def count(self, *usernames: str) -> None:
        for worker, username in product(self.workers, usernames):
            worker.limiter.check("app", username, cost=3)
            keys = [failure_key(FailureKind.USER, "app", "192.0.2.7", username)]
            guess = worker.guard.reserve(keys)
            assert isinstance(guess, Guess)
            worker.guard.settle(guess, is_wrong=True)

    def send(self) -> None:
        for worker in self.workers:
            worker.limiter.sync()
            worker.guard.run()

    def _pause(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.count(*self.active)
        self.send()

    def stored(self, documents: Any) -> dict[str, int]:
        return {each["_id"]["username"]: sum(each["requestCounters"]["6"].values()) for each in documents.find()}


@pytest.fixture
def instances(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instances]:
    made = Instances(terminal, monkeypatch)
    yield made
    for worker in made.workers:
        worker.stop()


def test_hits_that_instances_still_had_are_removed_with_the_next_round(instances: Instances, documents: Any) -> None:
    """Others keep theirs. The user counts anew on return."""
    instances.count("ann", "bob")
    data = instances.terminal.data("erase", "--user", "ann", "--yes")
    assert ({"counters": 2, "failures": 2}, {}, []) == (
        {name: count for name, count in data["removed"].items() if count},
        data["came_back"],
        data["cut_off"],
    )
    assert [12.0, 12.0] == instances.waited_s
    assert "ann" not in everything_in(instances.terminal.settings["store"]["uri"])
    assert {"bob": 12} == instances.stored(documents)
    instances.count("ann")
    instances.send()
    assert {"bob": 12, "ann": 6} == instances.stored(documents)


def test_user_who_goes_on_comes_back_and_the_command_says_so(instances: Instances) -> None:
    instances.active = ["ann"]
    result = instances.terminal.run("erase", "--user", "ann", "--yes")
    assert (3, 2) == (result.exit_code, len(instances.waited_s))
    assert "records came back, at last 1 in counters, 1 in failures: run it again" in result.stderr


def test_long_sync_interval_is_waited_for(instances: Instances) -> None:
    """Hits are sent no sooner, whatever the maximum is."""
    instances.terminal.settings |= {"sync": {"interval": "30s", "max_interval": "10s"}}
    instances.terminal.config_path.write_text(yaml.safe_dump(instances.terminal.settings))
    assert (
        "Waiting 90 s for what instances still send."
        in instances.terminal.run("erase", "--user", "ann", "--yes").stderr
    )
    assert {90.0} == set(instances.waited_s)


@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "always"])
def test_refused_part_is_named_and_hides_no_instance_that_is_cut_off(
    instances: Instances, connection: Connection, monkeypatch: pytest.MonkeyPatch, is_lasting: bool
) -> None:
    beats = connection.collection("ratelimit_stats")
    beats.update_many({"_id.instance": {"$exists": True}}, {"$set": {"beat_at_s": time.time() - 16}})
    count, refusals = Erasure.count, []

    def refuse(self: Erasure, part: str, *, remove: bool) -> int:
        if part == "denials" and (is_lasting or not refusals):
            refusals.append(part)
            raise StoreRejected("MongoDB refused")
        return count(self, part, remove=remove)

    monkeypatch.setattr(Erasure, "count", refuse)
    result = instances.terminal.run("erase", "--user", "ann", "--yes", "--json")
    data = json.loads(result.stdout)
    assert (3, ["denials"]) == (result.exit_code, [*data["refused"]])
    assert {worker.health_monitor.instance for worker in instances.workers} == set(data["cut_off"])


def test_instance_that_is_cut_off_is_named(
    instances: Instances, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off, running = (worker.health_monitor.instance for worker in instances.workers)
    heartbeats, now_s, facts = connection.collection("ratelimit_stats"), time.time(), CounterDocuments.facts
    monkeypatch.setattr(CounterDocuments, "facts", lambda documents: facts(documents)._replace(clock_s=now_s))
    for instance, ago_s in ((cut_off, 16), (running, 14)):
        beat = {"$set": {"beat_at_s": now_s - ago_s}}
        assert heartbeats.update_one({"_id": {"instance": instance}}, beat).matched_count
    assert [cut_off] == instances.terminal.data("erase", "--user", "ann", "--yes")["cut_off"]
    assert f"{instance_text(cut_off)} is cut off and may bring counters back" in instances.terminal.ok(
        "erase", "--user", "ann", "--yes"
    )
