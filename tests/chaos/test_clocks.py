"""Instances whose clocks are wrong."""

import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chaos.fleet import Books, Instance, balance

pytestmark = pytest.mark.chaos

USER = "user-0"


@pytest.mark.parametrize("offset_s", [1.0, 300.0, -300.0])
def test_wrong_clock_is_logged_and_corrected(
    mongo_uri: str, documents: Any, offset_s: float, record: list[Books]
) -> None:
    """It is logged and corrected, and from then on hits fall into the frames that they belong to."""
    wrong = Instance(mongo_uri, clock=lambda: time.time() + offset_s, follows_store_clock=True)
    wrong.hit(USER)
    with capture_logs() as logs:
        wrong.limiter.sync()
    assert "clock_skew" in [entry["event"] for entry in logs]
    assert -offset_s == pytest.approx(wrong.limiter.clock_offset_s, abs=0.4)
    wrong.hit("user-1")
    books = balance([wrong], mongo_uri)
    document = documents.find_one({"_id.username": "user-1"})
    assert document is not None
    (start_s,) = document["requestCounters"]["360"]
    assert -1 <= time.time() - int(start_s) <= 361
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)
