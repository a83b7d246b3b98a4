"""The log of an application that knows only the standard library."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import structlog
from structlog.testing import capture_logs

from oauth_ratelimit.process.log import MAX_KEYS, ThrottledLog, get_logger
from testbed.clock import Clock
from tests.docs.blocks import ROOT

LIMITED = """
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
    "handlers": {"all": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"level": "INFO", "handlers": ["all"]},
})
"""
GUNICORN = """
import logging
from gunicorn.config import Config
from gunicorn.glogging import Logger

Logger(Config())  # as gunicorn does at its start
logging.basicConfig(level=logging.INFO, format="again: %(message)s")  # as the application may have it
logger = logging.getLogger("oauth_ratelimit")
logger.setLevel(logging.INFO)
logger.handlers = logging.getLogger("gunicorn.error").handlers
logger.propagate = False
"""
SENTRY = """
import sentry_sdk, sys
from sentry_sdk.transport import Transport
from oauth_ratelimit.process.log import get_logger

class Printing(Transport):
    def capture_envelope(self, envelope):
        sent = envelope.get_event()
        path = sent["extra"]["oauth_ratelimit"]["path"]
        print("sent to Sentry:", sent["logentry"]["message"], path, file=sys.stderr)

sentry_sdk.init(dsn="http://key@localhost/1", transport=Printing)
get_logger("oauth_ratelimit").error("config_rejected", path="limits.yaml")
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
@pytest.mark.parametrize("character", ["\n", "\x85", "\u2028", "\x9b", "\x7f", "\u202e", "\udcff"], ids=ascii)
def test_event_is_one_line_whatever_an_exception_says(caplog: pytest.LogCaptureFixture, character: str) -> None:
    """Its text may be a stranger's, and hold lines of its own, controls of a terminal, or no character at all."""
    text = f"Traceback:\n\tno user {character}31m Zoë"
    get_logger("oauth_ratelimit").error("check_failed", traceback=text)

    message = caplog.records[0].getMessage()
    assert (True, text) == (message.isprintable(), json.loads(message.partition("=")[2]))
    assert ("Zoë" in message) == (character == "\n"), "what is only text is as it was"


@pytest.mark.usefixtures("unconfigured")
def test_handler_that_fails_does_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Mock(level=0, handle=Mock(side_effect=OSError("the disk is full")))
    monkeypatch.setattr(logging.getLogger("oauth_ratelimit"), "handlers", [handler])
    get_logger("oauth_ratelimit").warning("flush_failed")
    assert 1 == handler.handle.call_count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "printed"),
    [
        ("", "request_denied canary="),
        (DICT_CONFIG, "WARNING in events: request_denied canary="),
        (GUNICORN, "] [WARNING] request_denied canary=false client_id=some-client "),
        (SENTRY, "sent to Sentry: config_rejected %s limits.yaml"),
    ],
    ids=["plain", "dictConfig, as in Flask's documentation and with gunicorn's --log-config", "gunicorn's", "Sentry"],
)
def test_events_reach_the_handlers_of_an_application(setup: str, printed: str) -> None:
    script = setup + LIMITED
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stdout), done.stderr
    assert printed in done.stderr
    assert "again" not in done.stderr


def test_same_event_is_logged_once_per_interval_with_the_number_left_out() -> None:
    """A clock that is set back does not silence the log."""
    clock = Clock(0.0)
    log = ThrottledLog(structlog.get_logger(), 60.0, clock)
    with capture_logs() as logged:
        for now_s in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0, 300.0, 10.0):
            clock.now_s = now_s
            log.error("flush_failed", at_s=now_s)
    assert [(entry["at_s"], entry.get("suppressed_count")) for entry in logged] == [
        (0.0, None),
        (60.0, 2),
        (120.0, 1),
        (300.0, None),
        (10.0, None),
    ]


def test_events_and_keys_do_not_silence_each_other() -> None:
    log = ThrottledLog(structlog.get_logger(), 60.0)
    with capture_logs() as logged:
        for _ in range(2):
            log.error("document_damaged", key="a", client_id="a")
            log.error("document_damaged", key="b", client_id="b")
            log.warning("document_damaged_again", key="a", client_id="a")
    assert logged == [
        {"event": "document_damaged", "client_id": "a", "log_level": "error"},
        {"event": "document_damaged", "client_id": "b", "log_level": "error"},
        {"event": "document_damaged_again", "client_id": "a", "log_level": "warning"},
    ]


def test_keys_beyond_the_bound_share_one_entry_per_interval() -> None:
    clock = Clock(0.0)
    log = ThrottledLog(structlog.get_logger(), 60.0, clock)
    with capture_logs() as logged:
        for number in range(2 * MAX_KEYS):
            log.error("document_damaged", key=str(number))
        assert len(logged) == MAX_KEYS + 1
        clock.now_s = 60.0
        log.error("document_damaged", key="another")
    assert len(logged) == MAX_KEYS + 2
