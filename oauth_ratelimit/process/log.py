"""Logger of structlog, or of the standard library if the application has not configured structlog."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import structlog
from structlog.processors import LogfmtRenderer
from structlog.typing import FilteringBoundLogger

_as_text = LogfmtRenderer(sort_keys=True)


class _Log:
    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._plain = logging.getLogger(name)

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **facts: Any) -> None:
            with suppress(Exception):  # processors and handlers are the application's; an entry may be lost, no request
                if structlog.is_configured():
                    getattr(self._structured, level)(event, **facts)
                else:
                    # The event is the constant part, by which Sentry groups.
                    extra = {"oauth_ratelimit": {"event": event, **facts}}
                    getattr(self._plain, level)(f"{event} %s", _as_text(None, "", facts), extra=extra, stacklevel=2)

        return write


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a name. What it cannot write is lost, and it raises nothing.

    A record of the standard library has the event and its values as text, and as a mapping ``record.oauth_ratelimit``.
    """
    return cast(FilteringBoundLogger, _Log(name))
