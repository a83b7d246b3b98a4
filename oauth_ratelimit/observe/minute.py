"""What one process counts of one client in one minute."""

from heapq import nlargest

from oauth_ratelimit.core.decision import Decision, Outcome, outcome_of
from oauth_ratelimit.core.hyperloglog import register_of
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import COUNTS, ClientMinute, Kind, Peak, Source, Tally, UserLoad

FOLLOWED = 10  # times as many users are followed as are told of in the end, so that the heaviest are among them


class OpenMinute:
    """The counts of a client, growing. Not thread-safe.

    Args:
        client_id: The client.
        user_room: How many users are told of in the end.

    Attributes:
        count: Requests so far.
        written_count: Requests in what was written last.
        users: Of each user all requests, those denied, and those that would have been; users that were lightest when
            there were too many are left out.
    """

    __slots__ = (
        "_burst",
        "_client_cells",
        "_peaks",
        "_registers",
        "_second",
        "_second_count",
        "_user_cells",
        "client_id",
        "count",
        "user_room",
        "users",
        "written_count",
    )

    def __init__(self, client_id: str, user_room: int) -> None:
        self.client_id = client_id
        self.user_room = user_room
        self.count = 0
        self.written_count = 0
        self.users: dict[str, list[int]] = {}
        self._client_cells: dict[str, dict[str, int]] = {}
        self._user_cells: dict[str, dict[str, int]] = {}
        self._peaks: dict[str, Peak] = {}
        self._registers: dict[int, int] = {}
        self._second = 0
        self._second_count = 0
        self._burst = 0

    def note(self, decision: Decision, grant: str, *, username: str | None, place: str | None, now_s: float) -> None:
        """Count one request.

        Args:
            decision: What was decided.
            grant: See ``Source``.
            username: For whom, None for nobody.
            place: What stands before the names of policies, None at the token endpoint.
            now_s: The time, seconds since the epoch.
        """
        self.count += 1
        outcome = outcome_of(decision)
        cells = self._client_cells if username is None else self._user_cells
        cell = cells.get(grant)
        if cell is None:
            cell = cells[grant] = dict.fromkeys(COUNTS, 0)
        cell[outcome] += 1
        if decision.is_repeat and outcome == "denied":
            cell["retries"] += 1
        if place is not None:
            self._note_peaks(decision, f"{place}/")
            return
        if username is not None:
            self._note_user(username, outcome)
        second = int(now_s)
        self._second_count = self._second_count + 1 if second == self._second else 1
        self._second = second
        if self._second_count > self._burst:
            self._burst = self._second_count
        self._note_peaks(decision, "")

    def _note_user(self, username: str, outcome: Outcome) -> None:
        user = self.users.get(username)
        if user is None:
            user = self._follow(username)
        user[0] += 1
        if outcome == "denied":
            user[1] += 1
        elif outcome == "would_deny":
            user[2] += 1

    def _follow(self, username: str) -> list[int]:
        """
        Return the counts of a user that has none under this name yet, or whose name is too long to be kept as it is.
        """
        name = storable_name(username)
        user = self.users.get(name)
        if user is not None:
            return user
        if len(self.users) >= self.user_room * FOLLOWED:
            self._drop_light()
        user = self.users[name] = [0, 0, 0]
        return user

    def _drop_light(self) -> None:
        """Forget the lighter half of the users, but for that they were there."""
        self._note_registers(self._registers)
        self.users = dict(nlargest(len(self.users) // 2, self.users.items(), key=_weight))

    def _note_peaks(self, decision: Decision, place: str) -> None:
        for policy, used in decision.used_hits():
            name = place + policy.name
            known = self._peaks.get(name)
            share = used / policy.limit
            if known is None or share > known.share:
                self._peaks[name] = Peak(share, used, policy.limit, policy.window.window_s)

    def minute(self, minute_s: int, *, is_complete: bool) -> ClientMinute:
        """Return the counts as they are now.

        Args:
            minute_s: When the minute began, seconds since the epoch.
            is_complete: Whether users are told of.
        """
        kinds: tuple[tuple[Kind, dict[str, dict[str, int]]], ...] = (
            ("client", self._client_cells),
            ("user", self._user_cells),
        )
        return ClientMinute(
            client_id=self.client_id,
            minute_s=minute_s,
            tallies={Source(kind, grant): Tally(**cell) for kind, cells in kinds for grant, cell in cells.items()},
            peaks=dict(self._peaks),
            users=self._heaviest() if is_complete else (),
            registers=self._all_registers() if is_complete else {},
            burst=self._burst,
        )

    def _heaviest(self) -> tuple[UserLoad, ...]:
        heaviest = nlargest(self.user_room, self.users.items(), key=_weight)
        return tuple(UserLoad(name, *counts) for name, counts in heaviest)

    def _all_registers(self) -> dict[int, int]:
        registers = dict(self._registers)
        self._note_registers(registers)
        return registers

    def _note_registers(self, registers: dict[int, int]) -> None:
        for register, rank in map(register_of, self.users):
            if rank > registers.get(register, 0):
                registers[register] = rank


def _weight(item: tuple[str, list[int]]) -> int:
    return item[1][0]
