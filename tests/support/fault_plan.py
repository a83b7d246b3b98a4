"""Which request a proxy breaks next, and how."""

import random
from collections.abc import Collection, Sequence

LOSE_REPLY = "lost_reply"
CUT = "cut"
HOLD = "held"


class FaultPlan:
    """Faults that were ordered for certain commands, and chance for the rest. Not thread-safe."""

    def __init__(self) -> None:
        self._ordered: list[tuple[str, str]] = []  # command, fault
        self._rate = 0.0
        self._rng = random.Random(0)
        self._kinds: Sequence[str] = ()
        self._commands: Collection[str] = ()

    def order(self, fault: str, *, command: str, count: int) -> None:
        """Break the next requests with this command."""
        self._ordered += [(command, fault)] * count

    def leave_to_chance(
        self, rate: float, rng: random.Random, *, kinds: Sequence[str], commands: Collection[str]
    ) -> None:
        """Break this share of the requests with one of these commands."""
        self._rate, self._rng, self._kinds, self._commands = rate, rng, kinds, commands

    def next_fault(self, command: str) -> str | None:
        """Return how to break this request, None to let it pass."""
        for ordered_command, fault in self._ordered:
            if ordered_command == command:
                self._ordered.remove((command, fault))
                return fault
        if command in self._commands and self._rng.random() < self._rate:
            return self._rng.choice(self._kinds)
        return None
