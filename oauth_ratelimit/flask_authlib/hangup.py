"""
SIGHUP: read the configuration file again, now.

Only for processes that ask for it. A library that takes a signal by itself would keep a development server alive whose
terminal was closed, and under gunicorn nothing is missing: its master takes the signal and starts new workers, which
read the file as they start.
"""

import signal
import threading
from types import FrameType

import structlog

from oauth_ratelimit.config import ConfigSource, Settings

log = structlog.get_logger(__name__)


class WatchedFile:
    """
    A configuration file that is looked at now and then, and read without looking when somebody asks.

    Args:
        source: The file. Only ``poll`` uses it.
    """

    def __init__(self, source: ConfigSource) -> None:
        self._source = source
        self._is_asked = False

    def ask(self) -> None:
        """
        Have the next ``poll`` read the file even if it looks unchanged. Does nothing else, as in a signal handler.
        """
        self._is_asked = True

    def poll(self) -> Settings | None:
        """
        Return new settings, None if there are none.
        """
        if self._is_asked:
            self._is_asked = False
            log.info("reload_requested", path=self._source.path)
            return self._source.reload()
        return self._source.poll()


def ask_on_hangup(file: WatchedFile) -> bool:
    """
    Have SIGHUP ask for the file, and whoever handled the signal before handle it, too.

    Returns:
        Whether that is possible: not outside of the main thread, not where there is no such signal, and not where
        the server has taken it below Python, as uWSGI does.
    """
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    former = signal.getsignal(number)
    if former is None:
        return False

    def handle(signal_number: int, frame: FrameType | None) -> None:
        file.ask()
        if callable(former):
            former(signal_number, frame)

    signal.signal(number, handle)
    return True
