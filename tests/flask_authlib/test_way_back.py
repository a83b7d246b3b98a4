"""The table of emergencies in docs/rollout.md: whatever is broken, one line of the file ends all denials in seconds."""

import os
import signal
import threading
import time
from contextlib import closing, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.background import live_settings
from oauth_ratelimit.config import Settings, loader
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from testbed.clock import wait_until
from testbed.mongod import Mongod
from tests.support.apps import app_limiter_of, protected_app, token_status
from tests.support.faults import FaultyProxy

pytestmark = pytest.mark.slow

ENFORCED = """
mode: enforce
limits: {{client: [{{limit: 1, window: 1h}}]}}
sync: {{interval: 100ms}}
store: {{uri: "{uri}", timeout: 500ms}}
"""
ALONE = "mode: enforce\nlimits: {client: [{limit: 1, window: 1h}]}\nsync: {interval: 100ms}\n"
FILES = {
    "valid": (ENFORCED, ENFORCED.replace("mode: enforce", "mode: off")),
    "invalid": (f"{ENFORCED}broken:\n", f"{ENFORCED}broken:\n".replace("mode: enforce", "mode: off")),
    "unparsable": (f"{ENFORCED}broken: [\n", "mode: off\n"),
}
"""The file in the emergency, and what the operator makes of it."""


@pytest.mark.usefixtures("quick_ending")
@pytest.mark.parametrize(
    ("state", "override"),
    [*product(("up", "wiped", "restored"), (None, Mode.ENFORCE)), ("down", Mode.ENFORCE), ("hanging", None)],
)
def test_mode_off_in_the_file_ends_all_denials(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, override: Mode | None
) -> None:
    path = tmp_path / "ratelimit.yaml"
    may_stop = state in ("down", "hanging")
    with Mongod() if may_stop else nullcontext(request.getfixturevalue("mongod")) as server:
        for name, (broken, mended) in FILES.items():
            uri = f"mongodb://{server.address}/way_back_{name}_{state}_{override}?directConnection=true"
            path.write_text(ENFORCED.format(uri=uri))
            with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app:
                wait_until(lambda app=app: 429 == token_status(app), "the limit is enforced")  # type: ignore[misc]
                if name == "valid" or not may_stop:
                    _change_database(uri, state, override)
                if state == "down":
                    server.kill()
                elif state == "hanging" and server.pid is not None:
                    os.kill(server.pid, signal.SIGSTOP)  # it takes connections and never answers
                path.write_text(broken.format(uri=uri))
                limiter = app_limiter_of(app)
                if name != "valid":
                    wait_until(lambda limiter=limiter: limiter.health().rejection, "it is rejected")  # type: ignore[misc]
                wait_until(lambda app=app: 429 == token_status(app), "the last valid file applies")  # type: ignore[misc]

                path.write_text(mended.format(uri=uri))
                wait_until(lambda app=app: 200 == token_status(app), "nobody is denied")  # type: ignore[misc]
            with monkeypatch.context() as patch:
                patch.setenv("OAUTH_RATELIMIT_MODE", "off")
                path.write_text(broken.format(uri=uri))
                with protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
                    assert [200] * 3 == [token_status(app) for _ in range(3)]


