"""Identity of a process: whether it has ended, as another process finds out."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.identity import has_ended, identity_of


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_process_has_ended_when_it_waits_for_its_parent_and_when_it_is_gone(process: subprocess.Popen[bytes]) -> None:
    identity = identity_of(process.pid)
    assert not has_ended(identity)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(identity)
    process.wait()
    assert has_ended(identity)


def test_process_with_the_number_of_one_that_has_ended_is_another(process: subprocess.Popen[bytes]) -> None:
    assert has_ended(identity_of(process.pid) + "0")


def test_process_runs_as_far_as_one_without_free_descriptors_knows(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = identity_of(process.pid)

    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", fail)
    assert not has_ended(identity)


def test_process_knows_when_it_was_started() -> None:
    """In hundredths of a second, by the clock that goes on while the machine sleeps."""
    asked = "from oauth_ratelimit.process.identity import begun_s; print(begun_s())"
    earliest_s = uptime_s() - 0.02
    text = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout

    assert earliest_s <= float(text) < earliest_s + (uptime_s() - earliest_s) / 2, "not when it was asked"
