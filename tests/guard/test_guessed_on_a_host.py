"""Guesses at passwords that the workers of one server check at the same time."""

import http.client
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from testbed.gunicorn import Gunicorn
from tests.support.helpers import BEFORE_TRAFFIC

APP = "tests.support.guess_app:app"
LIMIT = 10
RIGHT = "right"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MANY = 12  # connections
THREADS = {"worker_class": "gthread", "threads": 4}


class Answer(NamedTuple):
    status: int
    retry_after_s: int


@dataclass(frozen=True)
class Guessed:
    server: Gunicorn
    checked: Path

    def guess(self, password: str, username: str = "alice") -> Answer:
        """Send a password over a new connection."""
        body = urlencode({"grant_type": "password", "client_id": "app", "username": username, "password": password})
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request("POST", "/token", body, FORM)
        response = connection.getresponse()
        response.read()
        connection.close()
        return Answer(response.status, int(response.headers["Retry-After"] or 0))

    def at_once(self, passwords: Sequence[str], **more: str) -> list[Answer]:
        with ThreadPoolExecutor(MANY) as pool:
            return list(pool.map(partial(self.guess, **more), passwords))

    @property
    def checked_count(self) -> int:
        return len(self.checked.read_bytes())


@contextmanager
def running(env: Mapping[str, str], directory: Path, *, limit: int = LIMIT, **options: Any) -> Iterator[Guessed]:
    checked = directory / "checked"
    env = {**env, "GUESS_LIMIT": str(limit), "GUESS_CHECKED": str(checked)}
    with Gunicorn(APP, env=env, config=BEFORE_TRAFFIC, **options) as server:
        yield Guessed(server, checked)


@pytest.fixture(params=["without MongoDB", "with MongoDB"])
def store(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Environment of the server."""
    if request.param == "without MongoDB":
        return {}
    return {"GUESS_MONGO_URI": request.getfixturevalue("mongo_uri")}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 3}, {"workers": 4, **THREADS}], ids=str)
def test_workers_together_check_as_many_wrong_passwords_as_the_limit(
    store: Mapping[str, str], tmp_path: Path, options: Mapping[str, Any]
) -> None:
    """Right ones among them are never counted, and are denied, too, once the limit is used up."""
    with running(store, tmp_path, **options) as guessed:
        answers = guessed.at_once(["wrong"] * 8 * LIMIT)
        while max(answer.retry_after_s for answer in answers) <= 1:  # each was checked, or came at a busy moment
            answers += guessed.at_once(["wrong"] * LIMIT)
        assert LIMIT == guessed.checked_count, guessed.server.log
        assert {400: LIMIT, 429: len(answers) - LIMIT} == Counter(answer.status for answer in answers)
        assert [429] * MANY == [answer.status for answer in guessed.at_once([RIGHT] * MANY)]
        assert LIMIT == guessed.checked_count


@pytest.mark.slow
def test_right_passwords_are_never_denied_or_counted(store: Mapping[str, str], tmp_path: Path) -> None:
    """Also if more workers check them at the same time than the limit allows wrong ones."""
    limit = 3
    with running(store, tmp_path, limit=limit, workers=4) as guessed:
        for _ in range(limit - 1):
            answers = guessed.at_once([RIGHT] * 40)
            assert [Answer(200, 0)] * 40 == answers, guessed.server.log
            assert 400 == guessed.guess("wrong").status
        answers = guessed.at_once([RIGHT] * 40)
        assert [Answer(200, 0)] * 40 == answers, guessed.server.log
        assert [400, 429] == [guessed.guess("wrong").status for _ in range(2)]
        assert [Answer(200, 0)] * 40 == guessed.at_once([RIGHT] * 40, username="bob")
