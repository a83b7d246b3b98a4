"""Overrides as one process knows them."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.background.live_settings import (
    GRACE_S,
    LOG_INTERVAL_S,
    MAX_AWAITED_S,
    REREAD_INTERVAL_S,
    RETRY_INTERVAL_S,
    LiveSettings,
    OverrideCache,
)
from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import StoreError, StoreRejected, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.store.mongo.overrides import LEFT_OUT, OverrideStore
from testbed.clock import Clock

LASTING = Override(Target(OverrideKind.MODE), "ann", "", 0.0, mode=Mode.OFF)
SEVEN = Policy("user", 7, Window.of(60))
ENFORCED = Override(Target(OverrideKind.MODE), "ann", "", 0.0, mode=Mode.ENFORCE)
SEVEN_FOR_CLIENTS = "limits: {client: [7/minute], user: [10/second, 50/10s]}\n"
OTHER = Override(Target(OverrideKind.TRUSTED, "app"), "ann", "", 0.0)


@pytest.fixture
def store() -> Mock:
    store: Mock = create_autospec(OverrideStore, instance=True)
    store.revision.return_value, store.read.return_value, store.read_for_everybody.return_value = "a", (LASTING,), ()
    return store


@pytest.fixture
def override_cache(store: Mock, clock: Clock) -> OverrideCache:
    return OverrideCache(store, clock=clock)


def test_overrides_are_read_when_the_revision_changes(store: Mock, override_cache: OverrideCache) -> None:
    for _ in range(5):
        override_cache.refresh()
    assert ((LASTING,), 1) == (override_cache.overrides, store.read.call_count)

    store.read.return_value, store.revision.return_value = (OTHER,), "b"
    override_cache.refresh()
    assert (OTHER,) == override_cache.overrides


@pytest.mark.parametrize(
    ("error", "is_awaited"),
    [
        (None, False),
        (StoreUnavailable("MongoDB is unreachable: NetworkTimeout"), True),  # it is slow
        (StoreUnreachable("MongoDB is unreachable: ServerSelectionTimeoutError"), False),
        (StoreRejected("MongoDB refused: Unauthorized (13)"), False),
    ],
    ids=repr,
)
def test_overrides_are_awaited_until_they_are_read_or_mongodb_is_away_or_too_slow(
    store: Mock, override_cache: OverrideCache, clock: Clock, error: StoreError | None, is_awaited: bool
) -> None:
    assert override_cache.is_awaited
    store.read.side_effect = store.read_for_everybody.side_effect = error
    with suppress(StoreError):
        override_cache.refresh()
    assert [is_awaited, False] == [override_cache.is_awaited, override_cache.is_late]
    clock.advance(GRACE_S)
    assert [is_awaited, is_awaited] == [override_cache.is_awaited, override_cache.is_late]
    clock.advance(MAX_AWAITED_S)
    assert not override_cache.is_awaited
    assert not OverrideCache(None).is_awaited


def test_overrides_edited_by_hand_are_read_after_a_while(
    store: Mock, override_cache: OverrideCache, clock: Clock
) -> None:
    """Such a change leaves the revision as it is."""
    override_cache.refresh()
    store.read.return_value = (OTHER,)
    clock.advance(REREAD_INTERVAL_S)
    override_cache.refresh()

    assert (OTHER,) == override_cache.overrides


def test_overrides_stay_while_mongodb_is_unreachable(store: Mock, override_cache: OverrideCache, clock: Clock) -> None:
    """The outage is logged once a minute."""
    override_cache.refresh()
    store.revision.side_effect = StoreUnavailable("unreachable")
    with capture_logs() as logs:
        for passed_s in (0.0, 1.0, 1.0, LOG_INTERVAL_S):
            clock.advance(passed_s)
            with pytest.raises(StoreUnavailable):
                override_cache.refresh()

    assert (LASTING,) == override_cache.overrides
    assert [("overrides_unavailable", 1, None), ("overrides_unavailable", 1, 2)] == [
        (entry["event"], entry["known_count"], entry.get("suppressed_count")) for entry in logs
    ]


def test_overrides_that_take_too_long_hold_up_neither_cycles_nor_a_mode_of_everybody(
    store: Mock, override_cache: OverrideCache, clock: Clock
) -> None:
    """They are tried again every ten seconds. Meanwhile those that concern everybody apply, of the others the last."""
    store.read.return_value = (LASTING, OTHER)
    override_cache.refresh()
    store.read.reset_mock()
    store.revision.return_value, store.read_for_everybody.return_value = "b", (ENFORCED,)

    def time_out() -> None:
        clock.advance(2.0)
        raise StoreUnavailable("MongoDB failed: MaxTimeMSExpired (50)")

    store.read.side_effect = time_out
    with capture_logs() as logs:
        for _ in range(5):
            override_cache.refresh()

    assert (1, (OTHER, ENFORCED)) == (store.read.call_count, override_cache.overrides)
    assert ["overrides_unavailable"] == [entry["event"] for entry in logs]
    store.read_for_everybody.return_value = ()
    override_cache.refresh()
    assert (OTHER,) == override_cache.overrides
    clock.advance(RETRY_INTERVAL_S)
    store.read.side_effect, store.read.return_value = None, (OTHER,)
    for _ in range(5):
        override_cache.refresh()
    assert ((OTHER,), 2) == (override_cache.overrides, store.read.call_count)


def test_overrides_whose_read_fails_quickly_are_read_again_in_the_next_cycle(
    store: Mock, override_cache: OverrideCache
) -> None:
    """A connection that broke says nothing about how long the next read takes."""
    store.read.side_effect = [StoreUnavailable("MongoDB is unreachable: AutoReconnect"), (OTHER,)]
    for _ in range(2):
        override_cache.refresh()
    assert (OTHER,) == override_cache.overrides


def test_dry_run_because_of_too_many_overrides_stays_while_they_cannot_be_read(
    store: Mock, override_cache: OverrideCache
) -> None:
    """Trusted clients may be among those that were left out. Only ``off`` denies nobody either."""
    store.read.return_value = (OTHER, LEFT_OUT)
    override_cache.refresh()
    store.revision.return_value = "b"
    store.read.side_effect = StoreUnavailable("MongoDB failed: MaxTimeMSExpired (50)")
    found = []
    for everybody in ((ENFORCED,), (LASTING,)):
        store.read_for_everybody.return_value = everybody
        override_cache.refresh()
        found.append({each.target: each.mode for each in override_cache.overrides}[LEFT_OUT.target])
    assert [Mode.DRY_RUN, Mode.OFF] == found


def test_change_takes_effect_before_it_is_logged() -> None:
    """A log that blocks, as on a pipe that nobody reads, must not keep limits from being switched off."""
    changed = [load_config({"mode": "off"})]
    live = LiveSettings(load_config({"mode": "enforce"}), lambda: changed.pop() if changed else None)
    with capture_logs() as logs:
        live.poll()
        live.update(())
        assert (Mode.OFF, []) == (live.current.policies.mode, logs)
        live.log_changes()
        live.log_changes()
    assert ["config_reloaded", "mode_changed"] == [entry["event"] for entry in logs]


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
            live.poll()
            live.update(overrides)
            live.log_changes()

    assert applied is live.current.policies.mode
    assert hidden == [(entry["mode"], entry["file"]) for entry in logs if entry["event"] == "mode_overridden"]


def test_limits_in_the_file_that_an_override_hides_are_logged() -> None:
    limit = Override(Target(OverrideKind.LIMIT, None, LimitKind.USER), "ann", "", 0.0, policies=(SEVEN,))
    changed: list[dict[str, Any]] = [{"user": ["7/minute"]}, {"user": ["8/minute"], "client": ["9/minute"]}]
    files = [load_config({"mode": "enforce", "limits": limits}) for limits in reversed(changed)]
    live = LiveSettings(load_config({"mode": "enforce"}), lambda: files.pop() if files else None)
    hidden = []
    for _ in range(3):
        with capture_logs() as logs:
            live.poll()
            live.update((limit,))
            live.log_changes()
        hidden.append([entry["values"] for entry in logs if entry["event"] == "limits_overridden"])
    assert [[], [["limits.user[user]"]], []] == hidden


def test_mode_off_is_the_only_change_of_limits_that_a_line_makes() -> None:
    """A file that was replaced has the limits of a file that names none."""
    files = [load_config({"mode": "off"})]
    live = LiveSettings(load_config({"mode": "enforce", "limits": {"client": ["5/minute"]}}), lambda: files.pop())
    with capture_logs() as logs:
        live.poll()
        live.update(())
        live.log_changes()
    assert ["mode: enforce -> off"] == logs[0]["changes"]


@pytest.mark.parametrize(
    ("contents", "logged"),
    [
        (["mode: enforce\n", "mode: enforce\nmode: off\n"], [["mode: enforce -> off"]]),
        (["mode: enforce\n", "mode: [\n", "mode: enforce\n"], [["file: invalid -> valid"]]),
        (["mode: enforce\n", "mode: enforce # as ever\n"], []),
        (["mode: off\n", f"mode: off\n{SEVEN_FOR_CLIENTS}"], [["limits.client[client]: 9000/minute -> 7/minute"]]),
        (
            ["mode: enforce\n", f"mode: off\n{SEVEN_FOR_CLIENTS}", f"mode: enforce\n{SEVEN_FOR_CLIENTS}"],
            [["mode: enforce -> off"], ["mode: off -> enforce", "limits.client[client]: 9000/minute -> 7/minute"]],
        ),
    ],
    ids=["off-appended", "repaired", "comment", "limits-while-off", "limits-with-off"],
)
def test_reload_is_logged_with_what_it_changes(tmp_path: Path, contents: list[str], logged: list[list[str]]) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(contents[0])
    file = ConfigFile(path)
    live = LiveSettings(file.load(), file.poll, file=file)
    with capture_logs() as logs:
        for content in contents[1:]:
            new = path.with_suffix(".new")
            new.write_text(content)
            new.replace(path)
            for _ in range(3):
                live.poll()
                live.look_for_off()
                live.update(())
                live.log_changes()
    assert logged == [entry["changes"] for entry in logs if entry["event"] == "config_reloaded"]


def test_mode_off_stays_while_the_file_is_taken_over(tmp_path: Path) -> None:
    """Another thread looks between the read of the file and the end of ``poll``, when it is no longer unread."""
    path, found = tmp_path / "ratelimit.yaml", list[Mode]()
    path.write_text("mode: enforce\n")
    file = ConfigFile(path)

    def look() -> None:
        live.look_for_off()
        live.update(())
        found.append(live.current.policies.mode)

    def poll() -> Settings | None:
        settings = file.poll()
        look()
        return settings

    live = LiveSettings(file.load(), poll, file=file)
    path.write_text("mode: off\n")
    look()
    for _ in range(2):
        live.poll()
        look()
    assert [Mode.OFF] * 5 == found
    path.write_text("mode: enforce\nmax_keys: 7\n")
    for _ in range(2):
        live.poll()
        look()
    assert [Mode.OFF, Mode.ENFORCE] == found[-2:]


def test_override_that_changes_nothing_is_not_logged_as_a_reload() -> None:
    live = LiveSettings(load_config({"mode": "enforce"}), lambda: None)
    with capture_logs() as logs:
        for overrides in ((ENFORCED,), ()):
            live.update(overrides)
            live.log_changes()
    assert [] == logs


def test_what_needs_a_restart_stays_until_then_and_all_else_applies() -> None:
    """Another way to the same database needs none. A worker that starts later takes all from the file."""
    places = ["kim:old@one/oauth", "kim:new@two/oauth?w=1", "kim:new@two/other"]
    files = [
        {"mode": mode, "store": {"uri": f"mongodb://{place}"}, "sync": {"interval": interval}}
        for mode, place, interval in zip(("enforce", "dry-run", "enforce"), places, ("1s", "2s", "1s"), strict=True)
    ]
    first, second, third = map(load_config, files)
    changed = [third, second]
    live = LiveSettings(first, lambda: changed.pop() if changed else None)
    with capture_logs() as logs:
        live.poll()
        live.update(())
        live.log_changes()
        assert (Mode.DRY_RUN, second.store, first.sync) == (
            live.current.policies.mode,
            live.current.store,
            live.current.sync,
        )
        live.poll()
        live.update(())
        live.log_changes()
        assert (Mode.ENFORCE, second.store) == (live.current.policies.mode, live.current.store)
    assert third == live.use()

    reloaded = [entry for entry in logs if entry["event"] == "config_reloaded"]
    assert [["mode: enforce -> dry-run", "store.uri: changed"], ["mode: dry-run -> enforce"]] == [
        sorted(entry["changes"]) for entry in reloaded
    ]
    assert [["sync.interval: 1.0 -> 2.0"], ["store.database: oauth -> other"]] == [
        entry["changes"] for entry in logs if entry["event"] == "restart_needed"
    ]
