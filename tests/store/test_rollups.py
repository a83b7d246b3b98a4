"""Rollups in a real MongoDB, against the sums of all minutes of clients."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from bson import Decimal128, Int64
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect

from oauth_ratelimit.core.statistics import (
    DAY_S,
    HOUR_S,
    OTHER_CLIENTS,
    OVER,
    ClientMinute,
    ClientTotal,
    Denials,
    Peak,
    Source,
    Tally,
)
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.mongo import rollups
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.rollups import CHANGED, FIVE_S, ROLLUP, RollupStore
from oauth_ratelimit.store.mongo.statistics import MINUTES_KEPT_S, StatisticsStore
from testbed.clock import Clock
from tests.docs.blocks import ROOT
from tests.store.test_denials import RECORD
from tests.store.test_mongo_counters import Commands, commands

__all__ = ["commands"]

MINUTE_S = 60
KEEP_S = 1e9
PASSWORD, BATCH = Source("user", "password"), Source("client", "client_credentials")
REVOCATION, GUARDED = Source("client", "endpoint:revocation"), Source("client", "guard:user")
LONG = "x" * 2**20
SPANS_S = {900: MINUTE_S, HOUR_S: MINUTE_S, 6 * HOUR_S: FIVE_S, DAY_S: HOUR_S, 7 * DAY_S: HOUR_S}
"""Lengths of periods, each with the length of its steps."""


class Fleet:
    """Instances that write statistics and derive rollups, and a reader."""

    def __init__(self, connection: Connection, seed: int = 1) -> None:
        self.statistics, self.rollups = StatisticsStore(connection), RollupStore(connection)
        self.collection = connection.collection(STATISTICS)
        self.clock = Clock()
        self.clock.now_s = 1_950_000_010.0
        self._random = Random(seed)

    def write(self, minute_s: float, *, writer: str = "one", client_id: str | None = None, **outcomes: int) -> None:
        """Write requests of a minute, random ones by default."""
        random = self._random
        tally = (
            Tally(**outcomes) if outcomes else Tally(*(random.choice((0, 0, random.randrange(9))) for _ in range(5)))
        )
        start_s = int(minute_s // 60) * 60
        denials = {
            ("user", "password", over): Denials(count, start_s + random.randrange(30), start_s + 40, 10, 60)
            for over in OVER
            if (count := getattr(tally, over))
        }
        minute = ClientMinute(
            client_id or f"client-{random.randrange(9)}",
            start_s,
            {PASSWORD if outcomes else random.choice((PASSWORD, BATCH, REVOCATION, GUARDED)): tally},
            {random.choice(("user", "a.b")): Peak(round(random.random(), 3), 5.0, 10, 60)},
            denials=denials,
        )
        self.statistics.put(writer, [minute], keep_s=KEEP_S)

    def derive(self) -> int:
        return len(list(self.rollups.derive_due(self.clock(), keep_s=KEEP_S)))

    def minutes(self, length_s: int) -> list[ClientMinute]:
        return list(self.statistics.minutes(self.since_s(length_s), self.clock()))

    def since_s(self, length_s: int) -> int:
        """Return the start of a period up to now."""
        return int(self.clock() - length_s) // SPANS_S[length_s] * SPANS_S[length_s]

    def check(self, length_s: int) -> None:
        since_s, step_s = self.since_s(length_s), SPANS_S[length_s]
        clients: dict[str, list[ClientMinute]] = defaultdict(list)
        total: dict[int, Tally] = defaultdict(Tally)
        line: dict[int, Tally] = defaultdict(Tally)
        for minute in self.minutes(length_s):
            clients[minute.client_id].append(minute)
            total[minute.minute_s // step_s * step_s] += expected("", [minute]).all
            if minute.client_id == "client-1":
                line[minute.minute_s // step_s * step_s] += expected("", [minute]).all
        totals = self.rollups.rows(since_s, self.clock())
        lines = self.rollups.rows(since_s, self.clock(), step_s=step_s, client_ids=["client-1"])

        assert not totals.missing and not lines.missing
        assert {name: expected(name, minutes) for name, minutes in clients.items()} == {
            client.client_id: client for client in totals.clients
        }
        assert (without_empty(total), without_empty(line)) == (
            by_start(lines.together),
            by_start(lines.clients),
        )


def expected(client_id: str, minutes: Sequence[ClientMinute]) -> ClientTotal:
    def total(prefix: str) -> Tally:
        found = (minute.tallies.items() for minute in minutes)
        return sum((tally for items in found for source, tally in items if source.grant.startswith(prefix)), Tally())

    tally = sum((minute.tally() for minute in minutes), Tally())
    share, policy = max((peak.share, name) for minute in minutes for name, peak in minute.peaks.items())
    denials = [found for minute in minutes for found in minute.denials.values()]
    elsewhere, guard = total("endpoint:"), total("guard:")
    return ClientTotal(
        client_id,
        tally,
        elsewhere=Tally(elsewhere.allowed + elsewhere.trusted, elsewhere.denied, elsewhere.would_deny),
        guard=Tally(0, guard.denied, guard.would_deny),
        highest_use=share,
        policy=policy,
        denied_from_s=min((found.first_s for found in denials), default=None),
        denied_until_s=max((found.last_s for found in denials), default=None),
    )


def by_start(rows: Sequence[ClientTotal]) -> dict[int, Tally]:
    return without_empty({row.start_s: row.all for row in rows})


def without_empty(line: dict[int, Tally]) -> dict[int, Tally]:
    return {start_s: tally for start_s, tally in line.items() if tally != Tally()}


@pytest.mark.parametrize("seed", range(3))
def test_rollups_equal_the_sum_of_all_minutes_while_instances_write(connection: Connection, seed: int) -> None:
    """Some write late, after the step was derived; one of two instances derives, or both."""
    fleet, random = Fleet(connection, seed), Random(seed)
    for ago_s in range(0, 7 * DAY_S, DAY_S // 3):
        fleet.write(fleet.clock() - ago_s, client_id="client-1")
    fleet.derive()
    for _ in range(20):
        fleet.clock.advance(random.choice((8, 35, 70, 200)))
        for writer in ("one", "two"):
            fleet.write(fleet.clock() - random.choice((0, 30, 80, 400, 5000)), writer=writer)
        if random.random() < 0.5:
            fleet.derive()
    fleet.derive()
    for length_s in SPANS_S:
        fleet.check(length_s)


def test_week_of_all_clients_is_read_from_few_documents(connection: Connection, commands: Commands) -> None:
    fleet = Fleet(connection)
    for ago_s in range(0, 8 * DAY_S, 8 * HOUR_S):
        fleet.write(fleet.clock() - ago_s, client_id="shop", allowed=1)
    fleet.derive()
    fleet.check(7 * DAY_S)
    commands.sent.clear()
    since_s = fleet.since_s(7 * DAY_S)
    assert not fleet.rollups.rows(since_s, fleet.clock()).missing
    assert not fleet.rollups.rows(since_s, fleet.clock(), step_s=HOUR_S, client_ids=[]).missing

    sent = [event.command["pipeline"][0]["$match"] for event in commands.sent if "pipeline" in event.command]
    of_totals, of_lines = (len(match["_id"]["$in"]) for match in sent if "_id" in match)
    assert (True, True) == (0 < of_totals <= 60, of_totals < of_lines <= 190)


def test_late_minute_is_derived_again_with_all_steps_around_it_once(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an instance that has begun with it was cut off."""
    fleet = Fleet(connection)
    minute_s = fleet.clock()
    fleet.write(minute_s, client_id="shop", allowed=5)
    fleet.clock.advance(3 * HOUR_S)
    fleet.derive()
    fleet.clock.advance(2 * DAY_S)
    fleet.derive()
    fleet.write(minute_s, client_id="shop", writer="two", allowed=7)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "bulk_write", Mock(side_effect=AutoReconnect("an outage")))
        with pytest.raises(StoreUnavailable):
            fleet.derive()

    assert (4, 0) == (fleet.derive(), fleet.derive())
    fleet.check(7 * DAY_S)


