"""Overrides as one process knows them."""

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.background.live_settings import LOG_INTERVAL_S, REREAD_INTERVAL_S, LiveSettings, OverrideCache
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.errors import StoreUnavailable
from tests.support.helpers import Clock

LASTING = Override(Target(OverrideKind.MODE), "ann", "", 0.0, mode=Mode.OFF)
ENFORCED = Override(Target(OverrideKind.MODE), "ann", "", 0.0, mode=Mode.ENFORCE)
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
            raise StoreUnavailable("unreachable")
        return self.current_revision

    def read(self) -> tuple[Override, ...]:
        self.read_count += 1
        return self.overrides


def test_overrides_are_read_when_the_revision_changes() -> None:
    """As long as the revision stays, they are read once."""
    store = FakeStore(LASTING)
    override_cache = OverrideCache(store)
    for _ in range(5):
        override_cache.refresh()
    assert ((LASTING,), 1) == (override_cache.active(0.0), store.read_count)

    store.overrides, store.current_revision = (ENDING,), "b"
    override_cache.refresh()
    assert (ENDING,) == override_cache.active(0.0)


def test_overrides_edited_by_hand_are_read_after_a_while(clock: Clock) -> None:
    """Such a change leaves the revision as it is."""
    store = FakeStore()
    override_cache = OverrideCache(store, clock=clock)
    override_cache.refresh()
    store.overrides = (LASTING,)
    clock.advance(REREAD_INTERVAL_S)
    override_cache.refresh()

    assert (LASTING,) == override_cache.active(0.0)


def test_override_ends_without_another_read() -> None:
    """An override ends by itself, with or without MongoDB."""
    override_cache = OverrideCache(FakeStore(LASTING, ENDING))
    override_cache.refresh()

    assert (LASTING, ENDING) == override_cache.active(99.0)
    assert (LASTING,) == override_cache.active(100.0)


def test_overrides_stay_while_mongodb_is_unreachable(clock: Clock) -> None:
    """The outage is logged once a minute."""
    store = FakeStore(LASTING)
    override_cache = OverrideCache(store, clock=clock)
    override_cache.refresh()
    store.is_broken = True
    with capture_logs() as logs:
        for passed_s in (0.0, 1.0, 1.0, LOG_INTERVAL_S):
            clock.advance(passed_s)
            override_cache.refresh()

    assert (LASTING,) == override_cache.active(0.0)
    assert [("overrides_unavailable", 1, None), ("overrides_unavailable", 1, 2)] == [
        (entry["event"], entry["known_count"], entry.get("suppressed_count")) for entry in logs
    ]


@pytest.mark.parametrize(
    ("mode", "overrides", "applied", "hidden"),
    [
        ("dry-run", (ENFORCED,), Mode.ENFORCE, [("enforce", "dry-run")]),
        ("dry-run", (), Mode.DRY_RUN, []),
        ("off", (ENFORCED,), Mode.OFF, []),
    ],
)
def test_mode_in_the_file_that_an_override_hides_is_logged_once(
    mode: str, overrides: tuple[Override, ...], applied: Mode, hidden: list[tuple[str, str]]
) -> None:
    """No override hides ``off``: in an outage of MongoDB the file is all that an operator can change."""
    changed = [load_config({"mode": mode})]
    live = LiveSettings(load_config({"mode": "enforce"}), lambda: changed.pop() if changed else None)
    with capture_logs() as logs:
        for _ in range(3):
            live.update(overrides)

    assert applied is live.current.policies.mode
    assert hidden == [(entry["mode"], entry["file"]) for entry in logs if entry["event"] == "mode_overridden"]


def test_limiter_without_shared_counters_has_no_overrides() -> None:
    override_cache = OverrideCache(None)
    override_cache.refresh()

    assert () == override_cache.active(0.0)
