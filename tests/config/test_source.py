"""A configuration file that changes while the application runs."""

import errno
import os
from pathlib import Path
from socket import gethostname
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.cli import command
from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.document import EMPTY
from oauth_ratelimit.config.loader import (
    LAST_VALID,
    LIMITS_OFF,
    MODE_GIVEN,
    OFF_WAY_BACK,
    SWITCHED_OFF,
    WAY_BACK,
    ConfigFile,
)
from oauth_ratelimit.core.mode import Mode
from testbed.clock import Clock
from tests.support.helpers import NUL_PROBLEM

DRY_RUN = "mode: dry-run\n"
ENFORCE = "mode: enforce\n"  # as long as the one above, so that only the time differs
BROKEN = "mode: on\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(DRY_RUN)
    return path


@pytest.fixture
def source(path: Path) -> ConfigFile:
    source = ConfigFile(path)
    source.load()
    return source


def write(path: Path, text: str) -> None:
    """Change the file in place, one second after its last change."""
    before_ns = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


def polled(source: ConfigFile) -> Settings | None:
    found = [source.poll(), source.poll(), source.poll(), source.poll()]
    return next((settings for settings in found if settings is not None), None)


def modes(*found: Settings | None) -> list[Mode | None]:
    return [None if settings is None else settings.policies.mode for settings in found]


def test_file_that_is_being_written_is_left_alone(source: ConfigFile, path: Path, events: list[Any]) -> None:
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
    source: ConfigFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_link_to_another_file_is_a_change(path: Path, tmp_path: Path) -> None:
    """Even if that has the same size and time."""
    link, second = tmp_path / "link.yaml", tmp_path / "second.yaml"
    link.symlink_to(path)
    source = ConfigFile(link)
    source.load()
    second.write_text(ENFORCE)
    os.utime(second, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    turned = tmp_path / "turned.yaml"
    turned.symlink_to(second)
    turned.replace(link)
    assert [Mode.ENFORCE] == modes(polled(source))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (BROKEN, 'mode: got "on", allowed: off, dry-run or enforce; for example mode: dry-run (line 1)'),
        ("# mode: enforce\n", EMPTY),
        ("mode: [", "not usable YAML: "),
        ("\x00", "not YAML: "),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["broken", "only a comment", "no YAML", "binary", "missing"],
)
def test_unusable_file_changes_nothing_or_switches_limits_off_until_it_is_repaired(
    source: ConfigFile, path: Path, events: list[Any], content: str | None, problem: str
) -> None:
    """Whatever it holds, a worker that runs keeps the last valid settings, and one that starts has no limits."""
    write(path, content or "")
    if content is None:
        path.unlink()
    assert (None, None) == (polled(source), polled(source))
    started = ConfigFile(path)
    assert [Mode.OFF] == modes(started.load())
    assert [
        ("config_rejected", "error", str(path), LAST_VALID),
        ("config_rejected", "error", str(path), LIMITS_OFF),
    ] == [(each["event"], each["log_level"], each["path"], each["effect"]) for each in events]
    assert [True] * 2 == [line.startswith(problem) for each in events for line in each["problems"]]
    write(path, ENFORCE)
    assert [Mode.ENFORCE] * 2 == modes(polled(source), polled(started))
    assert source.rejection is None


def test_each_broken_content_is_logged_once_and_its_repair_is_news(
    source: ConfigFile, path: Path, events: list[Any]
) -> None:
    """However often it is saved; and even if the repair brings the former settings back."""
    for text in (BROKEN, BROKEN, "mode: never\n", BROKEN):
        write(path, text)
        assert polled(source) is None
    assert 3 == len(events)
    write(path, DRY_RUN)
    assert [Mode.DRY_RUN] == modes(polled(source))


def test_file_that_anybody_may_change_is_logged_with_each_load(
    source: ConfigFile, path: Path, events: list[Any]
) -> None:
    """And named by ``check-config``, though it is valid."""
    path.chmod(0o666)
    source.load()
    write(path, ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))
    assert [("config_not_protected", str(path))] * 2 == [(entry["event"], entry["path"]) for entry in events]
    result = CliRunner().invoke(command, ["check-config", str(path)])
    assert (0, True) == (result.exit_code, "any user of this machine may change this file" in result.stderr)


