"""The file that no configuration names: whose it is, where it lies, and when it is removed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.counters import host_place
from oauth_ratelimit.counters.host_place import KEPT_S, MEMBERS, HostPlace, Membership, place_of
from tests.support.interruption import Interruption

NAME = f"oauth_ratelimit-{os.geteuid()}"
NOBODY = 65534
LONG_AGO_S = 2 * KEPT_S


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev/shm, and another one in place of /tmp."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(host_place, "_IN_MEMORY", str(tmp_path / "memory"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "memory"


@pytest.fixture
def place() -> HostPlace:
    return place_of(["shop"], parent="1")


def a_limiter(place: HostPlace) -> Limiter:
    limits = {"client": [{"limit": 10, "window": "366d"}]}
    return Limiter(load_config({"mode": "enforce", "limits": limits}), place=place)


def admitted(limiter: Limiter, count: int = 30) -> int:
    return sum(limiter.check("app").allowed for _ in range(count))


def files(memory: Path) -> list[str]:
    return sorted(path.name for path in (memory / NAME).iterdir())


def _age(memory: Path) -> None:
    """Have all files waited for long."""
    left_at_s = time.time() - LONG_AGO_S
    for path in (memory / NAME).glob(f"*{MEMBERS}"):
        os.utime(path, (left_at_s, left_at_s))


@contextmanager
def another_process(place: HostPlace) -> Iterator[subprocess.Popen[str]]:
    """A process that has counted four requests. It is killed at the end."""
    code = (
        "from tests.counters.test_host_place import *\n"
        "limiter = a_limiter(HostPlace(*sys.argv[1:]))\n"
        "print(admitted(limiter, 4), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, place.path, place.identity or ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "4\n" == process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_workers_of_a_service_count_in_one_file_of_their_own(place: HostPlace, memory: Path) -> None:
    with closing(a_limiter(place)) as limiter, another_process(place):
        assert 6 == admitted(limiter)
    assert memory / NAME == Path(place.path).parent
    assert 0o700 == (memory / NAME).stat().st_mode & 0o777


@pytest.mark.parametrize("fact", ["service", "parent", "boot", "layout"])
def test_each_fact_gives_a_file_of_its_own(fact: str, place: HostPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as equal process ids in two containers that share /dev/shm."""
    service, parent = (["shop", "/etc/shop.yaml"] if fact == "service" else ["shop"]), "2" if fact == "parent" else "1"
    changed = {"boot": ("boot_id", lambda: "another"), "layout": ("LAYOUT", 99)}
    if fact in changed:
        monkeypatch.setattr(host_place, *changed[fact])
    assert place.path != place_of(service, parent=parent).path


def test_file_of_another_identity_is_not_used(place: HostPlace) -> None:
    with closing(a_limiter(place)) as limiter, closing(a_limiter(HostPlace(place.path, "another"))) as other:
        assert 10 == admitted(limiter)
        assert 10 == admitted(other)
        assert "it is another service's" == other.host.problem


def _plant_link(directory: Path) -> None:
    directory.with_name("target").mkdir(0o700)
    directory.symlink_to("target")


def _plant_foreign(directory: Path) -> None:
    directory.mkdir(0o700)
    os.chown(directory, NOBODY, NOBODY)


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "missing": lambda directory: directory.parent.rmdir(),
    "open to others": lambda directory: directory.mkdir(0o755),
    "a file": Path.touch,
    "a link": _plant_link,
    "others can rename in it": lambda directory: directory.parent.chmod(0o777),
}
if os.geteuid() == 0:  # who may write to everything
    UNUSABLE["another user's"] = _plant_foreign
else:
    UNUSABLE["read-only"] = lambda directory: directory.parent.chmod(0o555)


