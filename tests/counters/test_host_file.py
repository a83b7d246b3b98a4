"""Processes that count in one file, and files that cannot be used."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters import host, host_file, schema
from oauth_ratelimit.counters.host_file import LAYOUT, FileConnection, HostFile
from oauth_ratelimit.sync.loop import SyncLoop
from testbed.clock import wait_until
from testbed.memory_store import MemoryStore
from tests.support.limiters import locked, stored_hits
from tests.support.processes import CONTEXT

WINDOW = "366d"  # no frame ends meanwhile
NOBODY = 65534


def a_limiter(path: Path | str, limit: int = 10, *, window: str = WINDOW) -> Limiter:
    limits = {"client": [{"limit": limit, "window": window}]}
    return Limiter(load_config({"mode": "enforce", "host": str(path), "limits": limits}))


def admitted(limiter: Limiter, count: int = 30, client_id: str = "app") -> int:
    return sum(limiter.check(client_id).allowed for _ in range(count))


def count_once(path: Path) -> None:
    with closing(a_limiter(path)) as limiter:
        limiter.check("app")


def another_boot(path: Path) -> None:
    """Let the file be of an earlier start of the machine."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET boot_id = 'another'")


def is_intact(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _flood(path: Path, limit: int, clients: int, begins: Event, counts: Any) -> None:
    with closing(a_limiter(path, limit)) as limiter:
        limiter.check("another")
        counts.put(None)  # ready
        begins.wait()
        found = [admitted(limiter, limit + 10, f"client-{number}") for number in range(clients)]
        counts.put((found, limiter.sync().lock_timeout_count))


@contextmanager
def processes(target: Callable[..., None], count: int, *arguments: object) -> Iterator[list[Any]]:
    running = [CONTEXT.Process(target=target, args=arguments) for _ in range(count)]
    for process in running:
        process.start()
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.join()


@pytest.fixture
def path_in_memory() -> Iterator[Path]:
    """A disk makes other processes wait for the lock, too."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as directory:
        yield Path(directory) / "ratelimit.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.db"


@pytest.mark.slow
@pytest.mark.parametrize(("count", "limit"), [(4, 3), (4, 50), (8, 3), (8, 10), (8, 50)])
def test_processes_together_admit_exactly_the_limit(path_in_memory: Path, count: int, limit: int) -> None:
    """But for requests that say that they did not get the lock, as on a machine with far too many busy processes."""
    clients, begins, counts = 10, CONTEXT.Event(), CONTEXT.Queue()
    with processes(_flood, count, path_in_memory, limit, clients, begins, counts):
        assert [None] * count == [counts.get(timeout=60) for _ in range(count)]
        begins.set()
        found = [counts.get(timeout=60) for _ in range(count)]

    timeout_count = sum(count for _, count in found)
    sums = list(map(sum, zip(*(each for each, _ in found), strict=True)))
    assert min(sums) >= limit
    assert sum(sums) - limit * clients <= timeout_count


def _flood_for_ever(path: Path, limit: int, admissions: Path) -> None:
    """Write one byte for each request that was admitted, and for each that did not get the lock."""
    limiter = a_limiter(path, limit)
    descriptor = os.open(admissions, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        if limiter.check("app").allowed:
            os.write(descriptor, b"." + limiter.sync().lock_timeout_count * b"t")


def _has_bytes(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size >= size


@pytest.mark.slow
def test_killed_processes_neither_add_nor_take_a_request(path_in_memory: Path, tmp_path: Path) -> None:
    """One that dies between counting and answering has counted a request that nobody got: at most one each."""
    limit, kill_count, admissions = 2_000, 4, tmp_path / "admissions"
    with processes(_flood_for_ever, kill_count, path_in_memory, limit, admissions) as running:
        for number, process in enumerate(running, start=1):
            wait_until(partial(_has_bytes, admissions, 100 * number), "the flood")
            process.kill()
            process.join()
    with closing(a_limiter(path_in_memory, limit)) as limiter:
        left = admitted(limiter, limit + 10)

    written = admissions.read_bytes()
    assert limit - kill_count <= written.count(b".") + left <= limit + written.count(b"t")
    assert is_intact(path_in_memory)


def _hold_the_lock(path: Path, is_held: Event) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    is_held.set()
    signal.pause()


def test_request_waits_50_ms_for_a_process_that_is_stopped_and_is_counted_later(path: Path) -> None:
    """Those that come meanwhile know of each other. A denial only reads."""
    is_held = CONTEXT.Event()
    with closing(a_limiter(path, 3)) as limiter, closing(a_limiter(path, 3)) as other:
        assert limiter.check("app").allowed
        with processes(_hold_the_lock, 1, path, is_held) as (process,):
            assert is_held.wait(60)
            os.kill(process.pid, signal.SIGSTOP)
            with capture_logs() as logs:
                begun_s = time.monotonic()
                answers = [limiter.check("app").allowed for _ in range(4)]
                waited_s = time.monotonic() - begun_s
            assert ([True, True, False, False], True) == (answers, limiter.check("new").allowed)
            assert 0.05 <= waited_s / 2 < 0.1
            assert ["host_lock_timeout"] == [entry["event"] for entry in logs if entry["event"] != "request_denied"]
        report = limiter.sync()

        assert (3, 0) == (report.lock_timeout_count, limiter.sync().lock_timeout_count)
        assert not other.check("app").allowed
        assert 2 == admitted(other, client_id="new")


@pytest.mark.parametrize("is_ready", [True, False])
def test_first_request_waits_for_a_process_that_is_stopped_while_it_opens_the_file_only_if_it_is_not_ready(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    """Then it counts alone until a later cycle."""
    monkeypatch.setattr(host_file, "OPENING_S", 60.0 if is_ready else 0.01)
    if is_ready:
        with closing(a_limiter(path)) as other:
            assert 4 == admitted(other, 4)
    with closing(a_limiter(path)) as limiter:
        with Path(f"{path}-lock").open("a") as opener:
            fcntl.flock(opener, fcntl.LOCK_EX)
            begun_s = time.monotonic()
            assert (6 if is_ready else 10) == admitted(limiter)
            assert time.monotonic() - begun_s < 20.0
            assert is_ready is (limiter.host.problem is None)
        limiter.sync()
        assert limiter.host.problem is None


def test_counts_survive_a_restart_of_the_service(path: Path) -> None:
    with closing(a_limiter(path)) as limiter:
        assert 10 == admitted(limiter)
    with closing(a_limiter(path)) as limiter:
        assert 0 == admitted(limiter)
    assert 0o600 == path.stat().st_mode & 0o777


def test_rows_of_an_earlier_start_of_the_machine_are_dropped_when_they_are_over(path: Path) -> None:
    """Their times were of a clock that starts with the machine: a row would be due when it runs for as long again."""
    with closing(a_limiter(path, window="1s")) as limiter:
        limiter.check("app")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE rows SET due = 1e12, requested = 0, is_asked = 0")
    another_boot(path)
    with closing(a_limiter(path, window="1s")) as limiter:
        limiter.check("another")
        assert 1 == limiter.sync().key_count


def test_hits_that_were_sent_before_a_power_cut_are_not_sent_again(path: Path) -> None:
    """The disk may have the file as it was before: it is written when the system finds time."""
    settings, store = (
        load_config({"mode": "enforce", "host": str(path), "limits": {"client": ["10/366d"]}}),
        MemoryStore(),
    )
    with closing(Limiter(settings, store)) as limiter:
        assert 3 == admitted(limiter, 3)
        before = {suffix: path.with_name(f"{path.name}{suffix}").read_bytes() for suffix in ("", "-wal")}
        limiter.sync()
        assert 3 == stored_hits(store, Key("app", None))
    for suffix, content in before.items():
        path.with_name(f"{path.name}{suffix}").write_bytes(content)
    another_boot(path)
    with closing(Limiter(settings, store)) as limiter:
        assert 7 == limiter.peek("app").remaining
        limiter.sync()
        assert 3 == stored_hits(store, Key("app", None))


def test_rows_are_made_ready_once_after_a_start_of_the_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may do it between two statements of one that opens the file, and go on."""
    count_once(path)
    another_boot(path)
    patiently = host_file.patiently

    def late(connection: sqlite3.Connection, statement: str, until_s: float) -> object:
        if statement == "BEGIN IMMEDIATE":
            connection.execute("UPDATE host SET boot_id = ?", (host_file.boot_id(),))
            connection.execute("UPDATE rows SET version = 7")
        return patiently(connection, statement, until_s)

    monkeypatch.setattr(host_file, "patiently", late)
    count_once(path)
    with closing(sqlite3.connect(path)) as connection:
        assert (7,) == connection.execute("SELECT version FROM rows").fetchone()


def test_limits_change_although_the_file_is_locked(path: Path) -> None:
    """A process that is stopped in a write must not keep others from switching off."""
    with closing(a_limiter(path, 3)) as limiter:
        assert 3 == admitted(limiter)
        with locked(path):
            limiter.reconfigure(limiter.settings.switched_off())
            assert 30 == admitted(limiter)


def test_process_counts_alone_in_a_directory_that_it_may_not_enter_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(a_limiter(path)) as limiter:
        assert 4 == admitted(limiter, 4)
        with monkeypatch.context() as patch:
            patch.setattr(
                "oauth_ratelimit.counters.host_place.os.lstat", Mock(side_effect=PermissionError(13, "denied"))
            )
            assert limiter.sync().error is None
            assert "denied" in str(limiter.host.problem)
        limiter.sync()
        assert limiter.host.problem is None


def test_process_ends_in_a_directory_that_it_may_not_enter_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has counted alone since; what the file holds is out of reach, and no bug."""
    settings, store = (
        load_config({"mode": "enforce", "host": str(path), "limits": {"client": ["10/366d"]}}),
        MemoryStore(),
    )
    limiter = Limiter(settings, store)
    assert 4 == admitted(limiter, 4)
    refused = Mock(side_effect=PermissionError(13, "denied"))
    monkeypatch.setattr("oauth_ratelimit.counters.host_place.os.lstat", refused)
    limiter.sync()
    with capture_logs() as logs:
        limiter.close()
    assert "cycle_failed" not in {entry["event"] for entry in logs}


def test_store_follows_the_progress_in_the_file_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single server in place of a replica set refuses to, each time."""
    settings, store = (
        load_config({"mode": "enforce", "host": str(path), "limits": {"client": ["10/366d"]}}),
        MemoryStore(),
    )
    with closing(Limiter(settings, store)) as limiter:
        limiter.check("app")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE host SET progress = 7")
        follow = Mock()
        monkeypatch.setattr(store, "follow", follow)
        for _ in range(3):
            limiter.sync()
        follow.assert_called_once_with(7)


def test_two_configurations_count_in_the_same_rows_and_keep_the_longest_horizon(path: Path) -> None:
    long = {"limit": 5, "window": "120s", "frames": 2}
    short = {"limit": 4, "window": "60s", "frames": 1}
    now_s = [6000.0]
    limiters = [
        Limiter(
            load_config({"mode": "enforce", "host": str(path), "limits": {"client": [limit]}}),
            clock=lambda: now_s[0],
        )
        for limit in (long, short)
    ]
    with closing(limiters[0]) as first, closing(limiters[1]) as second:
        assert 4 == admitted(first, 2) + admitted(second)
        now_s[0] += 150.0  # over for the short window
        second.check("app")  # beside half of the four in the long one
        assert 2 == admitted(first)


def test_worker_that_was_stopped_counts_in_the_newest_frame_and_brings_no_hits_back(path: Path) -> None:
    """It has read the clock before it was stopped, and the row after it went on."""
    stale = [6000.0]
    settings = load_config(
        {"mode": "enforce", "host": str(path), "limits": {"client": [{"limit": 3, "window": "10s"}]}}
    )
    now_s = 6100.0
    with (
        closing(Limiter(settings, clock=lambda: stale.pop() if stale else now_s)) as stopped,
        closing(Limiter(settings, clock=lambda: now_s)) as other,
    ):
        assert 2 == admitted(other, 2)
        assert 1 == admitted(stopped, 1)
        assert not stale
        assert 0 == admitted(other)


def test_worker_that_was_stopped_before_a_response_brings_no_hits_back(path: Path) -> None:
    times = [6000.0]
    settings = load_config(
        {"mode": "enforce", "host": str(path), "limits": {"client": [{"limit": 3, "window": "10s"}]}}
    )
    with (
        closing(
            Limiter(settings, clock=lambda: times.pop() if len(times) > 1 else times[0], keeps_held=True)
        ) as stopped,
        closing(Limiter(settings, clock=lambda: times[0])) as other,
    ):
        _, held = stopped.hold("app")
        times[0] = 6100.0
        assert 3 == admitted(other)
        times.append(6000.0)  # read before it was stopped
        stopped.confirm(held)
        assert (1, 0) == (len(times), admitted(other))


def _plant_link(path: Path) -> None:
    path.with_name("target").touch()
    path.symlink_to("target")


def _plant_foreign_file(path: Path) -> None:
    path.touch()
    os.chown(path, NOBODY, NOBODY)


def _plant_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE users (name)")
    path.chmod(0o600)


def _plant_layout(path: Path) -> None:
    count_once(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET layout = ?", (LAYOUT + 1,))


def _plant_user(path: Path) -> None:
    count_once(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET user_id = ?", (NOBODY,))


UNUSABLE: list[tuple[str, Callable[[Path], object], str]] = [
    ("a link", _plant_link, "is not a regular file"),
    ("a directory", Path.mkdir, "is not a regular file"),
    ("a pipe", os.mkfifo, "is not a regular file"),
    ("writable by others", lambda path: (path.touch(), path.chmod(0o666)), "other users can write"),
    ("another's log", lambda path: Path(f"{path}-wal").symlink_to("x"), "is not a regular file"),
    ("open directory", lambda path: path.parent.chmod(0o777), "other users can change its directory"),
    ("another database", _plant_database, "its layout is unknown"),
    ("another layout", _plant_layout, f"its layout is {LAYOUT + 1}"),
    ("another user inside", _plant_user, f"made by user {NOBODY}"),
]
if os.geteuid() == 0:
    UNUSABLE.append(("another's file", _plant_foreign_file, f"belongs to user {NOBODY}"))


@pytest.mark.parametrize(("plant", "reason"), [each[1:] for each in UNUSABLE], ids=[each[0] for each in UNUSABLE])
def test_process_counts_alone_without_a_file_that_it_can_trust(
    path: Path, plant: Callable[[Path], object], reason: str
) -> None:
    plant(path)
    with capture_logs() as logs, closing(a_limiter(path)) as limiter:
        assert 10 == admitted(limiter)
        limiter.sync()
        assert 0 == admitted(limiter)
        assert reason in (limiter.host.problem or "")
    (entry,) = [each for each in logs if each["event"] == "host_file_unusable"]
    assert (str(path), "error") == (entry["path"], entry["log_level"])


def test_process_counts_alone_without_the_directory_until_it_is_there(path: Path) -> None:
    path = path.parent / "later" / path.name
    with closing(a_limiter(path)) as limiter, closing(a_limiter(path)) as other:
        assert 10 == admitted(limiter)
        assert limiter.host.problem is not None
        path.parent.mkdir()
        limiter.sync()
        assert limiter.host.problem is None
        assert 0 == admitted(limiter) + admitted(other)


def test_file_that_is_no_database_is_left_alone(path: Path) -> None:
    """The configuration may name another one by mistake."""
    path.write_bytes(b"no database" * 100)
    path.chmod(0o600)
    with capture_logs() as logs, closing(a_limiter(path)) as limiter:
        assert 10 == admitted(limiter)
        assert "not a database" in (limiter.host.problem or "")
    assert path.read_bytes() == b"no database" * 100
    assert ["host_file_unusable"] == [each["event"] for each in logs if each["event"].startswith("host_")]


def test_file_that_is_damaged_while_it_is_used_costs_no_request_and_is_replaced(path: Path) -> None:
    with closing(a_limiter(path)) as limiter:
        for number in range(200):
            limiter.check(f"client-{number}")
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with closing(a_limiter(path)) as limiter:
        assert 10 == admitted(limiter)
        limiter.sync()
        limiter.sync()
        assert limiter.host.problem is None
        with closing(a_limiter(path)) as other:
            assert 10 == admitted(limiter, client_id="new") + admitted(other, client_id="new")
    assert path.with_name("ratelimit.db.damaged").exists()


def test_processes_meet_again_in_a_new_file_after_theirs_was_removed(path: Path) -> None:
    with closing(a_limiter(path)) as limiter, closing(a_limiter(path)) as other:
        limiter.check("app")
        other.check("app")
        path.unlink()  # its log stays, as after a careless rm
        limiter.sync()
        other.sync()
        assert path.exists()
        assert 10 == admitted(limiter, client_id="new") + admitted(other, client_id="new")
    assert is_intact(path)


def _count_when_told(path: Path, told: Any, counts: Any) -> None:
    with closing(a_limiter(path)) as limiter:
        for count, is_after_cycle in iter(told.get, None):
            if is_after_cycle:
                limiter.sync()
            counts.put(admitted(limiter, count))


@pytest.mark.parametrize("suffix", ["-shm", "-wal"])
@pytest.mark.parametrize("is_first_to_see", [True, False])
def test_processes_meet_in_a_new_file_after_the_log_of_theirs_was_removed(
    path: Path, suffix: str, is_first_to_see: bool
) -> None:
    """Else one that starts later makes another log: both would write to one file without waiting for each other."""
    told, counts = CONTEXT.Queue(), CONTEXT.Queue()
    with processes(_count_when_told, 1, path, told, counts) as (process,), capture_logs() as logs:
        told.put((6, False))
        assert 6 == counts.get(timeout=60)
        Path(f"{path}{suffix}").unlink()
        if is_first_to_see:
            told.put((4, True))
            assert 4 == counts.get(timeout=60)
        with closing(a_limiter(path)) as late:
            assert (6 if is_first_to_see else 10) == admitted(late)
            told.put((10, True))
            assert 0 == counts.get(timeout=60)
            assert late.host.problem is None
        told.put(None)
        process.join(60)
        with closing(a_limiter(path)) as last:
            assert 0 == admitted(last)
    assert is_intact(path)
    reasons = [each["reason"] for each in logs if each["event"] == "host_file_damaged"]
    assert ([] if is_first_to_see else [host_file.LOG_REMOVED]) == reasons


def test_file_without_a_log_that_another_application_has_open_is_left_alone(path: Path) -> None:
    _plant_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(a_limiter(path)) as limiter:
        other.execute("BEGIN EXCLUSIVE")
        assert 10 == admitted(limiter)
        assert limiter.host.problem is not None
        other.execute("ROLLBACK")
    assert [path] == [each for each in path.parent.iterdir() if each.stat().st_size]


def test_no_file_of_a_process_that_runs_looks_old(path: Path) -> None:
    """Those that were written to when it started alone are what cleaners of a temporary directory remove first."""
    with closing(a_limiter(path)) as limiter:
        limiter.check("app")
        files = list(path.parent.iterdir())
        for each in files:
            os.utime(each, (0, 0))
        limiter.sync()
        assert 6 == len(files)
        assert all(each.stat().st_mtime and each.stat().st_atime for each in files)


def _run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", f"from tests.counters.test_host_file import *\n{code}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[-1]


def test_full_disk_costs_no_request_and_the_file_is_used_again_when_there_is_room(path: Path) -> None:
    """A cycle before that would give up what was counted meanwhile. Room in the file itself is room.

    The largest size that a file may have is the nearest to a full disk that needs no rights.
    """
    code = (
        "import resource\n"
        "from oauth_ratelimit.counters import host_file\n"
        "limiter = a_limiter(sys.argv[1])\n"
        "limiter.check('app')\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))\n"
        "found = [all([limiter.check(f'client-{number:0500}').allowed for number in range(500)])]\n"
        "found += [limiter.host.problem is not None, admitted(limiter)]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "host_file._space = lambda _: (2**20, 2**22 + 2**14)\n"
        "for forgotten in ('nobody', 'client-%'):\n"
        "    with closing(sqlite3.connect(sys.argv[1])) as other, other:\n"
        "        other.execute('DELETE FROM rows WHERE name LIKE ?', ('%' + forgotten,))\n"
        "    limiter.sync()\n"
        "    found += [limiter.host.problem, admitted(limiter)]\n"
        "print(found)\n"
    )
    assert "[True, True, 10, 'its file system is full', 0, None, 0]" == _run(code, path)


def test_process_without_memory_goes_on_limiting(path: Path) -> None:
    """A request that fails counts in all of its limits or in none, and the next one finds everything in order."""
    code = (
        "import resource\n"
        "limiter, other = a_limiter(sys.argv[1]), a_limiter(sys.argv[1])\n"
        "limiter.check('app'), other.check('app')\n"
        "number, failures, taken = 0, 0, []\n"
        "size = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "_, most = resource.getrlimit(resource.RLIMIT_AS)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, most))\n"
        "size = 2**20\n"
        "while number < 200:\n"
        "    try:\n"
        "        if size >= 64:\n"
        "            taken.append(bytearray(size))\n"
        "            continue\n"
        "        number += 1\n"
        "        del taken[-5:]  # ever more of them work\n"
        "        limiter.check(f'client-{number}')\n"
        "    except MemoryError:\n"
        "        failures += size < 64\n"
        "        size //= 2\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "taken.clear()\n"
        "left = [admitted(other, 12, f'client-{number}') for number in range(1, 201)]\n"
        "print(set(left) <= {9, 10}, left.count(10) <= failures, limiter.host.problem, admitted(limiter))\n"
    )
    assert "True True None 8" == _run(code, path)


def test_file_that_opens_but_cannot_be_written_is_tried_ever_more_rarely(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens it anew with each cycle would log that it is used, and that it is not, for ever."""
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    connect = HostFile._connect_to_file
    opened: list[None] = []
    monkeypatch.setattr(HostFile, "_connect_to_file", lambda *args: (opened.append(None), connect(*args))[1])
    with capture_logs() as logs, closing(a_limiter(path)) as limiter:
        assert 10 == admitted(limiter)
        for name, new_name, expected in (("rows", "elsewhere", 10), ("elsewhere", "rows", 0)):
            with closing(sqlite3.connect(path)) as other:
                other.execute(f"ALTER TABLE {name} RENAME TO {new_name}")
            count, opened = 0, []
            for _ in range(120):
                count += admitted(limiter)
                limiter.sync()
                now_s += 1.0
            assert (expected, True) == (count, len(opened) < 10)
        assert limiter.host.problem is None
    events = [each["event"] for each in logs if each["event"].startswith("host_")]
    assert ["host_file_unusable", "host_file_used"] * 2 == events


def test_rows_make_room_for_each_other_before_they_fill_the_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each process would count alone. Requests of new keys count nowhere meanwhile."""
    monkeypatch.setattr(host_file, "MAX_LOG_SIZE", 0)
    free = 2**30
    monkeypatch.setattr(host_file, "_space", lambda _: (free, 2**30))
    with capture_logs() as logs, closing(a_limiter(path, window="1s")) as limiter:
        for number in range(200):
            limiter.check(f"client-{number}")
        assert 200 == limiter.sync().key_count
        free = 0
        for key_count in (180, 162):
            assert key_count == limiter.sync().key_count
        assert (9, 30) == (admitted(limiter, client_id="client-199"), admitted(limiter, client_id="new"))
        assert ["the file system is full"] == [entry["reason"] for entry in logs if entry["event"] == "keys_exhausted"]
        free = 2**30
        limiter.sync()
        assert (10, None) == (admitted(limiter, client_id="new"), limiter.host.problem)


def test_new_keys_are_limited_although_others_have_nearly_filled_the_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own rows are few, so that forgetting them would make no room."""
    monkeypatch.setattr(host_file, "_space", lambda _: (0, 2**30))
    with closing(a_limiter(path)) as limiter:
        assert 4 == admitted(limiter, 4)
        assert 1 == limiter.sync().key_count
        assert (6, 10) == (admitted(limiter), admitted(limiter, client_id="new"))


def test_file_system_without_a_limit_is_never_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs of size 0 tells no numbers."""
    monkeypatch.setattr(host_file, "MAX_LOG_SIZE", 0)
    monkeypatch.setattr(os, "statvfs", lambda _: Mock(f_frsize=4096, f_blocks=0, f_bavail=0))
    with closing(a_limiter(path, window="1s")) as limiter:
        for number in range(200):
            limiter.check(f"client-{number}")
        assert [200, 200] == [limiter.sync().key_count for _ in range(2)]


def test_hits_in_a_full_file_are_logged_at_the_end(path: Path) -> None:
    """Those that came later were counted in memory, and are sent."""
    code = (
        "import resource, structlog\n"
        "from testbed.memory_store import MemoryStore\n"
        "settings = load_config({'mode': 'enforce', 'host': sys.argv[1], 'limits': {'client': ['9 per 1 hour']}})\n"
        "limiter = Limiter(settings, MemoryStore())\n"
        "for number in range(20): limiter.check(f'client-{number}')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit := os.stat(sys.argv[1] + '-wal').st_size, limit))\n"
        "for number in range(200): limiter.check(f'later-{number}')\n"
        "assert limiter.host.problem is not None\n"
        "with capture_logs() as logs: limiter.close()\n"
        "found = [(each['event'], each['hits']) for each in logs if each['event'].startswith('hits_')]\n"
        "print(found, limiter.host.problem)\n"
    )
    assert "[('hits_undelivered', 20)]" in _run(code, path)


def test_log_of_the_file_is_bounded_although_no_cycle_runs(path: Path) -> None:
    with closing(a_limiter(path, 10_000)) as limiter:
        admitted(limiter, 1000)
        sizes = [Path(f"{path}-wal").stat().st_size for _ in range(30) if admitted(limiter, 100)]
    assert max(sizes) < 10_000_000


def _read_for_ever(path: Path, is_reading: Event) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM rows").fetchone()
    is_reading.set()
    signal.pause()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_processes_meet_in_a_new_file_if_one_was_stopped_while_it_read_and_the_log_only_grows(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Nothing could begin the log anew until that process goes on. A log that is merely large is kept."""
    monkeypatch.setattr(host_file, "ENDLESS_LOG_SIZE", 50_000)
    monkeypatch.setattr(host_file, "STUCK_S", 0.0)
    is_reading = CONTEXT.Event()
    with closing(a_limiter(path)) as limiter, closing(a_limiter(path)) as other:
        assert 4 == admitted(limiter, 4)
        with processes(_read_for_ever, is_stopped, path, is_reading):
            assert not is_stopped or is_reading.wait(60)
            for number in range(200):
                limiter.check(f"client-{number}")
            assert Path(f"{path}-wal").stat().st_size > host_file.ENDLESS_LOG_SIZE
            with capture_logs() as logs:
                limiter.sync()
                other.sync()
            assert (10 if is_stopped else 6) == admitted(limiter, 5) + admitted(other)
            reasons = [each["reason"] for each in logs if each["event"] == "host_file_damaged"]
            assert [host_file.LOG_ENDLESS] * is_stopped == reasons
            assert not Path(f"{path}.damaged-wal").exists()


@pytest.mark.parametrize("mode", ["file", "directory"])
def test_process_counts_alone_in_a_file_that_is_read_only(path: Path, mode: str) -> None:
    count_once(path)
    (path if mode == "file" else path.parent).chmod(0o400 if mode == "file" else 0o500)
    if os.geteuid() == 0:  # who may write to everything
        for each in (path.parent, *path.parent.iterdir()):
            os.chown(each, NOBODY, NOBODY)
        for each in path.parent.parents[:-2]:
            each.chmod(each.stat().st_mode | 0o011)
    if mode == "directory":
        path.unlink() if os.geteuid() == 0 else None
    code = (
        "limiter = a_limiter(sys.argv[1])\n"
        "if os.geteuid() == 0: os.setuid(NOBODY)\n"
        "print(admitted(limiter), limiter.host.problem is not None)\n"
    )
    assert "10 True" == _run(code, path)


@pytest.mark.parametrize("with_store", [True, False])
def test_file_without_the_row_of_the_host_is_put_aside(path: Path, with_store: bool) -> None:
    limits = {"client": ["10 per 366 d"]}
    settings = load_config({"mode": "enforce", "host": str(path), "limits": limits})
    with closing(Limiter(settings, MemoryStore() if with_store else None)) as limiter:
        limiter.check("app")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM host")
        with capture_logs() as logs:
            limiter.sync()
            assert (None, 1) == (limiter.sync().error, admitted(limiter, 1, "new"))
        assert limiter.host.problem is None
        assert "cycle_failed" not in [each["event"] for each in logs]
    assert path.with_name("ratelimit.db.damaged").exists()


def test_process_does_not_wait_for_one_that_opens_the_file_for_ever(path: Path) -> None:
    with Path(f"{path}-lock").open("w") as lock:
        Path(lock.name).chmod(0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with closing(a_limiter(path)) as limiter:
            assert 10 == admitted(limiter)
            assert limiter.host.problem is not None
            fcntl.flock(lock, fcntl.LOCK_UN)
            limiter.sync()
            assert limiter.host.problem is None


def test_what_a_process_has_counted_alone_counts_with_others_once_it_can_open_the_file(path: Path) -> None:
    with closing(a_limiter(path)) as limiter, closing(a_limiter(path)) as other:
        assert 4 == admitted(other, 4, "busy")
        with Path(f"{path}-lock").open("a") as lock:
            path.rename(f"{path}-elsewhere")
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert [3, 2] == [admitted(limiter, 3, "busy"), admitted(limiter, 2)]
            assert limiter.host.problem is not None
            Path(f"{path}-elsewhere").rename(path)
        limiter.sync()
        assert [3, 8] == [admitted(other, client_id="busy"), admitted(other)]


def test_process_that_opens_a_file_that_is_ready_runs_no_python_while_it_has_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of others would wait for it, and be decided without the lock if the machine is busy."""
    seen: list[bool] = []

    class Watched(FileConnection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            cursor = super().execute(*arguments)
            seen.append(self.in_transaction)
            return cursor

    count_once(path)
    monkeypatch.setattr(host_file, "FileConnection", Watched)
    with closing(a_limiter(path)) as limiter:
        limiter.check("app")
        assert seen
        assert not any(seen)


def test_process_that_waits_for_another_one_uses_the_file_as_soon_as_it_is_ready(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been made by one that was stopped then, or by one of many that open it one after the other."""
    made, connect = path.with_suffix(".made"), HostFile._connect_to_file
    count_once(made)

    def make_ready(file: HostFile, *arguments: Any, **options: Any) -> Any:
        try:
            return connect(file, *arguments, **options)
        finally:
            if made.exists():
                made.rename(path)

    monkeypatch.setattr(HostFile, "_connect_to_file", make_ready)
    with Path(f"{path}-lock").open("w") as lock, closing(a_limiter(path)) as limiter:
        Path(lock.name).chmod(0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert 9 == admitted(limiter)


def test_forked_child_counts_with_its_parent(path: Path) -> None:
    """And holds locks of its own: SQLite in a child takes those of its parent for its own."""
    with closing(a_limiter(path)) as limiter:
        assert 4 == admitted(limiter, 4)
        child = os.fork()
        if not child:
            found = admitted(limiter, 3)
            locks = Path("/proc/locks").read_text()
            os._exit(found if f" {os.getpid()} " in locks else 99)
        _, status = os.waitpid(child, 0)
        assert (3, 3) == (os.waitstatus_to_exitcode(status), admitted(limiter))


def test_child_counts_with_its_parent_although_a_thread_of_that_waits_for_urgent_keys(path: Path) -> None:
    with closing(a_limiter(path)) as limiter:
        loop = SyncLoop(limiter, interval_s=60.0)
        loop.start()
        assert 4 == admitted(limiter, 4)
        child = os.fork()
        if not child:
            limiter.check("other")
            limiter.sync()
            os._exit(admitted(limiter))
        _, status = os.waitpid(child, 0)
        assert loop.stop()
        assert (6, 0) == (os.waitstatus_to_exitcode(status), admitted(limiter))


def test_process_counts_alone_while_the_file_stays_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the lock no more, and uses the file again when that is free."""
    monkeypatch.setattr(host, "STUCK_S", 0.0)
    with closing(a_limiter(path)) as limiter, closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert 4 == admitted(limiter, 4)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            limiter.sync()
            assert limiter.host.problem is not None
        before = limiter.sync().lock_timeout_count
        assert 10 == admitted(limiter)
        assert before == limiter.sync().lock_timeout_count
        other.execute("ROLLBACK")
        limiter.sync()
        assert (None, 0) == (limiter.host.problem, admitted(limiter))


def test_file_is_not_given_up_because_cycles_have_come_while_others_were_counting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens to one cycle in a hundred of a busy server, and cycles may come as rarely as the file is given up."""
    monkeypatch.setattr(host, "STUCK_S", 0.0)
    with closing(a_limiter(path)) as limiter, closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert 4 == admitted(limiter, 4)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(host_file, "FREE_S", 60.0)
        monkeypatch.setattr(schema, "nap", lambda: other.in_transaction and other.execute("ROLLBACK"))
        limiter.sync()
        assert limiter.host.problem is None


def test_log_is_written_to_the_file_by_cycles(path: Path) -> None:
    with closing(a_limiter(path)) as limiter:
        limiter.check("app")
        size = path.stat().st_size
        for number in range(150):
            limiter.check(f"client-{number}")
        assert size == path.stat().st_size
        limiter.sync()
        assert path.stat().st_size > 5 * size