def test_files_that_differ_only_in_the_name_of_their_instance_have_one_digest(path: Path) -> None:
    """Else ``status`` and the page would call the files of every canary by instance different for ever."""
    digests = []
    for text in (f"instance: a\n{DRY_RUN}", f"instance: b # the second\n{DRY_RUN}", f"instance: a\n{ENFORCE}"):
        write(path, text)
        file = ConfigFile(path)
        file.load()
        digests.append(file.digest)
    assert digests[0] == digests[1] != digests[2]


def test_other_problem_in_the_name_of_the_instance_is_logged_at_once(path: Path, events: list[Any]) -> None:
    source = ConfigFile(path)
    for name in ("[]", "{}"):
        write(path, f"instance: {name}\n")
        source.request_reload()
        if source.rejection is None:
            source.load()
        polled(source)
    found = [each["problems"][0].partition(", ")[0] for each in events if each["event"] == "config_rejected"]
    assert ["instance: got a list", "instance: got a mapping"] == found


def test_mode_off_of_the_application_is_not_called_one_of_the_file(path: Path, events: list[Any]) -> None:
    write(path, BROKEN)
    ConfigFile(path, mode="off").load()
    assert ["limits are off, because the mode is off"] == [each["effect"] for each in events]


def test_path_with_a_nul_is_a_named_problem_however_often_it_is_polled(events: list[Any]) -> None:
    source = ConfigFile("/etc/limits\0.yaml")
    assert ([Mode.OFF], None) == (modes(source.load()), polled(source))
    assert [[f"cannot be read: {NUL_PROBLEM}"]] == [each["problems"] for each in events]


def test_same_settings_are_not_news(source: ConfigFile, path: Path, events: list[Any]) -> None:
    assert polled(source) is None
    for text in (DRY_RUN, f"# a comment\n{DRY_RUN}"):
        write(path, text)
        assert polled(source) is None
    assert [] == events


def test_file_that_is_missing_for_one_poll_is_not_logged(source: ConfigFile, path: Path, events: list[Any]) -> None:
    """Some editors remove a file before they write it."""
    path.unlink()
    assert source.poll() is None
    path.write_text(ENFORCE)
    assert [Mode.ENFORCE] == modes(polled(source))
    assert [] == events


def test_poll_opens_only_a_changed_file_and_a_bad_one_once(
    source: ConfigFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda *args, **options: opened.append(args) or real_open(*args, **options))
    polled(source)
    assert [] == opened
    write(path, "mode: [")
    polled(source)
    polled(source)
    assert 1 == len(opened)


