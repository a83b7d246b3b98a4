"""All of a person's records are found and removed, on a real MongoDB."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from pymongo import MongoClient
from pymongo.collection import Collection

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.pseudonyms import PseudonymKey, Pseudonyms, erasure_mark
from oauth_ratelimit.core.statistics import ClientMinute, UserLoad
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.key_state import Counts
from oauth_ratelimit.counters.pruning import SLACK_S
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.base import ERASURES, Change
from oauth_ratelimit.store.mongo import erasure
from oauth_ratelimit.store.mongo.client import FAILURES, OVERRIDES, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.document import ERASURES_ID, compose_erasures, document_id
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import Share, StatisticsStore
from oauth_ratelimit.sync.clock import SAMPLE_COUNT
from oauth_ratelimit.sync.flusher import MAX_BATCH
from tests.cli.conftest import Terminal, terminal
from tests.support.stores import FAR_S, everything_in, mongo_store
from tests.sync.faulty_store import Fault, FaultyStore

__all__ = ["terminal"]

ALICE, BOB = "Alice (50%).$", "bob"
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
        self.now_s = time.time()
        self.limiters: list[Limiter] = []

    def configure(self, privacy: dict[str, Any]) -> Pseudonyms:
        """
        Have the commands, and instances from now on, go by a section ``privacy``; return the pseudonyms of users then.
        """
        self.terminal.settings["privacy"] = privacy
        self.terminal.config_path.write_text(yaml.safe_dump(self.terminal.settings))
        return load_config(self.terminal.settings).privacy.names()

    def fill(self, privacy: dict[str, Any]) -> None:
        """Leave records of two users everywhere."""
        names = self.configure(privacy)
        limiter = Limiter(load_config(self.terminal.settings), clock=lambda: self.now_s)
        self.limiters.append(limiter)
        for number, user in enumerate((ALICE, BOB)):
            for client_id in CLIENTS:
                limiter.check(client_id, user)
                limiter.check(client_id, user, grant_type="refresh_token")
            claim = str(names(user.casefold()))
            self._fail(claim)
            with closing(Connection(self.uri)) as connection:
                self._tell(connection, str(names(user)), claim, number=number)
        limiter.sync()

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
            StatisticsStore(connection).put(writer, [Share(minute, is_complete=True)], keep_s=3600)
        records = [
            self._denial(2 * number, name, scope=None),
            self._denial(2 * number + 1, f"192.0.2.1 {claim}", scope="failures:user"),
        ]
        DenialStore(connection).put(records, keep_s=3600)
        override = Override(
            Target(OverrideKind.MODE, f"client-{number}"),
            author=name,
            reason=f"because of {name}: flood; not of {name}x",
            made_at_s=self.now_s,
            mode=Mode.DRY_RUN,
        )
        OverrideStore(connection).put(override)
        OverrideStore(connection).note_reset(Counters("app", name), author="ops", reason="", at_s=self.now_s)

    def _denial(self, number: int, username: str, *, scope: str | None) -> DenialRecord:
        denial = Denial(
            first_id=number,
            at_s=self.now_s,
            client_id="app",
            username=username,
            scope=scope,
            grant_type=None,
            policy="user",
            limit=1,
            window_s=60,
            mode="enforce",
            is_canary=False,
            retry_after_s=1.0,
            trace=Trace(),
        )
        return DenialRecord(denial, instance="node", last_at_s=self.now_s, suppressed_count=0)

    def text(self) -> str:
        """Return all that the database holds."""
        return everything_in(self.uri)

    def close(self) -> None:
        """Close the instances."""
        for limiter in self.limiters:
            limiter.close()


@pytest.fixture
def records(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """An empty database."""
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    records = Records(terminal)
    yield records
    records.close()


FOUND = {"counters": 6, "failures": 2, "statistics": 1, "denials": 2, "overrides": 2}


@pytest.mark.parametrize("privacy", [{}, OLDER, HASHED], ids=["plain", "hashed", "two keys"])
def test_erase_leaves_nothing_of_a_person_and_everything_of_others(records: Records, privacy: dict[str, Any]) -> None:
    records.fill(privacy)
    names = [ALICE, ALICE.casefold(), *(form(name) for form in FORMS for name in (ALICE, ALICE.casefold()))]
    others = str(records.configure(privacy)(BOB))
    before = records.text()
    assert any(name in before for name in names)

    assert FOUND == records.terminal.data("erase", ALICE)["removed"]
    after = records.text()
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
    assert ALICE not in records.text().replace(f"{ALICE}x", "")


def test_erase_takes_the_hash_of_a_log_line(records: Records) -> None:
    records.fill(OLDER)
    shown = str(records.configure(OLDER)(ALICE))

    assert FOUND | {"failures": 0, "denials": 1} == records.terminal.data("erase", shown)["removed"]
    assert shown not in records.text().replace(f"{shown}x", "")


def test_erase_at_one_client_leaves_the_records_at_others(records: Records) -> None:
    """Overrides are about clients, so the name is blanked everywhere, except for resets elsewhere."""
    records.fill({})

    assert (
        FOUND | {"counters": 2, "failures": 0, "statistics": 0, "denials": 0, "overrides": 1}
        == (records.terminal.data("erase", ALICE, "--client", "z/last")["removed"])
    )
    assert (
        FOUND | {"counters": 2, "overrides": 1} == (records.terminal.data("erase", ALICE, "--client", "app")["removed"])
    )
    assert [("portal", ALICE)] * 2 == [
        (row["client_id"], row["username"]) for row in records.terminal.data("show", "portal", ALICE)
    ]


def test_dry_run_counts_and_removes_nothing(records: Records) -> None:
    """The counts are those of a run."""
    records.fill({})
    before = records.text()

    data = records.terminal.data("erase", ALICE, "--dry-run")
    assert (FOUND, True, {}) == (data["found"], data["is_dry_run"], data["refused"])
    assert before == records.text()


def test_table_names_what_was_removed_and_what_stays(records: Records) -> None:
    records.fill({})
    text = records.terminal.ok("erase", ALICE)

    assert ["counters", "6", "ratelimits"] in [line.split() for line in text.splitlines()]
    assert "log files" in text
    assert "Run it again in 120 s" in text


def test_instances_start_an_erased_user_at_zero(records: Records) -> None:
    records.fill({})
    settings = load_config(records.terminal.settings)
    other = Limiter(settings, clock=lambda: records.now_s)
    records.limiters.append(other)
    other.check("app", ALICE)
    other.sync()
    records.terminal.ok("erase", ALICE)
    for limiter in records.limiters * 2:
        limiter.sync()

    assert [5, 5] == [limiter.peek("app", ALICE).remaining for limiter in records.limiters]
    assert ALICE not in records.text().replace(f"{ALICE}x", "")


def test_reset_during_an_erasure_hides_no_entry(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new entry moves all entries of a full history."""
    monkeypatch.setattr("oauth_ratelimit.store.mongo.overrides.MAX_HISTORY", 3)
    with closing(Connection(records.uri)) as connection:
        store = OverrideStore(connection)

        def note_reset(user: str) -> None:
            store.note_reset(Counters("app", user), author="ann", reason=f"asked by {user}", at_s=records.now_s)

        find = Collection.find

        def find_and_be_overtaken(self: Collection[dict[str, Any]], *args: Any, **options: Any) -> Any:
            found = find(self, *args, **options)
            if self.name != OVERRIDES:
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
    """Whatever is stored in place of the users."""
    records.fill({})
    client: MongoClient[dict[str, Any]] = MongoClient(records.uri)
    with client:
        statistics = client.get_default_database()["ratelimit_stats"]
        for minute_s, users in enumerate((7, {"w": 7}, {"w": {"d": 7}}, {"w": {"d": [1]}}, {"w": {"d": [1, 1, 1, 7]}})):
            statistics.insert_one({"_id": {"clientId": "app", "minute": minute_s}, "users": users})

    assert FOUND == records.terminal.data("erase", ALICE)["removed"]


