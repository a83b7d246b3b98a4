"""Rule for errors of this package: a token request goes on without us."""

import traceback
from types import TracebackType

from oauth_ratelimit.process.throttled_log import ThrottledLog


class FailOpen:
    """Context manager that logs an unexpected error and lets the request go on.

    What decides, guards and reports runs inside one. Hooks around it only pass values; errors of the application's
    functions (``username_of``, ``caller_of``) are raised. A denial is raised outside, so that it reaches the client.

    Args:
        log: Logger of the errors.
        event: Name of the log event.
    """

    __slots__ = ("_event", "_log")

    def __init__(self, log: ThrottledLog, event: str) -> None:
        self._log = log
        self._event = event

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if exc is None or not isinstance(exc, Exception):
            return False
        # As text, because structlog may render local variables with a traceback, the client's secret included.
        self._log.error(self._event, error=repr(exc), traceback="".join(traceback.format_exception(exc)))
        return True