def test_step_is_derived_from_the_minutes_if_a_finer_one_is_missing(connection: Connection) -> None:
    fleet = Fleet(connection)
    start_s = int(fleet.clock()) // HOUR_S * HOUR_S - HOUR_S
    fleet.write(start_s, client_id="shop", allowed=5)
    fleet.rollups.derive((HOUR_S, start_s), keep_s=KEEP_S)
    assert [5] == [client.tally.allowed for client in fleet.rollups.rows(start_s, start_s + HOUR_S).clients]


def test_step_with_a_late_minute_is_not_derived_before_it_is_over(connection: Connection) -> None:
    """Nothing would derive it again."""
    fleet = Fleet(connection)
    fleet.clock.now_s = 1_950_000_000.0
    fleet.write(fleet.clock(), client_id="shop", allowed=5)
    fleet.clock.advance(220)
    fleet.write(fleet.clock() - 120, client_id="shop", allowed=5)
    fleet.derive()
    fleet.write(fleet.clock(), client_id="shop", allowed=5)
    fleet.clock.advance(FIVE_S)
    fleet.derive()
    fleet.check(900)


def test_no_total_falls_while_a_late_minute_waits_to_be_derived(connection: Connection) -> None:
    """The minute is young enough to be read first, and then not any more."""
    fleet = Fleet(connection)
    since_s = minute_s = fleet.clock() - 610
    fleet.write(minute_s, client_id="shop", allowed=5)
    fleet.derive()
    fleet.write(minute_s, client_id="shop", writer="two", allowed=7)
    first = fleet.rollups.rows(since_s, fleet.clock()).clients[0].tally.allowed
    fleet.clock.advance(300)
    second = fleet.rollups.rows(since_s, fleet.clock()).clients[0].tally.allowed
    fleet.derive()
    third = fleet.rollups.rows(since_s, fleet.clock()).clients[0].tally.allowed

    assert first <= second <= third == 12


