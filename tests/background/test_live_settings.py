"""What a process knows of the overrides."""

import time

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.background.live_settings import REREAD_S, OverrideCache
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.errors import StoreUnavailable

LASTING = Override(Target(OverrideKind.MODE), "ann", "", 0.0, mode=Mode.OFF)
ENDING = Override(Target(OverrideKind.TRUSTED, "app"), "ann", "", 0.0, until_s=100.0)


class FakeStore:
    """Overrides that the test changes. Counts how often they were read."""

    def __init__(self, *overrides: Override) -> None:
        self.overrides = overrides
        self.current_revision = "a"
        self.is_broken = False
        self.read_count = 0

    def revision(self) -> str:
        if self.is_broken:
            raise StoreUnavailable("out of reach")
        return self.current_revision

    def read(self) -> tuple[Override, ...]:
        self.read_count += 1
        return self.overrides


def test_overrides_that_do_not_change() -> None:
    """As long as the revision stays, overrides are read once."""
    store = FakeStore(LASTING)
    override_cache = OverrideCache(store)
    for _ in range(5):
        override_cache.refresh()

    assert (LASTING,) == override_cache.active(0.0)
    assert 1 == store.read_count


def test_overrides_that_change() -> None:
    """A new revision makes the next look read them again."""
    store = FakeStore(LASTING)
    override_cache = OverrideCache(store)
    override_cache.refresh()
    store.overrides, store.current_revision = (ENDING,), "b"
    override_cache.refresh()

    assert (ENDING,) == override_cache.active(0.0)


def test_overrides_edited_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides are read again after a while although the revision is the same."""
    store = FakeStore()
    override_cache = OverrideCache(store)
    override_cache.refresh()
    store.overrides = (LASTING,)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + REREAD_S + 1)
    override_cache.refresh()

    assert (LASTING,) == override_cache.active(0.0)


def test_override_that_ends_meanwhile() -> None:
    """An override ends by itself, with or without MongoDB."""
    override_cache = OverrideCache(FakeStore(LASTING, ENDING))
    override_cache.refresh()

    assert (LASTING, ENDING) == override_cache.active(99.0)
    assert (LASTING,) == override_cache.active(100.0)


def test_mongodb_out_of_reach() -> None:
    """Without MongoDB the overrides last known hold; the outage is reported once, a second one again."""
    store = FakeStore(LASTING)
    override_cache = OverrideCache(store)
    override_cache.refresh()
    with capture_logs() as logs:
        for is_broken in (True, True, False, True):
            store.is_broken = is_broken
            override_cache.refresh()

    assert (LASTING,) == override_cache.active(0.0)
    assert ["overrides_unavailable"] * 2 == [entry["event"] for entry in logs]
    assert 1 == logs[0]["known_count"]


def test_counters_that_are_not_shared() -> None:
    """A limiter of one process has no overrides."""
    override_cache = OverrideCache(None)
    override_cache.refresh()

    assert () == override_cache.active(0.0)
