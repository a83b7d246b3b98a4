"""The tutorial works when it is followed to the letter, in its order: what is seen is what is printed there.

A block that begins with ``# NAME`` is written to that file. The commands of a ``console`` are run; what follows them on
the page must be what they print. A ``text`` must be in the server's log. ``…`` matches anything, alone in a line for
any number of lines.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.child import Child
from testbed.clock import wait_until
from testbed.mongod import free_port
from tests.docs.blocks import ROOT, Block, blocks_of
from tests.support.helpers import is_open

BINARIES = Path(sys.executable).parent
RUN_TIMEOUT_S = 60
SEEN_TIMEOUT_S = 60.0


class Reader:
    """Somebody who follows a page in an empty directory, at other addresses, with a server in a terminal of its own."""

    def __init__(self, place: Path, replace: dict[str, str]) -> None:
        self._place = place
        self._replace = replace
        self._log_path = place / "server.log"
        self._server: Child | None = None
        self._environment = {**os.environ, "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
        # Colours, which structlog puts between the words of its lines, are not on the page.
        self._environment.pop("FORCE_COLOR", None)

    def follow(self, block: Block) -> None:
        text = self._adapted(block.text)
        if block.file:
            (self._place / block.file).write_text(text)
        elif block.language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                self._run(command, expected)
        elif block.language == "text":
            for line in text.splitlines():
                wait_until(lambda line=line: re.search(pattern_of(line), self._log()), line, SEEN_TIMEOUT_S)

    def stop(self) -> None:
        """Press Ctrl-C in the server's terminal."""
        if self._server is not None:
            self._server.signal(signal.SIGINT)
            wait_until(lambda: self._server.exit_code is not None, "the server's end", RUN_TIMEOUT_S)
            self._server.kill()

    def _adapted(self, text: str) -> str:
        for old, new in self._replace.items():
            text = text.replace(old, new)
        return text

    def _log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _run(self, command: str, expected: str) -> None:
        """Run a command, again until it prints what is expected: a server takes a changed file over within seconds."""
        if re.search(r"-m venv|pip install", command):
            return  # the tests have an environment already
        command = command.replace(".venv/bin/", "")
        if command.startswith("gunicorn "):
            self._serve(command)
            return
        seen: list[str] = []

        def is_as_printed() -> bool:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self._place,
                env=self._environment,
                timeout=RUN_TIMEOUT_S,
                capture_output=True,
                text=True,
            )
            seen[:] = [done.stdout + done.stderr]
            printed = done.stdout.replace("\r", "").rstrip("\n")
            return done.returncode == 0 and re.fullmatch(pattern_of(expected.rstrip("\n")), printed) is not None

        try:
            wait_until(is_as_printed, command, SEEN_TIMEOUT_S)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\nexpected:\n{expected}\nseen:\n{seen[0]}\nlog:\n{self._log()}") from None

    def _serve(self, command: str) -> None:
        self.stop()
        self._server = Child(command.split(), cwd=self._place, env=self._environment, log_path=self._log_path)
        found = re.search(r"127\.0\.0\.1:(\d+)", command)
        assert found
        wait_until(lambda: is_open(int(found[1])), command, SEEN_TIMEOUT_S)


def pattern_of(text: str) -> str:
    pattern = ""
    for line in text.splitlines():
        pattern += r"(?:[^\n]*\n)*?" if line == "…" else re.escape(line).replace("…", r"[^\n]*") + r"\s*\n"
    return pattern.removesuffix(r"\s*\n") if text.splitlines()[-1:] != ["…"] else pattern + r"[^\n]*"


PAGE = ROOT / "docs" / "tutorial.md"
QUICK = """
from oauth_ratelimit.observe import events, statistics

events.WRITE_EVERY_S = statistics.WRITE_EVERY_S = 0.5  # a reader needs ten seconds to get to the next step
"""


def test_tutorial_followed_to_the_letter_prints_what_it_shows(
    tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(QUICK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reader = Reader(
        tmp_path, {"127.0.0.1:8000": f"127.0.0.1:{free_port()}", "mongodb://localhost:27017/oauth": mongo_uri}
    )
    try:
        for block in blocks_of(PAGE):
            reader.follow(block)
    finally:
        reader.stop()
    assert "Traceback" not in (tmp_path / "server.log").read_text()
