"""Logger of structlog if the application has configured it, else of the standard library."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

left_out: ContextVar[str | None] = ContextVar("left_out", default=None)  # an event that is reported in another way


class _Log:
    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = logging.getLogger(name)

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **facts: Any) -> None:
            if event == left_out.get():
                return
            with suppress(Exception):  # processors and handlers are the application's; an entry may be lost, no request
                structlog = _used_structlog()
                if structlog is not None and structlog.is_configured():
                    getattr(structlog.get_logger(self._name), level)(event, **facts)
                else:
                    # The event is the constant part, by which Sentry groups.
                    extra = {"oauth_ratelimit": {"event": event, **facts}}
                    getattr(self._plain, level)(f"{event} %s", _as_text(facts), extra=extra, stacklevel=2)

        return write


def get_logger(name: str) -> "FilteringBoundLogger":
    """Return the logger of a name. What it cannot write is lost, and it raises nothing.

    A record of the standard library has the event and its values as text, and as a mapping ``record.oauth_ratelimit``.
    """
    return cast("FilteringBoundLogger", _Log(name))


def bound_values() -> Mapping[str, Any]:
    """Return what the application has bound to structlog's context."""
    structlog = _used_structlog()
    return structlog.contextvars.get_contextvars() if structlog else {}


def _used_structlog() -> Any:
    """Return structlog if the application uses it: whoever has configured it has imported it. It takes 20 ms."""
    return sys.modules.get("structlog")


def _as_text(facts: Mapping[str, Any]) -> str:
    """Return ``name=value`` for each fact, on one line as logfmt has it: a value with other characters is quoted."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in sorted(facts.items()))


def _quoted(value: object) -> str:
    text = "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
    is_plain = text.isprintable() and not set(text) & set(' ="\\')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