def test_counters_are_found_by_the_index(records: Records) -> None:
    """Two reads per client, however many other users there are."""
    records.fill({})
    client: MongoClient[dict[str, Any]] = MongoClient(records.uri)
    with client:
        database = client.get_default_database()
        database["ratelimits"].insert_many(
            [{"_id": {"clientId": "app", "username": f"user-{number}"}} for number in range(2000)]
        )
        database.command("profile", 2)
        records.terminal.ok("erase", ALICE, "--dry-run")
        database.command("profile", 0)
        looked = list(database["system.profile"].find({"ns": f"{database.name}.ratelimits", "op": "query"}))

    assert 2 * len(CLIENTS) + 1 == len(looked)
    assert sum(entry["keysExamined"] for entry in looked) < 40


def test_counters_beyond_the_first_clients_are_found_by_one_scan(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "MAX_JUMPS", 1)
    records.fill({})

    assert FOUND == records.terminal.data("erase", ALICE)["removed"]
    assert ALICE not in records.text().replace(f"{ALICE}x", "")


@pytest.mark.parametrize("user", ["", " "])
def test_empty_name_erases_nothing(records: Records, user: str) -> None:
    """An unset variable of a script gives one."""
    records.fill({})
    before = records.text()

    assert 2 == records.terminal.run("erase", user).exit_code
    assert before == records.text()


