"""The end of an application: it leaves no thread, connection or file in its process."""

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from flask import Flask

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import wait_until
from tests.support.apps import ask, make_app, make_server
from tests.support.sites import config


def used_app(extension: OAuthRateLimit, settings: dict[str, Any]) -> Flask:
    app = make_app(OAUTH_RATELIMIT_CONFIG=settings)
    server = make_server(app)
    server.application = app  # as an application's own server may know it
    extension.init_app(app, server)
    assert 200 == ask(app).status_code
    return app


def held() -> tuple[int, int]:
    """Return the numbers of this process's threads and open files."""
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])


def shared(request: pytest.FixtureRequest) -> dict[str, Any]:
    # More than all of them ask for: a start may know what others have counted.
    return config(limit=1000, store={"uri": request.getfixturevalue("mongo_uri"), "collection": "closing"})


@pytest.fixture(params=["alone", pytest.param("with MongoDB", marks=pytest.mark.mongo)])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return config() if request.param == "alone" else shared(request)


def test_closed_applications_leave_nothing(settings: dict[str, Any]) -> None:
    extension = OAuthRateLimit()
    extension.close(used_app(extension, settings))  # what the first one loads
    before = held()
    for _ in range(50 if "store" not in settings else 10):
        extension.close(used_app(extension, settings))
    extension.close(make_app())  # one that is not protected
    wait_until(lambda: held() <= before, "they end")


def test_dropped_application_ends_by_itself(settings: dict[str, Any]) -> None:
    """Whatever its functions refer to."""
    before = held()
    apps: list[Any] = []
    for _ in range(5):
        extension = OAuthRateLimit(on_denied=lambda *_, **__: apps.append(apps), on_near_limit=apps.index)
        apps.append(ref(used_app(extension, settings)))
    del extension

    def are_forgotten() -> bool:
        gc.collect()
        return [app() for app in apps] == [None] * 5

    wait_until(are_forgotten, "they are forgotten")  # a thread of one may be looking at it
    wait_until(lambda: held() <= before, "they end")


def test_application_that_served_nobody_is_closed_and_may_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text("limits: {client: [1/minute]}\nmode: enforce\n")
    app = make_app(OAUTH_RATELIMIT_CONFIG=str(path))
    extension = OAuthRateLimit(app, make_server(app))
    before = held()
    for _ in range(2):
        extension.close(app)
        wait_until(lambda: held() <= before, "they end")
        assert 200 == ask(app).status_code
    extension.close(app)


ENDING = """
import os, sys
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background.worker import Worker
from tests.support.apps import make_app, make_server, token_status

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
path, is_broken_off = sys.argv[1:]
app = make_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "host": path, "limits": {"client": ["1/minute"]}})
OAuthRateLimit(app, make_server(app))
if is_broken_off == "True":
    start, Worker.start = Worker.start, lambda _: sys.exit("as gevent ends a request")
    try:
        token_status(app)
    except SystemExit:
        Worker.start = start
print([token_status(app) for _ in range(2)], end="")
"""


@pytest.mark.parametrize("is_broken_off", [False, True], ids=["as usual", "broken off"])
def test_last_flush_at_the_end_of_a_process_has_what_the_start_has_opened(tmp_path: Path, is_broken_off: bool) -> None:
    """The file of the host and its lock; a start that a request was ended in opens them later."""
    command = [sys.executable, "-c", ENDING, str(tmp_path / "host.db"), str(is_broken_off)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (0, "[200, 429]") == (done.returncode, done.stdout), done.stderr
    assert "last_flush_failed" not in done.stderr
