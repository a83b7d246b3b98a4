"""A configuration file that changes while the application runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.document import EMPTY
from oauth_ratelimit.config.source import ConfigSource
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError

DRY_RUN = "mode: dry-run\n"
ENFORCE = "mode: enforce\n"  # as long as the one above, so that only the time differs
BROKEN = "mode: enforce\nlimits: {user: [{limit: 0, window: 1s}]}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration file in dry run."""
    path = tmp_path / "limits.yaml"
    path.write_text(DRY_RUN)
    return path


@pytest.fixture
def source(path: Path) -> ConfigSource:
    """The file, loaded once."""
    source = ConfigSource(path)
    source.load()
    return source


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """The log."""
    with capture_logs() as entries:
        yield entries


def write(path: Path, text: str) -> None:
    """Change the file in place, one second after its last change."""
    before_ns = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


def polled(source: ConfigSource) -> Settings | None:
    """Poll four times and return the settings that were found."""
    found = [source.poll(), source.poll(), source.poll(), source.poll()]
    return next((settings for settings in found if settings is not None), None)


def modes(*found: Settings | None) -> list[Mode | None]:
    """Return the global mode of each result."""
    return [None if settings is None else settings.policies.mode for settings in found]


def test_changed_file_is_applied_once_two_polls_find_it_the_same(
    source: ConfigSource, path: Path, events: list[Any]
) -> None:
    write(path, ENFORCE)
    assert [None, Mode.ENFORCE, None, None] == modes(source.poll(), source.poll(), source.poll(), source.poll())
    assert [] == events


def test_file_that_is_being_written_is_left_alone(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """Its content may be valid and lack its end."""
    found = []
    for written in (
        "",
        "mode: enforce\n",
        "mode: enforce\ntrusted_clients: [mo",
        "mode: enforce\ntrusted_clients: [mob]",
    ):
        write(path, written)
        found.append(source.poll())
    assert [None] * 4 == found
    settings = source.poll()
    assert settings is not None
    assert ("mob",) == settings.policies.trusted
    assert [] == events


def test_file_that_changes_before_it_is_read_waits_for_the_next_poll(
    source: ConfigSource, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content that was read is not used."""
    write(path, ENFORCE)
    assert source.poll() is None
    with monkeypatch.context() as patch:
        real_open = os.open

        def open_late(*args: Any, **options: Any) -> int:
            write(path, "mode: 'off'\n")
            return real_open(*args, **options)

        patch.setattr(os, "open", open_late)
        assert source.poll() is None
    assert [None, Mode.OFF] == modes(source.poll(), source.poll())


def test_file_that_is_renamed_over_is_a_change(source: ConfigSource, path: Path, tmp_path: Path) -> None:
    """Even with the same size and time."""
    other = tmp_path / "new.yaml"
    other.write_text(ENFORCE)
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_link_to_another_file_is_a_change(path: Path, tmp_path: Path) -> None:
    link, second = tmp_path / "link.yaml", tmp_path / "second.yaml"
    link.symlink_to(path)
    second.write_text(ENFORCE)
    source = ConfigSource(link)
    source.load()
    turned = tmp_path / "turned.yaml"
    turned.symlink_to(second)
    turned.replace(link)
    assert [Mode.ENFORCE] == modes(polled(source))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            BROKEN,
            "limits.user[0].limit: got 0, allowed: a whole number from 1 to 2^53 (9007199254740992); for example "
            "limit: 100 (line 2)",
        ),
        ("", EMPTY),
        ("# mode: enforce\n", EMPTY),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["broken", "empty", "only a comment", "missing"],
)
def test_unusable_file_is_logged_once_and_applied_when_repaired(
    source: ConfigSource, path: Path, events: list[Any], content: str | None, problem: str
) -> None:
    write(path, content or "")
    if content is None:
        path.unlink()
    assert (None, None) == (polled(source), polled(source))
    expected = {"event": "config_rejected", "log_level": "error", "path": str(path), "problem_count": 1}
    assert [{**expected, "problems": [problem]}] == events
    write(path, ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_each_broken_content_is_logged_once(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """However often it is saved; another content is logged again."""
    for text in (BROKEN, BROKEN, "mode: on\n", BROKEN):
        write(path, text)
        assert polled(source) is None
    assert 3 == len(events)


def test_file_that_is_put_back_after_an_error_is_news(source: ConfigSource, path: Path) -> None:
    """Its reader learns that the trouble is over."""
    write(path, BROKEN)
    assert polled(source) is None
    write(path, DRY_RUN)
    assert [Mode.DRY_RUN] == modes(polled(source))


def test_same_settings_are_not_news(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A changed time or comment changes nothing."""
    assert polled(source) is None
    for text in (DRY_RUN, f"# a comment\n{DRY_RUN}"):
        write(path, text)
        assert polled(source) is None
    assert [] == events


def test_file_that_is_missing_for_one_poll_is_not_logged(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """Some editors remove a file before they write it."""
    path.unlink()
    assert source.poll() is None
    path.write_text(ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))
    assert [] == events


def test_poll_opens_only_a_changed_file_and_a_bad_one_once(
    source: ConfigSource, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda *args, **options: opened.append(args) or real_open(*args, **options))
    polled(source)
    assert [] == opened
    write(path, "#" * 1_000_001)
    polled(source)
    polled(source)
    assert 1 == len(opened)


def test_logged_problems_are_bounded_and_counted(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """The event has the first 20 problems and their number."""
    write(path, "trusted_clients: [" + "1, " * 500 + "1]\n")
    polled(source)
    assert [(20, 501)] == [(len(event["problems"]), event["problem_count"]) for event in events]


def test_reload_applies_a_change_at_once(source: ConfigSource, path: Path) -> None:
    """It does not wait for a second poll."""
    assert source.reload() is None
    write(path, ENFORCE)
    assert [Mode.ENFORCE, None] == modes(source.reload(), source.reload())
    assert polled(source) is None


def test_overrides_of_the_file_survive_a_reload(path: Path) -> None:
    """Mode and connection string stay those of the application."""
    source = ConfigSource(path, mode="off", uri="mongodb://other/db")
    loaded = source.load()
    write(path, ENFORCE + "max_keys: 7\n")
    reloaded = polled(source)
    assert reloaded is not None
    assert [(Mode.OFF, "mongodb://other/db", 1_000_000), (Mode.OFF, "mongodb://other/db", 7)] == [
        (settings.policies.mode, settings.store.uri, settings.max_keys) for settings in (loaded, reloaded)
    ]


def test_log_of_a_broken_file_has_no_password(source: ConfigSource, path: Path, events: list[Any]) -> None:
    for text in (
        "store: {url: 'mongodb://u:hunter2@h'}",
        "store: {uri: mongodb://u:hunter2@h",
        "mongodb://u:hunter2@h",
    ):
        write(path, text)
        polled(source)
    assert 3 == len(events)
    assert "hunter2" not in repr(events)


def test_broken_or_missing_file_at_start_is_an_error(path: Path) -> None:
    """There are no last good settings yet."""
    path.write_text(BROKEN)
    with pytest.raises(ConfigError, match=r"limits\.user\[0\]\.limit: got 0"):
        ConfigSource(path).load()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ConfigSource(path.with_name("other.yaml")).load()
