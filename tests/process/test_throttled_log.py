"""A lasting problem is logged once per interval, with the number of entries left out."""

import structlog
from structlog.testing import capture_logs

from oauth_ratelimit.process.throttled_log import MAX_KEYS, ThrottledLog
from testbed.clock import Clock


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