def test_mode_off_in_the_file_ends_all_denials_while_a_former_edit_is_still_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a file with many clients, by a worker with many requests."""
    path, is_reading, may_go_on = tmp_path / "ratelimit.yaml", threading.Event(), threading.Event()
    parse = loader.parse_file

    def parse_slowly(*content: Any, **options: Any) -> Settings:
        is_reading.set()
        may_go_on.wait(600)
        return parse(*content, **options)

    path.write_text(ALONE)
    with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app:
        wait_until(lambda: 429 == token_status(app), "the limit is enforced")
        monkeypatch.setattr(loader, "parse_file", parse_slowly)
        path.write_text(f"{ALONE}max_keys: 1000\n")
        assert is_reading.wait(60)
        path.write_text(ALONE.replace("enforce", "off"))
        wait_until(lambda: 200 == token_status(app), "nobody is denied")
        may_go_on.set()


@pytest.mark.parametrize("content", ["mode: off\n", "", "mode: enforce\nstore: {uri: localhost}\n"])
def test_worker_that_starts_in_the_emergency_shares_and_obeys_overrides_afterwards(
    tmp_path: Path, mongo_uri: str, content: str
) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(content)
    with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app, capture_logs() as events:
        limiter = app_limiter_of(app)
        assert (200, False) == (token_status(app), limiter.is_shared)
        path.write_text(ENFORCED.format(uri=mongo_uri))

        wait_until(lambda: 429 == token_status(app), "the limit is enforced")
        assert limiter.is_shared
        _change_database(mongo_uri, "up", Mode.DRY_RUN)
        wait_until(lambda: 200 == token_status(app), "nobody is denied")
        worker = limiter._worker
        path.write_text("mode: off\n")
        wait_until(lambda: limiter.live.base.store.uri is None, "all of the file is read")
        assert limiter.settings.policies.mode is Mode.OFF
        path.write_text(ENFORCED.format(uri=mongo_uri).replace("100ms", "0.1s"))
        wait_until(lambda: limiter.settings.policies.mode is Mode.DRY_RUN, "it is on again")
        assert 200 == token_status(app)
        assert worker is limiter._worker  # which may have counts that MongoDB lacks
    assert "restart_needed" not in [event["event"] for event in events]
    with closing(Connection(mongo_uri)) as connection:
        assert 1 == connection.database["ratelimits"].count_documents({})


@pytest.mark.parametrize("override", [Mode.DRY_RUN, Mode.OFF, None])
def test_worker_that_starts_denies_nobody_while_a_slow_mongodb_does_not_tell_the_overrides(
    tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch, override: Mode | None
) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(ENFORCED.format(uri=mongo_uri))
    _change_database(mongo_uri, "up", override)
    monkeypatch.setattr(live_settings, "GRACE_S", 0.0)
    may_read, revision = threading.Event(), OverrideStore.revision
    monkeypatch.setattr(OverrideStore, "revision", lambda store: may_read.wait(60) and revision(store))
    with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app, capture_logs() as events:

        def is_changed() -> bool:  # which is logged after it took effect
            return "mode_changed" in [event["event"] for event in events]

        found = [token_status(app) for _ in range(4)]
        may_read.set()
        if override is None:
            wait_until(lambda: 429 == token_status(app), "the limit is enforced")
            assert not is_changed()
        else:
            wait_until(is_changed, "the override applies")
            found += [token_status(app) for _ in range(4)]
    assert {200} == set(found)


@pytest.mark.usefixtures("quick_ending")
def test_override_applies_while_each_answer_of_mongodb_takes_most_of_its_timeout(
    tmp_path: Path, mongo_uri: str
) -> None:
    path = tmp_path / "ratelimit.yaml"
    with FaultyProxy(mongo_uri) as proxy:
        path.write_text(ENFORCED.format(uri=proxy.uri))
        with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app:
            for mode, status in ((Mode.OFF, 200), (Mode.ENFORCE, 429)):
                _change_database(mongo_uri, "up", mode)
                wait_until(lambda status=status: status == token_status(app), "it applies")  # type: ignore[misc]
            proxy.delay_replies(0.35)
            _change_database(mongo_uri, "up", Mode.DRY_RUN)
            wait_until(lambda: 200 == token_status(app), "nobody is denied")
            proxy.delay_replies(0.0)


def test_first_requests_of_a_worker_are_limited_before_it_knows_the_overrides(tmp_path: Path, mongo_uri: str) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(ENFORCED.format(uri=mongo_uri))
    with protected_app(OAUTH_RATELIMIT_CONFIG=str(path), clock=time.time) as app:
        assert [200, 429] == [token_status(app) for _ in range(2)]


def _change_database(uri: str, state: str, override: Mode | None) -> None:
    connection = Connection(uri)
    overrides: Any = connection.database["ratelimit_overrides"]
    if override is not None:
        OverrideStore(connection).put(Override(Target(OverrideKind.MODE, None), "ann", "", 0.0, mode=override))
    kept = list(overrides.find())
    if state in ("wiped", "restored"):
        connection.client.drop_database(connection.database.name)
    if state == "restored" and kept:
        overrides.insert_many(kept)
    connection.close()
