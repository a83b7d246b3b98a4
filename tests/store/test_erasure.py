"""All of a person's records are found and removed, on a real MongoDB."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import pytest
import yaml
from pymongo import MongoClient
from pymongo.collection import Collection

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.failed_auth import FailureKey, FailureKind
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.pseudonyms import PseudonymKey, Pseudonyms
from oauth_ratelimit.core.statistics import ClientMinute, UserLoad
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.guard import Guess
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.store.base import Change
from oauth_ratelimit.store.mongo import erasure
from oauth_ratelimit.store.mongo.client import FAILURES, OVERRIDES, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.document import document_id
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal, terminal
from tests.store.test_denials import DENIAL, RECORD
from tests.support.limiters import in_flight_hits
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
        return load_config(self.terminal.settings).privacy.names()

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
        OverrideStore(connection).note_reset(Counters("app", name), author="ops", reason="", at_s=time.time())


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

    assert FOUND == records.terminal.data("erase", ALICE)["removed"]
    after = everything_in(records.uri)
    assert [] == [name for name in names if name in after.replace(f"{name}x", "")]
    assert before.count(others) == after.count(others)
    assert before.count("'eve'") == after.count("'eve'")
    assert dict.fromkeys(FOUND, 0) == records.terminal.data("erase", ALICE)["removed"]


def test_erase_finds_records_under_former_keys_and_plain_names(records: Records) -> None:
    records.fill({})
    records.fill(OLDER)
    records.configure(HASHED)

    removed = records.terminal.data("erase", ALICE)["removed"]
    assert {"counters": 12, "failures": 4, "statistics": 1, "denials": 2, "overrides": 2} == removed
    assert ALICE not in everything_in(records.uri).replace(f"{ALICE}x", "")


def test_erase_takes_the_hash_of_a_log_line(records: Records) -> None:
    records.fill(OLDER)
    shown = str(records.configure(OLDER)(ALICE))

    assert FOUND | {"failures": 0, "denials": 1} == records.terminal.data("erase", shown)["removed"]
    assert shown not in everything_in(records.uri).replace(f"{shown}x", "")


def test_erase_at_one_client_leaves_the_records_at_others(records: Records) -> None:
    """Overrides are about clients, so the name is blanked everywhere, except for resets elsewhere."""
    records.fill({})

    removed = [records.terminal.data("erase", ALICE, "--client", name)["removed"] for name in ("z/last", "app")]
    assert dict.fromkeys(FOUND, 0) | {"counters": 2, "overrides": 1} == removed[0]
    assert FOUND | {"counters": 2, "overrides": 1} == removed[1]
    assert [("portal", ALICE)] * 2 == [
        (row["client_id"], row["username"]) for row in records.terminal.data("show", "portal", ALICE)
    ]


def test_dry_run_and_an_empty_name_remove_nothing(records: Records) -> None:
    """The dry run counts what a run would remove. An unset variable of a script gives an empty name."""
    records.fill({})
    before = everything_in(records.uri)

    data = records.terminal.data("erase", ALICE, "--dry-run")
    assert (FOUND, True, {}, []) == (data["found"], data["is_dry_run"], data["refused"], data["unconfirmed"])
    assert [2, 2] == [records.terminal.run("erase", user).exit_code for user in ("", " ")]
    assert before == everything_in(records.uri)


def test_table_names_what_was_removed_and_what_stays(records: Records) -> None:
    records.fill({})
    text = records.terminal.ok("erase", ALICE)

    assert ["counters", "6"] in [line.split() for line in text.splitlines()]
    assert "log files" in text
    assert "Run it again in 120 s" in text


def test_reset_during_an_erasure_hides_no_entry(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new entry moves all entries of a full history."""
    monkeypatch.setattr("oauth_ratelimit.store.mongo.overrides.MAX_HISTORY", 3)
    with closing(Connection(records.uri)) as connection:
        store = OverrideStore(connection)

        def note_reset(user: str) -> None:
            store.note_reset(Counters("app", user), author="ann", reason=f"asked by {user}", at_s=time.time())

        find = Collection.find

        def find_and_be_overtaken(self: Collection[dict[str, Any]], query: Any, *args: Any, **options: Any) -> Any:
            found = find(self, query, *args, **options)
            if self.name != OVERRIDES or "history" not in query:
                return found
            documents = list(found)
            note_reset("carol")
            return documents

        for user in (BOB, ALICE, BOB):
            note_reset(user)
        with monkeypatch.context() as patch:
            patch.setattr(Collection, "find", find_and_be_overtaken)
            assert 1 == records.terminal.data("erase", ALICE)["removed"]["overrides"]

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

    assert FOUND == records.terminal.data("erase", ALICE)["removed"]


@pytest.mark.parametrize("user", ["\udc80", "x" * 5000, "a\0b", ".*", "^[^ ]+ (", "\u202e"])
def test_any_name_is_found_as_itself(records: Records, user: str) -> None:
    records.check(("app", user), ("app", BOB))

    assert dict.fromkeys(FOUND, 0) | {"counters": 2} == records.terminal.data("erase", user)["removed"]
    assert 2 == everything_in(records.uri).count(BOB)