@pytest.mark.parametrize("user", ["\udc80", "x" * 5000, "a\0b", ".*", "^[^ ]+ (", "\u202e"])
def test_any_name_is_found_as_itself(records: Records, user: str) -> None:
    limiter = Limiter(load_config(records.terminal.settings), clock=lambda: records.now_s)
    records.limiters.append(limiter)
    for name in (user, BOB):
        limiter.check("app", name)
    limiter.sync()

    assert dict.fromkeys(FOUND, 0) | {"counters": 1} == records.terminal.data("erase", user)["removed"]
    assert 1 == records.text().count(BOB)


class Erasing:
    """Instances that count Ann while she is erased, on a real MongoDB."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.stores: list[FaultyStore] = []
        self.connection = Connection(uri)
        self.documents = self.connection.collection("ratelimits")

    def new_instance(self, limit: str = "50/minute") -> Limiter:
        """Return an instance that has read nothing."""
        store = FaultyStore(mongo_store(self.uri))
        self.stores.append(store)
        return Limiter(load_config({"mode": "enforce", "limits": {"user": [limit]}}), store)

    def instance(self) -> Limiter:
        """Return an instance that knows Bob, and that new keys have no documents: it writes them without a read."""
        limiter = self.new_instance("100000/minute")
        limiter.check("app", "bob")
        for index in range(100):
            limiter.check("app", f"user-{len(self.stores)}-{index}")
        limiter.sync()
        return limiter

    def erase(self, client_id: str | None = None) -> int:
        """Erase Ann's counters, and return how many documents there were."""
        person = erasure.Person(("ann",), ("ann",), ("ann",), client_id)
        return erasure.Erasure(self.connection, collection="ratelimits", person=person).counters(remove=True)

    def hits(self, client_id: str = "app", username: str = "ann") -> int | None:
        """Return the stored hits, None without a document."""
        found = self.documents.find_one({"_id": document_id(Key(client_id, username))})
        return None if found is None else sum(found["requestCounters"]["6"].values())


@pytest.fixture
def erasing(mongo_uri: str) -> Iterator[Erasing]:
    """Instances and an erasure."""
    made = Erasing(mongo_uri)
    yield made
    made.connection.close()
    for store in made.stores:
        store.close()


def test_erased_user_is_not_written_from_memory_and_counts_anew_on_return(erasing: Erasing) -> None:
    """Hits that were not sent go with the name, at the next read. Others keep theirs."""
    limiters = [erasing.instance() for _ in range(2)]
    for limiter in limiters:
        limiter.check("app", "ann", cost=3)
        limiter.sync()
        limiter.check("app", "ann", cost=5)
        limiter.check("app", "bob")
    assert 1 == erasing.erase()
    for limiter in limiters:
        limiter.sync()
        limiter.sync()
        assert Counts(0, 0) == limiter.counts("app", "ann")
    assert (None, 4) == (erasing.hits(), erasing.hits(username="bob"))

    for limiter in limiters:
        limiter.check("app", "ann", cost=2)
        for _ in range(3):
            limiter.sync()
    assert 4 == erasing.hits()


def test_instances_that_start_after_an_erasure_keep_all_hits_of_the_user(erasing: Erasing) -> None:
    """The erasure concerns what was counted before."""
    erasing.erase()
    earlier = datetime.now(UTC) - timedelta(seconds=SLACK_S + 5)
    erasing.documents.update_one({"_id": ERASURES_ID}, {"$set": {f"seen.{erasure_mark('ann')}": earlier}})
    for limiter in (erasing.new_instance(), erasing.new_instance()):
        limiter.check("app", "ann", cost=2)
        for _ in range(3):
            limiter.sync()

    assert 4 == erasing.hits()


