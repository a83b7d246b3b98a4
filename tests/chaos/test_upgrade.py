"""Instances of the former version beside those of this one, and instances with different configurations."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.store.mongo.client import Connection
from tests.chaos.fleet import CLIENT, Books, Instance, held_in
from tests.support.faults import CUT, LOSE_REPLY, FaultyProxy
from tests.support.former_store import FormerStore
from tests.support.helpers import Clock, with_database

pytestmark = pytest.mark.chaos

USER = "user-0"
FRAME_S, HORIZON_S = 360, 3960  # of the limits of an instance of the fleet
WORKERS = 3
STEPS, STEP_S = 30, 200  # longer than a frame matters


@pytest.fixture
def proxy(mongo_uri: str) -> Any:
    """A proxy to the session's MongoDB."""
    server = urlsplit(mongo_uri)
    with FaultyProxy(server.hostname or "", server.port or 27017) as proxy:
        yield proxy


def through(proxy: FaultyProxy, uri: str) -> str:
    """Return the URI of the same database by way of a proxy."""
    return with_database(proxy.uri, urlsplit(uri).path[1:])


def former(uri: str, clock: Callable[[], float]) -> Instance:
    """Return an instance of the former version."""
    store = FormerStore(Connection(uri), horizon_s=HORIZON_S, frame_s=FRAME_S, clock=clock)
    return Instance(uri, clock=clock, store=store)


def present(uri: str, clock: Callable[[], float]) -> Instance:
    """Return an instance of this version."""
    return Instance(uri, clock=clock)


@pytest.mark.parametrize("offset_s", [0.0, 50.0, -50.0])
@pytest.mark.parametrize("direction", [(former, present), (present, former)], ids=["upgrade", "downgrade"])
def test_rolling_upgrade_loses_and_doubles_nothing(
    mongo_uri: str,
    proxy: FaultyProxy,
    direction: tuple[Callable[..., Instance], Callable[..., Instance]],
    offset_s: float,
    repetitions: int,
    record: list[Books],
) -> None:
    """One worker after the other is replaced, while answers get lost, frames get old, and a clock is off."""
    old, new = direction
    for repetition in range(min(repetitions, 10)):
        uri = with_database(mongo_uri, f"{urlsplit(mongo_uri).path[1:]}_{repetition}")
        rng = random.Random(f"{repetition} {offset_s}")
        clock = Clock(time.time())
        clocks: list[Callable[[], float]] = [clock, lambda clock=clock: clock() + offset_s, clock]  # type: ignore[misc]
        workers = [old(through(proxy, uri), each) for each in clocks]
        counted = Counter[int]()
        proxy.random_faults(0.2, rng, kinds=(LOSE_REPLY, CUT))
        for step in range(STEPS):
            for number, worker in enumerate(workers):
                for _ in range(rng.randrange(1, 6)):
                    worker.hit(f"user-{rng.randrange(2)}")
                    counted[int(clocks[number]() // FRAME_S) * FRAME_S] += 1
                worker.limiter.sync()
            if step % 8 == 7 and step // 8 < WORKERS:
                workers[step // 8].settle()
                workers[step // 8] = new(through(proxy, uri), clocks[step // 8])
            clock.advance(STEP_S)
        proxy.random_faults(0.0, rng)
        for worker in workers:
            worker.settle()
        held = held_by_frame(uri)
        live = {start_s for start_s in counted if start_s + HORIZON_S > clock()}
        books = Books(
            requests=counted.total(),
            lost=sum(max(0, counted[start_s] - held[start_s]) for start_s in live),
            doubled=sum(max(0, held[start_s] - counted[start_s]) for start_s in held),
        )
        record.append(books)
        assert len(live) < len(counted)
        assert (0, 0) == (books.lost, books.doubled)


def held_by_frame(uri: str) -> Counter[int]:
    """Return the hits in MongoDB by frame."""
    held = Counter[int]()
    with MongoClient[dict[str, Any]](uri) as client:
        for document in client.get_default_database()["ratelimits"].find():
            for frames in document["requestCounters"].values():
                held.update({int(start_s): count for start_s, count in frames.items()})
    return held


@pytest.mark.parametrize("kind", [former, present])
def test_wrong_clock_costs_counts_only_while_the_former_version_runs(
    mongo_uri: str, kind: Callable[..., Instance]
) -> None:
    """A worker that is a window ahead removes what others have counted, if it is of the former version."""
    clock = Clock(time.time())
    healthy = present(mongo_uri, clock)
    ahead = kind(mongo_uri, lambda: clock() + HORIZON_S + FRAME_S + 61)
    for _ in range(40):
        healthy.hit(USER)
    healthy.limiter.sync()
    for _ in range(2):
        ahead.hit(USER)
        ahead.limiter.sync()
    after_wrong_clock = held_in(mongo_uri).total()
    ahead.settle()
    successor = present(mongo_uri, lambda: clock() + HORIZON_S + FRAME_S + 61)
    for _ in range(3):
        successor.hit(USER)
        successor.limiter.sync()
        healthy.hit(USER)
        healthy.limiter.sync()
    for instance in (successor, healthy):
        instance.settle()
    lost = 40 if kind is former else 0
    assert (42 - lost, 48 - lost) == (after_wrong_clock, held_in(mongo_uri).total())


def test_instances_with_different_configurations_share_what_they_count_alike(
    mongo_uri: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other limits and windows with the same frames count together; other frames and hashed names count apart."""
    monkeypatch.setenv("UPGRADE_KEY", "k" * 40)
    hashed = {"privacy": {"user_names": "hashed", "keys": [{"env": "UPGRADE_KEY"}]}}
    minute, ten_minutes = {"limit": 10**6, "window": "60s"}, {"limit": 10**6, "window": "10m", "frames": 100}
    configurations: list[tuple[str, dict[str, Any]]] = [
        ("plain 6", {"limits": {"user": [ten_minutes]}}),  # first, so that MongoDB keeps the document from the start
        ("plain 6", {"limits": {"user": [minute]}}),
        ("plain 6", {"limits": {"user": [{**minute, "limit": 10**5}]}}),
        ("plain 60", {"limits": {"user": [{**minute, "frames": 1}]}}),
        ("hashed 6", {"limits": {"user": [minute]}, **hashed}),
    ]
    clock, counted = Clock(time.time() - 540), Counter[str]()
    store = {"store": {"uri": through(proxy, mongo_uri)}}
    limiters = [
        (name, Limiter(load_config({"mode": "enforce", **more, **store}), clock=clock)) for name, more in configurations
    ]
    proxy.random_faults(0.2, random.Random(1), kinds=(LOSE_REPLY, CUT))
    for _ in range(90):  # frames leave the shorter window, and wait for the longer one
        for name, limiter in limiters:
            limiter.check(CLIENT, USER)
            counted[name] += 1
            limiter.sync()
        clock.advance(6)
    proxy.random_faults(0.0, random.Random(1))
    for _, limiter in limiters:
        limiter.sync()
        limiter.close()
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        held = Counter[str]()
        for document in client.get_default_database()["ratelimits"].find():
            kind = "plain" if document["_id"]["username"] == USER else "hashed"
            for frame_s, frames in document["requestCounters"].items():
                held[f"{kind} {frame_s}"] += sum(frames.values())
    assert counted["plain 6"] == held["plain 6"]
    for name in ("plain 60", "hashed 6"):  # nobody needs more than their window and frame
        assert 11 <= held[name] <= counted[name]
