"""The log of an application that knows only the standard library."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from oauth_ratelimit.process.log import get_logger
from tests.docs.blocks import ROOT

LIMITED = """
from oauth_ratelimit import OAuthRateLimit
from tests.support.apps import app_limiter_of, make_app, make_server, token_status

app = make_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["1/minute"]}})
OAuthRateLimit(app, make_server(app))
assert [200, 429] == [token_status(app), token_status(app)]
app_limiter_of(app).close()
"""


@pytest.fixture
def unconfigured() -> Iterator[None]:
    former = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**former)


@pytest.mark.usefixtures("unconfigured")
def test_event_is_a_record_with_its_values_as_text_and_mapping(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("oauth_ratelimit.sync").warning("flush_failed", name="100 % mine\nsecond line", module=7)

    (record,) = caplog.records
    assert ("oauth_ratelimit.sync", "WARNING", "test_log.py") == (record.name, record.levelname, record.filename)
    assert "flush_failed %s" == record.msg, "what Sentry groups by"
    assert r'flush_failed module=7 name="100 % mine\nsecond line"' == record.getMessage()
    assert {"event": "flush_failed", "name": "100 % mine\nsecond line", "module": 7} == record.oauth_ratelimit


@pytest.mark.usefixtures("unconfigured")
def test_handler_that_fails_does_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(record: logging.LogRecord) -> None:
        raise OSError("the disk is full")

    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", fail)
    monkeypatch.setattr(logging.getLogger("oauth_ratelimit"), "handlers", [handler])
    get_logger("oauth_ratelimit").warning("flush_failed")


def test_warnings_of_a_plain_application_are_on_standard_error() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stdout), done.stderr
    assert "request_denied canary=" in done.stderr
