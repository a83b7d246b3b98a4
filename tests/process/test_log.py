"""The log of an application that knows only the standard library."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from oauth_ratelimit.process.log import get_logger
from tests.docs.blocks import ROOT

LIMITED = """
import json, logging, logging.config, sys
from oauth_ratelimit import OAuthRateLimit
from tests.support.apps import app_limiter_of, make_app, make_server, token_status

app = make_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["1/minute"]}})
OAuthRateLimit(app, make_server(app))
assert [200, 429] == [token_status(app), token_status(app)]
app_limiter_of(app).close()
"""
DICT_CONFIG = """
import logging.config
logging.config.dictConfig({
    "version": 1,
    "formatters": {"plain": {"format": "%(levelname)s in %(module)s: %(message)s"}},
    "handlers": {"wsgi": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "plain"}},
    "root": {"level": "INFO", "handlers": ["wsgi"]},
})
"""
GUNICORN = """
import logging
from gunicorn.config import Config
from gunicorn.glogging import Logger

Logger(Config())  # as gunicorn does at its start
logging.getLogger("oauth_ratelimit").handlers = logging.getLogger("gunicorn.error").handlers
"""
SENTRY = """
import sentry_sdk
from sentry_sdk.transport import Transport

sent = []

class Kept(Transport):
    def capture_envelope(self, envelope):
        sent.append(envelope.get_event())

sentry_sdk.init(dsn="http://key@localhost/1", transport=Kept)
"""
SENTRY_SENT = """
from oauth_ratelimit.process.log import get_logger
get_logger("oauth_ratelimit").error("config_rejected", path="limits.yaml")
print(json.dumps([[each["logentry"]["message"], each["extra"]["oauth_ratelimit"]["path"]] for each in sent]))
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


def printed_by(script: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    return done.stdout, done.stderr


def test_warnings_of_a_plain_application_are_on_standard_error() -> None:
    out, err = printed_by(LIMITED)
    assert "" == out
    assert "request_denied canary=" in err


def test_handlers_of_the_root_write_all_events() -> None:
    """As Flask's documentation configures them, and gunicorn with --log-config."""
    out, _ = printed_by(DICT_CONFIG + LIMITED)
    assert "INFO in start_report: ratelimit_started " in out
    assert "WARNING in events: request_denied canary=" in out


def test_handlers_of_gunicorn_write_events_in_its_form() -> None:
    _, err = printed_by(GUNICORN + LIMITED)
    assert "] [WARNING] request_denied canary=false client_id=some-client " in err


def test_errors_reach_sentry_grouped_by_event() -> None:
    out, _ = printed_by(SENTRY + LIMITED + SENTRY_SENT)
    assert ["config_rejected %s", "limits.yaml"] in json.loads(out)