@pytest.mark.slow
@pytest.mark.parametrize("make_unusable", UNUSABLE.values(), ids=UNUSABLE)
def test_workers_meet_elsewhere_if_the_first_directory_cannot_be_used(
    make_unusable: Callable[[Path], object], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unusable(memory / NAME)
    place = place_of(["shop"], parent="1")
    assert memory.with_name("temporary") / NAME == Path(place.path).parent
    with closing(a_limiter(place)) as limiter, another_process(place):
        assert 6 == admitted(limiter)

    runtime = memory.with_name("runtime")
    runtime.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert runtime / NAME == Path(place_of(["shop"], parent="1").path).parent


def test_file_is_not_put_where_there_is_little_room_for_it(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a container's small /dev/shm. What others have filled does not matter: not all workers would see it."""
    size = host_place.LEAST_SIZE
    monkeypatch.setattr(os, "statvfs", lambda path: Mock(f_frsize=1, f_blocks=size - (path == memory), f_bavail=0))
    assert memory.with_name("temporary") / NAME == Path(place_of(["shop"], parent="1").path).parent
    size += 1
    assert memory / NAME == Path(place_of(["shop"], parent="1").path).parent
    size = 1  # a tmpfs without a limit has no blocks
    assert memory / NAME == Path(place_of(["shop"], parent="1").path).parent


def test_process_counts_alone_without_any_directory(memory: Path) -> None:
    for base in (memory, memory.with_name("temporary")):
        _plant_link(base / NAME)
    with closing(a_limiter(place_of(["shop"], parent="1"))) as limiter:
        assert 10 == admitted(limiter)
        assert "not a directory of this user alone" in (limiter.host.problem or "")


def test_counts_wait_for_workers_that_come_after_a_reload(place: HostPlace) -> None:
    with closing(a_limiter(place)) as limiter:
        assert 4 == admitted(limiter, 4)
    with closing(a_limiter(place_of(["another"], parent="1"))) as other:
        other.check("app")
    with closing(a_limiter(place)) as limiter:
        assert 6 == admitted(limiter)


def test_files_that_nobody_has_come_for_are_removed_by_the_next_start(place: HostPlace, memory: Path) -> None:
    with closing(a_limiter(place)) as limiter, closing(a_limiter(place.beside("-guard"))) as guard:
        limiter.check("app")
        guard.check("app")
    _age(memory)
    other = place_of(["another"], parent="1")
    with closing(a_limiter(other)) as limiter:
        limiter.check("app")
        assert {Path(other.path).name} == {name[:32] for name in files(memory)}


def test_counts_of_killed_workers_wait_for_others(place: HostPlace, memory: Path) -> None:
    """However long ago they have started."""
    other = place_of(["another"], parent="1")
    with closing(a_limiter(place)) as limiter:
        limiter.check("app")
        _age(memory)
        with closing(a_limiter(other)) as started:  # nothing is removed while it runs
            started.check("app")
        assert Path(place.path).exists()
        limiter.sync()
        limiter.host._close_file()  # as the system does with a process that was killed
        assert limiter.host._file is not None
        limiter.host._file.membership.forget()
        with closing(a_limiter(other)) as started:
            started.check("app")
        assert 9 == admitted(limiter)


def test_worker_that_ends_leaves_the_file_to_the_others(place: HostPlace) -> None:
    with closing(a_limiter(place)) as limiter:
        assert 4 == admitted(limiter, 4)
        with another_process(place):  # starts, and removes what nobody uses
            pass
        with closing(a_limiter(place_of(["another"], parent="1"))) as other:
            other.check("app")
        assert 2 == admitted(limiter)
        assert limiter.host.problem is None


def test_workers_meet_again_after_a_logout_has_emptied_the_directory(place: HostPlace, memory: Path) -> None:
    with closing(a_limiter(place)) as limiter, closing(a_limiter(place)) as other:
        limiter.check("app")
        other.check("app")
        for path in (memory / NAME).iterdir():
            path.unlink()
        (memory / NAME).rmdir()
        limiter.sync()
        other.sync()
        assert 10 == admitted(limiter) + admitted(other)
        with closing(a_limiter(place)) as third:
            third.check("app")
        _age(memory)
        with closing(a_limiter(place_of(["another"], parent="1"))) as fourth:
            fourth.check("app")
        assert Path(place.path).exists()


@pytest.mark.parametrize("suffix", ["", MEMBERS])
def test_file_that_others_can_change_is_not_used(place: HostPlace, memory: Path, suffix: str) -> None:
    """Who holds the second one would pass for a worker, and no worker for the last one."""
    (memory / NAME).mkdir(0o700)
    planted = Path(place.path + suffix)
    planted.touch()
    planted.chmod(0o666)
    with closing(a_limiter(place)) as limiter:
        assert 10 == admitted(limiter)
        assert f"other users can write to {planted}" == limiter.host.problem


def test_one_of_the_processes_that_end_is_told_that_it_is_the_last(place: HostPlace) -> None:
    """Whatever start looks for old files meanwhile, and although a child holds what its parent had open."""
    first, second, third = (Membership(place).join(time.monotonic() + 1.0) for _ in range(3))
    inherited = [os.dup(each._descriptor or 0) for each in (first, third)]  # as by a fork below Python
    found = [first.is_last()]
    first.leave()
    third.leave()  # which does not ask, as one without a store
    host_place._remove_if_unused(place.path + MEMBERS)
    found.append(second.is_last())
    second.leave()
    for each in inherited:
        os.close(each)
    assert [False, True] == found


@pytest.mark.no_cover
def test_start_that_ctrl_c_ends_leaves_no_process_that_seems_to_run(place: HostPlace) -> None:
    """Else the last process would leave its hits to that one."""
    interruption = Interruption(0)
    while interruption.count >= interruption._at:
        interruption = Interruption(interruption._at + 1)
        with suppress(KeyboardInterrupt), interruption:
            Membership(place).join(time.monotonic() + 1.0)
        member = Membership(place).join(time.monotonic() + 1.0)
        assert member.is_last(), f"interrupted at instruction {interruption._at}"
        member.leave()


def test_start_does_not_disturb_processes_that_end(place: HostPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the lock of none but old files."""
    member = Membership(place).join(time.monotonic() + 1.0)
    locked: list[int] = []
    monkeypatch.setattr(host_place, "lock", lambda descriptor, *_: locked.append(descriptor))
    host_place._remove_if_unused(place.path + MEMBERS)
    member.forget()
    assert [] == locked


def test_forked_child_does_not_hold_its_parents_file(place: HostPlace, memory: Path) -> None:
    (waiting, ending), (started, starting) = os.pipe(), os.pipe()
    with closing(a_limiter(place)) as limiter:
        limiter.check("app")
        child = os.fork()
        if not child:
            os.close(ending)
            os.write(starting, b".")
            os.read(waiting, 1)
            os._exit(0)
        os.read(started, 1)
        assert 9 == admitted(limiter)
    _age(memory)
    with closing(a_limiter(place_of(["another"], parent="1"))) as other:
        other.check("app")
    assert not Path(place.path).exists()
    os.close(ending)
    os.waitpid(child, 0)