def test_first_hits_after_an_erasure_stay_while_the_clock_of_mongodb_is_not_answered(
    erasing: Erasing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands fail one by one: the read that shows an old erasure arrives, the question for the time does not."""
    erasing.erase()
    earlier = datetime.now(UTC) - timedelta(seconds=SLACK_S + 5)
    erasing.documents.update_one({"_id": ERASURES_ID}, {"$set": {f"seen.{erasure_mark('ann')}": earlier}})
    limiter = erasing.new_instance()
    (store,) = erasing.stores
    measurements, ask = iter(range(SAMPLE_COUNT)), store.time_s

    def time_s() -> float:
        if next(measurements, None) is None:
            raise StoreUnavailable("no answer")
        return ask()

    monkeypatch.setattr(store, "time_s", time_s)
    limiter.check("app", "ann", cost=2)
    for _ in range(3):
        limiter.sync()

    assert 2 == erasing.hits()


@pytest.mark.parametrize("other_count", [0, MAX_BATCH], ids=["in the batch that fails", "in a later one"])
def test_instance_that_was_cut_off_drops_the_erased_user_before_it_writes(erasing: Erasing, other_count: int) -> None:
    """Both when it knew the user before and when it did not."""
    known, new = erasing.instance(), erasing.instance()
    known.check("app", "ann")
    known.sync()
    for store in erasing.stores:
        store.is_down = True
    for limiter in (known, new):
        for index in range(other_count):
            limiter.check("portal", f"user-{index}")
        limiter.check("app", "ann")
        assert limiter.sync().error is not None
    erasing.erase()
    for store in erasing.stores:
        store.is_down = False
    for limiter in (known, new):
        limiter.check("app", "ann")
        limiter.sync_urgent()  # reads and writes no other key
        assert limiter.sync().error is None

    assert erasing.hits() is None


def test_late_first_write_of_an_erased_user_is_removed_by_a_second_pass(erasing: Erasing) -> None:
    """The instance does not send it again."""
    limiter = erasing.instance()
    limiter.check("app", "ann")
    erasing.stores[0].faults.append(Fault.LATE)
    limiter.sync()
    assert 0 == erasing.erase()
    limiter.sync()
    erasing.stores[0].deliver(erasing.stores[0].held[0])
    assert (1, 1, None) == (erasing.hits(), erasing.erase(), erasing.hits())
    for _ in range(3):
        limiter.sync()

    assert erasing.hits() is None


def test_erasure_at_one_client_leaves_the_hits_at_others(erasing: Erasing) -> None:
    limiter = erasing.instance()
    for client_id in ("app", "portal"):
        limiter.check(client_id, "ann")
    erasing.erase("portal")
    limiter.check("app", "bob")
    erasing.stores[0].is_down = True
    limiter.sync()
    erasing.stores[0].is_down = False
    limiter.sync()

    assert (1, None) == (erasing.hits("app"), erasing.hits("portal"))


@pytest.mark.parametrize("name", ["x..y", "", "$x", "a.b"])
@pytest.mark.parametrize("value", [datetime(2100, 1, 1, tzinfo=UTC), 1])
def test_damaged_record_of_erasures_is_made_anew(erasing: Erasing, name: str, value: object) -> None:
    """Names that no update of MongoDB can address do not keep a user from being erased; other erasures stay."""
    known = {erasure_mark("bob"): datetime(2100, 1, 1, tzinfo=UTC)}
    erasing.documents.insert_one({"_id": ERASURES_ID, "seen": {name: value, **known}})
    erasing.erase()
    found = erasing.documents.find_one({"_id": ERASURES_ID})
    assert found is not None
    assert {erasure_mark("ann"), erasure_mark("bob")} == found["seen"].keys()


def test_record_of_erasures_is_sent_when_it_has_changed(erasing: Erasing) -> None:
    """Every read asks for it, and knows it."""
    marks = [f"{number:032x}" for number in range(1000)]
    database = erasing.connection.database
    with closing(mongo_store(erasing.uri)) as store:
        store.read([])
        database.command("profile", 2)
        seen = []
        for added in (marks, [], [erasure_mark("ann")], []):
            if added:
                known = erasing.documents.find_one({"_id": ERASURES_ID})
                update = compose_erasures(added, at=datetime.now(UTC), known=known)
                erasing.documents.update_one({"_id": ERASURES_ID}, update, upsert=True)
            seen.append(store.read([Key("app", "ann")])[ERASURES].seen.keys())
        database.command("profile", 0)
    reads = database["system.profile"].find({"command.projection.seen": {"$exists": True}}).sort("ts", 1)

    assert [{*marks}, {*marks}, {*marks, erasure_mark("ann")}, {*marks, erasure_mark("ann")}] == seen
    assert [True, False, True, False] == [read["responseLength"] > 10_000 for read in reads]


def test_instances_learn_of_the_newest_thousand_erasures_for_a_day(erasing: Erasing) -> None:
    """The record that every read brings stays small, and names nobody."""
    for number in range(3):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
        marks = [f"{number}-{index}" for index in range(600)]
        known = erasing.documents.find_one({"_id": ERASURES_ID})
        update = compose_erasures(marks, at=at, known=known)
        erasing.documents.update_one({"_id": ERASURES_ID}, update, upsert=True)
    assert 1600 == len((erasing.documents.find_one({"_id": ERASURES_ID}) or {})["seen"])
    erasing.erase()
    found = erasing.documents.find_one({"_id": ERASURES_ID})
    assert found is not None
    assert {erasure_mark("ann")} == found["seen"].keys()
    assert "ann" not in repr(found)
