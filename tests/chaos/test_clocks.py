"""Instances whose clocks are wrong."""

import time
from typing import Any

import pytest
from pymongo import MongoClient
from structlog.testing import capture_logs

from tests.chaos.fleet import Books, Instance, balance
from tests.support.helpers import Clock

pytestmark = pytest.mark.chaos

USER = "user-0"
OFFSETS = [1.0, -1.0, 30.0, -30.0, 300.0, -300.0]


@pytest.mark.parametrize("offset_s", OFFSETS)
def test_wrong_clock_is_logged_and_corrected(mongo_uri: str, offset_s: float, record: list[Books]) -> None:
    """It is logged and corrected, and from then on hits fall into the frames that they belong to."""
    wrong = Instance(mongo_uri, clock=lambda: time.time() + offset_s, follows_store_clock=True)
    wrong.hit(USER)
    with capture_logs() as logs:
        wrong.limiter.sync()
    assert "clock_skew" in [entry["event"] for entry in logs]
    assert -offset_s == pytest.approx(wrong.limiter.clock_offset_s, abs=0.4)
    wrong.hit("user-1")
    books = balance([wrong], mongo_uri)
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        document = client.get_default_database()["ratelimits"].find_one({"_id.username": "user-1"})
    assert document is not None
    (start_s,) = document["requestCounters"]["360"]
    assert -1 <= time.time() - int(start_s) <= 361
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)


@pytest.mark.parametrize("offset_s", OFFSETS)
def test_wrong_clock_that_is_not_corrected_loses_no_hit(mongo_uri: str, offset_s: float, record: list[Books]) -> None:
    """Two instances whose clocks differ lose and double nothing."""
    clocks = Clock(time.time()), Clock(time.time() + offset_s)
    instances = [Instance(mongo_uri, clock=clock) for clock in clocks]
    for _ in range(20):
        for instance, clock in zip(instances, clocks, strict=True):
            instance.hit(USER)
            instance.limiter.sync()
            clock.advance(37)
    books = balance(instances, mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)


@pytest.mark.parametrize("step_s", [1.0, 30.0, 300.0, 4000.0])
def test_clock_that_steps_back_loses_no_hit(mongo_uri: str, step_s: float, record: list[Books]) -> None:
    """Every hit before and after the step is counted once."""
    clock = Clock(time.time())
    instance = Instance(mongo_uri, clock=clock)
    for _ in range(3):
        instance.hit(USER)
        clock.advance(100)
        instance.hit(USER)
        clock.advance(-step_s)
        instance.hit(USER)
        instance.limiter.sync()
    books = balance([instance], mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)