def test_rollup_is_not_replaced_by_what_was_read_before(connection: Connection) -> None:
    """Of two instances that derive a step, the slower one may have read less."""
    fleet = Fleet(connection)
    fleet.write(fleet.clock() - 600, client_id="shop", allowed=5)
    fleet.derive()
    identity = {ROLLUP: FIVE_S, "start": int(fleet.clock() - 600) // FIVE_S * FIVE_S}
    fleet.collection.update_one({"_id": identity}, {"$inc": {"offered": 1, "clients.0.counts.0": 1}})
    fleet.write(fleet.clock() - 600, client_id="shop", allowed=5)  # as before, but noted
    fleet.derive()

    assert 6 == fleet.collection.find_one({"_id": identity})["clients"][0]["counts"][0]  # type: ignore[index]


def test_note_of_a_write_that_came_meanwhile_is_kept(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is written after the note was read may have been missed."""
    fleet = Fleet(connection)
    minute_s = fleet.clock() - 600
    fleet.write(minute_s, client_id="shop", allowed=5)
    rows = rollups.minute_rows

    def write_after(since_s: float, until_s: float) -> list[dict[str, Any]]:
        """Write what the derivation has not read: the stages of an empty time."""
        monkeypatch.setattr(rollups, "minute_rows", rows)
        fleet.write(minute_s, client_id="shop", writer="two", allowed=7)
        return rows(0, 0)

    monkeypatch.setattr(rollups, "minute_rows", write_after)
    fleet.rollups.derive((FIVE_S, int(minute_s) // FIVE_S * FIVE_S), keep_s=KEEP_S)
    fleet.derive()
    fleet.check(900)


def test_time_before_the_first_minute_is_complete_and_gaps_are_not(connection: Connection) -> None:
    fleet = Fleet(connection)
    assert not fleet.rollups.rows(fleet.since_s(7 * DAY_S), fleet.clock()).missing
    fleet.write(fleet.clock() - 5 * HOUR_S, client_id="shop", allowed=1)
    totals = fleet.rollups.rows(fleet.since_s(DAY_S), fleet.clock())
    lines = fleet.rollups.rows(fleet.since_s(DAY_S), fleet.clock(), step_s=HOUR_S)

    assert (True, []) == (len(totals.missing) > 0, totals.clients)
    assert {5, 6} >= {len(lines.missing)}
    assert (True, 0) == (fleet.derive() > 0, fleet.derive()), "minutes without requests have empty rollups"
    fleet.check(DAY_S)


def test_planted_counts_beyond_any_number_stop_no_coarser_step(connection: Connection) -> None:
    fleet = Fleet(connection)
    hour_s = int(fleet.clock()) // HOUR_S * HOUR_S - 2 * HOUR_S
    fleet.write(hour_s, client_id="shop", allowed=5)
    fleet.derive()
    rows = [{"id": "planted", "counts": [2**63 - 1] * 12}, {"id": "other", "counts": ["x", *[1] * 11]}]
    planted = fleet.collection.update_many({f"_id.{ROLLUP}": FIVE_S}, {"$push": {"clients": {"$each": rows}}})
    assert 12 <= planted.modified_count
    fleet.write(hour_s, client_id="shop", writer="two", allowed=7)
    fleet.derive()

    assert 12 == fleet.rollups.rows(hour_s, hour_s + HOUR_S, client_ids=["shop"]).clients[0].tally.allowed


def test_rollups_expire_with_the_statistics_and_those_of_a_minute_soon(connection: Connection) -> None:
    fleet = Fleet(connection)
    fleet.write(fleet.clock() - 600, client_id="shop", allowed=1)
    fleet.derive()
    found = {
        document["_id"][ROLLUP]: document["expire"].timestamp() - sum(document["_id"].values())
        for document in fleet.collection.find({f"_id.{ROLLUP}": {"$exists": True}})
    }

    assert {MINUTE_S: MINUTES_KEPT_S, FIVE_S: KEEP_S} == found


def test_clients_beyond_the_bound_are_counted_together(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MAX_CLIENTS", 2)
    fleet = Fleet(connection)
    for number in range(1, 6):
        fleet.write(fleet.clock() - 900, client_id=f"client-{number}", allowed=number)
    fleet.derive()

    assert {"client-5": 5, "client-4": 4, OTHER_CLIENTS: 6} == {
        client.client_id: client.tally.offered
        for client in fleet.rollups.rows(fleet.since_s(HOUR_S), fleet.clock()).clients
    }


@pytest.mark.parametrize("is_derived", [False, True], ids=["minutes", "rollups"])
def test_damaged_documents_do_not_hide_others(connection: Connection, is_derived: bool) -> None:
    fleet = Fleet(connection)
    minute_s = int(fleet.clock() // 60) * 60 - 300
    fleet.write(minute_s, client_id="shop", allowed=5)
    damaged: list[Any] = [1, "x", None, [1], [], {"a": 1}, {"a": ["many", float("nan")]}, {"a": [1e300, -5]}]
    damaged += [["x", 1], [float("inf"), "x"], {"first": "x", "last": [1], "last_denied": LONG}]
    for number, value in enumerate(damaged):
        identity: dict[str, Any] = {"clientId": f"damaged-{number}", "minute": Int64(minute_s)}
        fleet.collection.insert_one({"_id": identity, "sums": value, "peak": value, "over": value})
    for client_id, at_s in ((7, minute_s), (["x"], minute_s), ("odd", minute_s + 0.5), ("list", [minute_s])):
        identity = {"clientId": client_id, "minute": at_s}
        fleet.collection.insert_one({"_id": identity, "sums": {"a": [3]}})
    if is_derived:
        assert fleet.derive()
    fleet.collection.insert_one({"_id": {ROLLUP: FIVE_S, "start": minute_s + 0.5}, "clients": "x", "total": 3})
    found = {client.client_id: client for client in fleet.rollups.rows(minute_s - 900, fleet.clock()).clients}
    lines = fleet.rollups.rows(minute_s - 900, fleet.clock(), step_s=MINUTE_S, client_ids=["shop"])

    assert Tally(5) == found["shop"].tally
    assert {(Tally(), None, None)} == {
        (each.tally, each.policy, each.denied_until_s) for name, each in found.items() if name.startswith("damaged")
    }
    assert {minute_s: Tally(5)} == by_start(lines.clients)


PLANTED_S = 1_949_999_700


def an_entry(client_id: str, **content: Any) -> dict[str, Any]:
    """Return a minute of a client."""
    return {"_id": {"clientId": client_id, "minute": Int64(PLANTED_S)}, "sums": {"one": [7]}, **content}


PLANTED: dict[str, list[dict[str, Any]]] = {
    "a step of another kind of number": [{"_id": {ROLLUP: FIVE_S, "start": Decimal128(str(PLANTED_S))}}],
    "a rollup of another form": [{"_id": {ROLLUP: FIVE_S, "start": PLANTED_S}, "offered": -1, "clients": "x"}],
    "a rollup of a text": [{"_id": {ROLLUP: FIVE_S, "start": PLANTED_S}, "offered": "x", "clients": []}],
    "notes of another form": [
        {"_id": {CHANGED: step_s, "start": PLANTED_S // step_s * step_s}, "write": write, "expire": "x"}
        for step_s, write in ((MINUTE_S, [1]), (FIVE_S, LONG), (HOUR_S, None), (DAY_S, 5))
    ],
    "a note that fills a document": [{"_id": {CHANGED: FIVE_S, "start": PLANTED_S}, "x": "x" * (2**24 - 70)}],
    "a note of a coarser step that fills a document": [
        {"_id": {CHANGED: HOUR_S, "start": PLANTED_S // HOUR_S * HOUR_S}, "x": "x" * (2**24 - 70)}
    ],
    "a note of no step": [{"_id": {CHANGED: FIVE_S, "start": PLANTED_S + 0.5}}],
    "ids that fill a rollup": [an_entry(f"{number}{LONG}") for number in range(18)],
    "policies that fill a rollup": [an_entry(f"{number}", peak=[0.1, LONG]) for number in range(18)],
    "very many processes": [an_entry("many", sums={f"p{number}": [1] for number in range(20_000)}, padding=LONG)],
}


@pytest.mark.parametrize("documents", PLANTED.values(), ids=PLANTED)
def test_planted_documents_stop_neither_rollups_nor_statistics(
    connection: Connection, documents: list[dict[str, Any]]
) -> None:
    fleet = Fleet(connection)
    for document in documents:
        fleet.collection.insert_one(document)
    for number in range(2):  # the second time late
        fleet.write(PLANTED_S, client_id=f"shop-{number}", allowed=5)
        fleet.derive()
        fleet.clock.advance(300)
    fleet.derive()
    found = {client.client_id: client.tally for client in fleet.rollups.rows(PLANTED_S - 900, fleet.clock()).clients}

    assert Tally(5) == found["shop-0"]
    assert fleet.derive() == 0


def test_step_that_cannot_be_derived_stops_no_other(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised last, and it comes last the next time: it may take as long as there is time."""
    fleet, tried = Fleet(connection), []
    for minutes in range(0, 30, 5):
        fleet.write(PLANTED_S + 60 * minutes, allowed=1)
    fleet.clock.advance(3600)
    derive = RollupStore.derive

    def fail_once(store: RollupStore, step: Any, **options: Any) -> None:
        tried.append(step)
        if step == (FIVE_S, PLANTED_S):
            raise StoreUnavailable("MongoDB failed: BSONObjectTooLarge (10334)")
        derive(store, step, **options)

    monkeypatch.setattr(RollupStore, "derive", fail_once)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            list(fleet.rollups.derive_due(fleet.clock(), keep_s=DAY_S * 30))
        fleet.write(PLANTED_S + 300, allowed=1)
    of_five = [step for step in tried if step[0] == FIVE_S]

    assert 6 <= len({*of_five})
    assert (FIVE_S, PLANTED_S) == of_five[-1]
    assert (FIVE_S, PLANTED_S) != of_five[-2]


def test_present_is_the_last_full_minute_and_who_is_over_a_limit_since(connection: Connection) -> None:
    fleet = Fleet(connection)
    fleet.clock.now_s = 1_950_000_030.0  # half a minute has passed
    now_s = int(fleet.clock())
    for client_id, ago, outcomes in (
        ("app", 0, {"denied": 10, "allowed": 2}),
        ("app", 60, {"denied": 20}),
        ("fine", 60, {"allowed": 9}),
        ("dry", 0, {"would_deny": 4}),
        ("long ago", 120, {"denied": 99}),
    ):
        fleet.write(now_s - ago, client_id=client_id, **outcomes)
    fleet.write(now_s - 60, client_id="dry", denied=7)  # until the fortieth second, before it began the dry run
    present = fleet.rollups.present(fleet.clock(), [("dry", now_s - 40.0), ("app", now_s - 99.0)])

    assert (3, 1, 2) == (present.active_count, present.denied_count, present.over_count)
    assert [("app", Tally(2, 30)), ("dry", Tally(denied=7, would_deny=4))] == [
        (each.client_id, each.tally) for each in present.over
    ]
    assert {"app"} == present.denied
    assert (True, now_s - 90, Tally(9, 27)) == (present.is_full, present.since_s, present.total)
    steady = [fleet.rollups.present(now_s + later_s).total for later_s in (-18.0, 11.0, 29.0, 41.0)]
    assert [Tally(9, 27)] * 4 == steady, "whole minutes, at any second"
    helped = fleet.rollups.present(fleet.clock(), [(None, now_s + 15.0)])
    assert (3, 0, 0) == (helped.active_count, helped.denied_count, helped.over_count)


@pytest.mark.parametrize(
    ("before", "since"),
    [({"would_deny": 20, "allowed": 9}, {"denied": 3}), ({"allowed": 9}, {"would_deny": 1}), ({}, {"allowed": 4})],
    ids=["enforced since", "over a limit since", "begun since"],
)
def test_present_is_what_came_since_if_only_then_it_came_to_that(
    connection: Connection, before: dict[str, int], since: dict[str, int]
) -> None:
    fleet, now_s = Fleet(connection), 1_950_000_030
    for ago, outcomes in ((60, before), (0, since)):
        if outcomes:
            fleet.write(now_s - ago, client_id="app", **outcomes)
    present = fleet.rollups.present(now_s)

    assert (False, now_s - 30, Tally(**since)) == (present.is_full, present.since_s, present.total)


def test_client_is_removed_as_the_page_says_and_what_others_send_late_counts(connection: Connection) -> None:
    page = (ROOT / "docs" / "statistics.md").read_text().replace("old-app", "client-1")
    fleet = Fleet(connection)
    fleet.clock.now_s = now_s = 1_950_000_000 // DAY_S * DAY_S + 6 * HOUR_S
    for minute_s in range(int(now_s - 4 * HOUR_S), int(now_s), 600):
        fleet.write(minute_s, client_id="client-1", allowed=50)
        fleet.write(minute_s, client_id="client-2", allowed=1)
    DenialStore(connection).put([RECORD._replace(denial=RECORD.denial._replace(client_id="client-1"))], keep_s=KEEP_S)
    fleet.derive()
    for name, method, values in re.findall(r"^db\.(\w+)\.(deleteMany|updateMany)\((.+)\)$", page, re.MULTILINE):
        getattr(connection.collection(name), re.sub("([A-Z])", r"_\1", method).lower())(*json.loads(f"[{values}]"))

    fleet.write(now_s - HOUR_S, writer="back after an outage", client_id="client-2", allowed=7)
    fleet.derive()

    assert "client-1" not in str(list(fleet.collection.find()))
    rows = fleet.rollups.rows(now_s - 4 * HOUR_S, fleet.clock())
    assert {"client-2": Tally(allowed=31)} == {client.client_id: client.tally for client in rows.clients}
