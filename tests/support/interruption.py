"""An interruption at any instruction, as by Ctrl-C in the thread that calls ``sync``."""

import linecache
import sys
from types import FrameType
from typing import Any

import oauth_ratelimit

PARTS = tuple(f"{path}/{part}/" for path in oauth_ratelimit.__path__ for part in ("counters", "sync"))


class Interruption:
    """Raises ``KeyboardInterrupt`` before an instruction of the counters or of their synchronisation.

    Not at the end of a ``with`` block: between the last call in it and that of ``__exit__`` Python handles no signal.
    Nor where a lock is acquired without one: whether it was would be known to nobody. Nor in a finaliser, where Python
    ignores it: of objects of another test, too, whenever the collector runs.
    """

    def __init__(self, at: int) -> None:
        self.count = 0  # of instructions so far
        self._at = at

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PARTS) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not _is_spared(frame):
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt
        return self._trace


def _is_spared(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    return line.lstrip().startswith("with ") or ".acquire(" in line
