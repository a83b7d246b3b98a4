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
ENFORCE = "mode: enforce\n"  # as long as the one above: only the time tells that the file has changed
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
    """What is logged."""
    with capture_logs() as entries:
        yield entries


def write(path: Path, text: str) -> None:
    """Change the file in place, surely at another time than it was changed before."""
    before_ns = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


def polled(source: ConfigSource) -> Settings | None:
    """Poll often enough for a change to settle."""
    found = [source.poll(), source.poll(), source.poll(), source.poll()]
    return next((settings for settings in found if settings is not None), None)


def modes(*found: Settings | None) -> list[Mode | None]:
    """Return the global mode of each of several outcomes."""
    return [None if settings is None else settings.policies.mode for settings in found]


def test_unchanged_file(source: ConfigSource, events: list[Any]) -> None:
    """As long as nothing changes there is no news."""
    assert (None, []) == (polled(source), events)


def test_changed_file(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A change is taken over once, when two looks in a row have found the same file."""
    write(path, ENFORCE)
    assert [None, Mode.ENFORCE, None, None] == modes(source.poll(), source.poll(), source.poll(), source.poll())
    assert [] == events


def test_file_that_is_being_written(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """While it is being written a file is left alone, even if what is there by now is valid."""
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


def test_file_that_changes_between_look_and_reading(
    source: ConfigSource, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes in the instant before it is read is left for the next look."""
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


def test_replaced_file(source: ConfigSource, path: Path, tmp_path: Path) -> None:
    """A file that another one is renamed over is a change, even with the same size and time."""
    other = tmp_path / "new.yaml"
    other.write_text(ENFORCE)
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_link_that_is_turned(path: Path, tmp_path: Path) -> None:
    """A link that is turned to another file, as container platforms do, is a change."""
    link, second = tmp_path / "link.yaml", tmp_path / "second.yaml"
    link.symlink_to(path)
    second.write_text(ENFORCE)
    source = ConfigSource(link)
    source.load()
    turned = tmp_path / "turned.yaml"
    turned.symlink_to(second)
    turned.replace(link)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_broken_file(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A broken file is reported once, with its problems, and repaired it is taken over."""
    write(path, BROKEN)
    assert (None, None) == (polled(source), polled(source))
    expected = {
        "event": "config_rejected",
        "log_level": "error",
        "path": str(path),
        "problems": ["limits.user[0].limit: got 0, allowed: a whole number from 1 to 2^53 (9007199254740992)"],
        "problem_count": 1,
    }
    assert [expected] == events
    write(path, ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_broken_file_that_is_touched(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """Each broken content is reported once, however often it is saved; another broken content is reported again."""
    for text in (BROKEN, BROKEN, "mode: on\n", BROKEN):
        write(path, text)
        assert polled(source) is None
    assert 3 == len(events)


def test_broken_file_put_back(source: ConfigSource, path: Path) -> None:
    """A broken file that is put back as it was is news, so that its reader learns that the trouble is over."""
    write(path, BROKEN)
    assert polled(source) is None
    write(path, DRY_RUN)
    assert [Mode.DRY_RUN] == modes(polled(source))


def test_change_without_meaning(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A file that is touched, or whose comments change, is no news."""
    for text in (DRY_RUN, f"# a comment\n{DRY_RUN}"):
        write(path, text)
        assert polled(source) is None
    assert [] == events


@pytest.mark.parametrize("text", ["", "\n", "# mode: enforce\n"])
def test_emptied_file(source: ConfigSource, path: Path, events: list[Any], text: str) -> None:
    """An empty file is not a configuration without limits: it is reported, and the last good one stays."""
    write(path, text)
    assert (None, None) == (polled(source), polled(source))
    assert [[EMPTY]] == [event["problems"] for event in events]


def test_file_that_vanishes(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A file that is gone is reported once; when it is back it is taken over."""
    path.unlink()
    assert (None, None) == (polled(source), polled(source))
    assert [["cannot be read: No such file or directory"]] == [event["problems"] for event in events]
    path.write_text(ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))


def test_file_that_is_gone_for_a_moment(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """An editor that removes the file before it writes the new one causes no report."""
    path.unlink()
    assert source.poll() is None
    path.write_text(ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))
    assert [] == events


def test_directory_in_its_place(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """What cannot be read is reported once and not read again with every look."""
    path.unlink()
    path.mkdir()
    assert (None, None) == (polled(source), polled(source))
    assert [["cannot be read: Is a directory"]] == [event["problems"] for event in events]


def test_reading_that_nobody_needs(source: ConfigSource, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking does not open the file unless it has changed, and a huge or broken one only once."""
    opened: list[object] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda *args, **options: opened.append(args) or real_open(*args, **options))
    polled(source)
    assert [] == opened
    write(path, "#" * 1_000_001)
    polled(source)
    polled(source)
    assert 1 == len(opened)


def test_many_problems(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """A log event is bounded, and says how many problems there are."""
    write(path, "trusted_clients: [" + "1, " * 500 + "1]\n")
    polled(source)
    assert [(20, 501)] == [(len(event["problems"]), event["problem_count"]) for event in events]


def test_reload_on_demand(source: ConfigSource, path: Path) -> None:
    """Who asks for a reload gets it at once, if there is news."""
    assert source.reload() is None
    write(path, ENFORCE)
    assert [Mode.ENFORCE, None] == modes(source.reload(), source.reload())
    assert polled(source) is None


def test_overrides(path: Path) -> None:
    """What overrides the file does so after every reload."""
    source = ConfigSource(path, mode="off", uri="mongodb://other/db")
    loaded = source.load()
    write(path, ENFORCE + "max_keys: 7\n")
    reloaded = polled(source)
    assert reloaded is not None
    assert [(Mode.OFF, "mongodb://other/db", 1_000_000), (Mode.OFF, "mongodb://other/db", 7)] == [
        (settings.policies.mode, settings.store.uri, settings.max_keys) for settings in (loaded, reloaded)
    ]


def test_password_in_a_broken_file(source: ConfigSource, path: Path, events: list[Any]) -> None:
    """What is logged about a broken file holds no password."""
    for text in (
        "store: {url: 'mongodb://u:hunter2@h'}",
        "store: {uri: mongodb://u:hunter2@h",
        "mongodb://u:hunter2@h",
    ):
        write(path, text)
        polled(source)
    assert 3 == len(events)
    assert "hunter2" not in repr(events)


def test_file_that_is_broken_at_start(path: Path) -> None:
    """At the start there is no last good one: a broken or missing file is an error."""
    path.write_text(BROKEN)
    with pytest.raises(ConfigError, match=r"limits\.user\[0\]\.limit: got 0"):
        ConfigSource(path).load()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ConfigSource(path.with_name("other.yaml")).load()