def test_file_that_could_not_be_read_is_read_when_it_can_be(
    source: ConfigFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in a process that has no descriptors left for a while. The file itself does not change."""
    write(path, "mode: off")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert [None] == modes(polled(source))
    assert [Mode.OFF] == modes(polled(source))


def test_child_reads_a_change_that_its_parent_was_reading(source: ConfigFile, path: Path) -> None:
    """Its settings are those of the file when its worker starts, also if it was forked in the middle of a reload."""
    live = LiveSettings(source.settings, source.poll, file=source)
    write(path, "mode: off")
    assert Mode.OFF is live.use().policies.mode
    write(path, ENFORCE)
    polled(source)  # and not applied any more
    assert Mode.ENFORCE is live.use().policies.mode


def test_logged_problems_are_bounded_and_counted(source: ConfigFile, path: Path, events: list[Any]) -> None:
    write(path, "trusted_clients: [" + "1, " * 500 + "1]\n")
    polled(source)
    assert [(20, 501)] == [(len(event["problems"]), event["problem_count"]) for event in events]


def test_reload_applies_a_change_at_once_and_only_once(source: ConfigFile, path: Path) -> None:
    write(path, ENFORCE)
    source.request_reload()
    assert [Mode.ENFORCE] == modes(source.poll())
    source.request_reload()
    assert source.poll() is None
    assert polled(source) is None


def test_overrides_of_the_file_survive_a_reload(path: Path) -> None:
    source = ConfigFile(path, mode="off", uri="mongodb://other/db")
    loaded = source.load()
    write(path, ENFORCE + "max_keys: 7\n")
    reloaded = polled(source)
    assert reloaded is not None
    assert [(Mode.OFF, "mongodb://other/db", 1_000_000), (Mode.OFF, "mongodb://other/db", 7)] == [
        (settings.policies.mode, settings.store.uri, settings.max_keys) for settings in (loaded, reloaded)
    ]


def test_rejected_file_is_logged_each_minute_until_it_is_repaired(path: Path, events: list[Any]) -> None:
    clock = Clock()
    path.write_text(BROKEN)
    source = ConfigFile(path, clock=clock)
    source.load()
    for _ in range(3):
        clock.advance(30)
        source.poll()

    assert 2 == len(events)
    assert source.rejection is not None
    assert clock.now_s - 90 == source.rejection.since_s


@pytest.mark.parametrize(
    "content",
    [
        "mode: 'off'\nbroken:\n",
        "'mode' : false\nlimits: [\n",
        f"{BROKEN}mode: off\n",  # appended: the key is there twice
        "limits: {user: [\nmode: off  # for now\n",
        "enabled: false\nbroken:\n",
    ],
)
def test_mode_off_applies_in_a_file_that_is_invalid_elsewhere(path: Path, events: list[Any], content: str) -> None:
    path.write_text(f"{ENFORCE}guard: {{mode: enforce}}\n")
    source = ConfigFile(path)
    source.load()
    write(path, content)
    settings = polled(source)

    assert settings is not None
    assert (Mode.OFF, False) == (settings.policies.mode, settings.is_guarded)
    assert [(SWITCHED_OFF, OFF_WAY_BACK)] == [(each["effect"], each["hint"]) for each in events]
    started = ConfigFile(path).load()
    assert (Mode.OFF, False) == (started.policies.mode, started.is_guarded)

    write(path, BROKEN)
    assert [Mode.ENFORCE] == modes(polled(source))  # as in the last valid file
    source.poll()
    assert WAY_BACK == events[-1]["hint"]


LARGE = b"trusted_clients: [%s]\n" % (b"mobile, " * 130_000)
JSON = b"""{
"mode": "enforce",
"clients": {"night-job": {
"mode": "off"
}}}"""


OFF = {
    "before too much": b"mode: off\n" + LARGE,
    "after too much": LARGE + b"mode: off\n",
    "appended to a line of too much": LARGE.rstrip() + b"mode: off\n",
    "appended to a line": b"mode: enforce\nmax_keys: 7mode: off\n",
    "appended to an item of a list": b"mode: enforce\ntrusted_clients:\n  - nightly\n  - our-own-appmode: off\n",
    "appended to a comment": b"mode: enforce\ntrusted_clients:\n  - our-own-app   # never deniedmode: off\n",
    "appended behind an item of a list": b"mode: enforce\ntrusted_clients:\n  - our-own-app mode: off\n",
    "appended behind a value": b"mode: enforce\ncanary:\n  percent: 100 mode: off\n",
    "appended behind a list": b"mode: enforce\ntrusted_clients: [our-own-app] mode: off\n",
    "appended to an item of a limit": b"mode: enforce\nlimits:\n  client:\n  - 100/minutemode: off\n",
    "appended to UTF-16": f"{ENFORCE}max_keys: 7\n".encode("utf-16") + b"mode: off\n",
    "appended to a line of UTF-16": f"{ENFORCE}max_keys: 7".encode("utf-16") + b"mode: off\r\n",
    "half a character of UTF-16 is missing": "mode: off\nmax_keys: 7\n".encode("utf-16")[:-1],
    "byte order mark": "\ufeff'mode': 'off'\nmax_keys: [\n".encode(),
    "not enabled": b"enabled: false\n" + LARGE,
}


@pytest.mark.parametrize("content", OFF.values(), ids=OFF)
def test_mode_off_is_found_before_and_whether_or_not_the_rest_can_be_read(path: Path, content: bytes) -> None:
    path.write_text(ENFORCE)
    source = ConfigFile(path)
    live = LiveSettings(source.load(), source.poll, file=source)
    path.write_bytes(content)
    found = []
    for step in (live.look_for_off, *[live.poll] * 4, live.look_for_off):
        step()
        live.update(())
        found.append(live.current.policies.mode)

    assert [Mode.OFF] * 6 == found
    assert Mode.OFF is ConfigFile(path).load().policies.mode
    write(path, DRY_RUN)
    assert not source.look_for_off()


@pytest.mark.parametrize(
    "content",
    [
        f"{ENFORCE}# in an emergency mode: off",
        f"{ENFORCE}#mode: off",
        f"{ENFORCE}guard_mode: off",
        f"{ENFORCE}guard: {{max_keys: 0, mode: off}}",
        f"{ENFORCE}max_keys: 0\n# to stop it say mode: off",
        f"{ENFORCE}statistics.enabled: false",
        f"mode: off\n{ENFORCE}",
        f"{ENFORCE}clients:\n  night-job:\n    mode: off",
        f"{ENFORCE}guard:\n  mode: off\n  max_keys: 0\n",
        JSON.decode(),
    ],
)
def test_mode_off_elsewhere_in_the_file_switches_nothing_else_off(path: Path, content: str) -> None:
    source = ConfigFile(path)
    path.write_text(ENFORCE)
    source.load()
    write(path, content)
    polled(source)
    assert not source.look_for_off()
    assert Mode.ENFORCE is source.settings.policies.mode


def test_file_that_changes_all_the_time_is_read_after_two_seconds(path: Path) -> None:
    clock = Clock()
    source = ConfigFile(path, clock=clock)
    source.load()
    read_at = []
    for number in range(20):
        write(path, f"{ENFORCE}max_keys: {number + 1}\n")
        clock.advance(0.5)
        read_at += [number / 2] if source.poll() else []
    assert [1.5, 3.5, 5.5, 7.5, 9.5] == read_at


def test_file_that_changes_all_the_time_is_read_again_at_once_if_it_was_half_written(path: Path) -> None:
    clock = Clock()
    source = ConfigFile(path, clock=clock)
    source.load()
    applied_at = []
    for number in range(12):
        write(path, "" if number in (3, 4) else f"{ENFORCE}max_keys: {number + 1}\n")
        clock.advance(0.5)
        source.poll()
        applied_at += [] if source.rejection or source.settings.max_keys != number + 1 else [number / 2]
    assert [2.5, 4.5] == applied_at


def test_mode_of_the_application_replaces_that_of_an_invalid_file(path: Path) -> None:
    path.write_text("guard: {mode: enforce}\nbroken:\n")
    assert not ConfigFile(path, mode="off").load().is_guarded
    assert ConfigFile(path, mode="enforce").load().is_guarded


def test_hint_of_an_invalid_file_does_not_name_a_switch_that_the_mode_of_the_application_replaces(
    path: Path, events: list[Any]
) -> None:
    path.write_text(f"{BROKEN}mode: off\n")
    source = ConfigFile(path, mode="enforce")
    source.load()
    source.poll()
    assert [(LIMITS_OFF, MODE_GIVEN)] == [(each["effect"], each["hint"]) for each in events]


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("{mode: enforce, max_keys: 7}", (Mode.ENFORCE, 7)),
        ("{mode: enforce, max_keys: 0}", (Mode.ENFORCE, 100_000)),
        ("{mode: enforec, max_keys: 7}", (Mode.DRY_RUN, 100_000)),
        ("[", (Mode.DRY_RUN, 100_000)),
        (None, (Mode.OFF, 100_000)),
    ],
)
def test_guard_of_an_invalid_file_goes_on(path: Path, guard: str | None, expected: tuple[Mode, int]) -> None:
    path.write_text(f"{BROKEN}store: {{uri: 'mongodb://host/db'}}\n" + (f"guard: {guard}\n" if guard else ""))
    settings = ConfigFile(path).load()

    assert expected == (settings.guard.mode, settings.guard.max_keys)
    assert settings.is_guarded is (guard is not None)
    assert "mongodb://host/db" == settings.store.uri


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", gethostname()),
        (BROKEN, gethostname()),
        (f"{BROKEN}instance: node-1\n", "node-1"),
        ("instance: 7\n", gethostname()),
    ],
)
def test_instance_has_its_name_whatever_is_wrong_with_the_file(path: Path, content: str, expected: str) -> None:
    path.write_text(content)
    assert expected == ConfigFile(path).load().policies.instance


def test_user_names_are_hidden_if_the_section_privacy_is_invalid(path: Path) -> None:
    path.write_text("privacy: {user_names: hashed, keys: [{env: NOT_SET}]}\nguard: {mode: enforce}\n")
    names = ConfigFile(path).load().privacy.pseudonyms()

    assert "alice" not in str(names("alice"))