class Instance:
    """A worker on a real MongoDB whose cycles the test runs."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = {"limits": {"user": ["100000/minute"]}, "guard": {"mode": "enforce"}, "sync": {"max_interval": "1s"}}
        live = LiveSettings(load_config({"mode": "enforce", "store": {"uri": uri}, **limits}), lambda: None)
        self.worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=time.time)
        self.limiter = self.worker.limiter
        self.is_cut_off = self.is_without_overrides = False
        assert self.worker.stores is not None
        for store, names in (
            (self.worker.stores.overrides, ("revision",)),
            (self.worker.stores.counters, ("read", "compare_and_set")),
            (self.worker.stores.failures, ("read", "compare_and_set")),
        ):
            for name in names:
                monkeypatch.setattr(store, name, partial(self._call, name, getattr(store, name)))
        self.worker.after_cycle(None)

    def _call(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        if self.is_cut_off or (self.is_without_overrides and name == "revision"):
            raise StoreUnavailable("no answer")
        return method(*args)

    def fail(self, username: str) -> None:
        keys = [FailureKey.at(FailureKind.USER, "app", "192.0.2.7", username)]
        guess = self.worker.guard.reserve(keys)
        assert isinstance(guess, Guess)
        self.worker.guard.settle(guess, is_wrong=True)

    def cycle(self) -> None:
        self.worker.after_cycle(self.worker.health_monitor.sync())


class Erasing:
    """Instances that count while Ann is erased."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = uri
        self.pause_count = 0
        self.instances = [Instance(uri, monkeypatch) for _ in range(2)]
        self.connection = Connection(uri)
        self.erasure = erasure.Erasure(
            self.connection, collection="ratelimits", person=erasure.Person(("ann",), ("ann",), ("ann",))
        )

    def cycle(self) -> None:
        for instance in self.instances:
            instance.cycle()

    def erase(self) -> tuple[list[str], int, int]:
        """Erase Ann. Return who has not confirmed it, and the number of her counters and failures."""
        unconfirmed = self.erasure.announce(interval_s=1.0, sleep=self._pause)
        counters, failures = (self.erasure.count(part, remove=True) for part in ("counters", "failures"))
        return unconfirmed, counters, failures

    def _pause(self, _seconds: float) -> None:
        """Let instances go on, one of them later than the other."""
        self.pause_count += 1
        for number, instance in enumerate(self.instances):
            if self.pause_count > 2 * number:
                instance.cycle()

    def hits(self, username: str) -> int | None:
        """Return the stored hits, None without a document."""
        found = self.connection.collection("ratelimits").find_one({"_id": document_id(Key("app", username))})
        return None if found is None else sum(found["requestCounters"]["6"].values())


@pytest.fixture
def erasing(mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Erasing]:
    made = Erasing(mongo_uri, monkeypatch)
    for instance in made.instances:
        for username in ("ann", "bob"):
            instance.limiter.check("app", username, cost=3)
            instance.fail(username)
        instance.cycle()
    yield made
    for instance in made.instances:
        instance.worker.stop()
    made.connection.close()


def test_erased_user_is_not_written_from_memory_and_counts_anew_on_return(erasing: Erasing) -> None:
    """Hits that were not sent go with the name, as soon as an instance knows. Others keep theirs."""
    for instance in erasing.instances:
        for username in ("ann", "bob"):
            instance.limiter.check("app", username, cost=2)
            instance.fail(username)
    assert ([], 1, 1) == erasing.erase()
    erasing.cycle()
    assert (None, 10) == (erasing.hits("ann"), erasing.hits("bob"))
    assert ("ann" in everything_in(erasing.uri), everything_in(erasing.uri).count("192.0.2.7 bob")) == (False, 1)

    for instance in erasing.instances:
        instance.limiter.check("app", "ann", cost=2)
    for _ in range(3):
        erasing.cycle()
    assert 4 == erasing.hits("ann")


@pytest.mark.parametrize("is_urgent_first", [False, True])
def test_instance_that_is_cut_off_is_named_and_drops_the_erased_user_before_it_writes(
    erasing: Erasing, is_urgent_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_WAIT_S", 0.0)
    other, cut_off = erasing.instances
    cut_off.is_cut_off = True
    cut_off.limiter.check("app", "ann")
    cut_off.fail("ann")
    other.limiter.check("app", "ann")
    assert ([cut_off.worker.health_monitor.instance], 1, 1) == erasing.erase()

    cut_off.is_cut_off = False
    cut_off.limiter.check("app", "ann")
    if is_urgent_first:
        cut_off.limiter.sync_urgent()
    erasing.cycle()
    assert "ann" not in everything_in(erasing.uri)


def test_nothing_is_sent_while_erasures_cannot_be_read(erasing: Erasing) -> None:
    """Somebody may be erased meanwhile."""
    instance, _ = erasing.instances
    instance.is_without_overrides = True
    instance.limiter.check("app", "bob")
    instance.cycle()
    assert (6, 1) == (erasing.hits("bob"), in_flight_hits(instance.limiter, Key("app", "bob")))

    instance.is_without_overrides = False
    instance.cycle()
    assert 7 == erasing.hits("bob")


def test_instance_that_ends_after_an_outage_drops_the_erased_user_and_sends_the_rest(
    erasing: Erasing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_WAIT_S", 0.0)
    _, cut_off = erasing.instances
    cut_off.is_cut_off = True
    for username in ("ann", "bob"):
        cut_off.limiter.check("app", username)
    erasing.erase()
    cut_off.cycle()
    cut_off.is_cut_off = False
    cut_off.worker.stop()

    assert (None, 7) == (erasing.hits("ann"), erasing.hits("bob"))
