"""A replica set on this machine, whose members can be killed."""

from testbed.child import Server
from testbed.clock import wait_until
from testbed.mongod import Mongod
from testbed.mongod_program import MongodUnavailable

_SET_NAME = "oauth_ratelimit"


class ReplicaSet(Server):
    """Three servers with the same data. ``with`` starts them, and its end removes the data.

    Args:
        allow_failpoints: Enable the servers' test commands, such as ``configureFailPoint``.
    """

    def __init__(self, *, allow_failpoints: bool = False) -> None:
        self._is_initiated = False
        arguments = [f"--replSet={_SET_NAME}", "--oplogSize=64"]
        self.members = tuple(Mongod(arguments, allow_failpoints=allow_failpoints) for _ in range(3))

    @property
    def uri(self) -> str:
        """URI with all members, so that a client follows the primary."""
        return f"mongodb://{','.join(member.address for member in self.members)}/?replicaSet={_SET_NAME}"

    def primary(self) -> Mongod:
        """Return the member that accepts writes, after an election if there is none now."""
        return wait_until(self._primary_now, "the replica set elects a primary", error=MongodUnavailable)

    def kill_primary(self) -> Mongod:
        """Kill the primary (SIGKILL) and return it without waiting for an election."""
        primary = self.primary()
        primary.kill()
        return primary

    def restart(self, member: Mongod) -> None:
        """Start a member that was killed or stopped, and wait until it has joined."""
        member.start()
        wait_until(lambda: _has_joined(member), f"{member.address} joins the replica set", error=MongodUnavailable)

    def start_and_wait(self) -> None:
        """See ``heal``."""
        self.heal()

    def heal(self) -> None:
        """Start the members that do not run, and wait until all follow a primary."""
        for member in self.members:
            member.start()
        if not self._is_initiated:
            self._initiate()
        self.primary()
        wait_until(lambda: all(map(_has_joined, self.members)), "all join the replica set", error=MongodUnavailable)

    def close(self) -> None:
        """Kill all members and remove their data. Idempotent."""
        for member in self.members:
            member.close()

    def _initiate(self) -> None:
        # The default heartbeat, 2 s, is longer than this election timeout: a healthy primary would be voted out.
        settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 250}
        members = [{"_id": number, "host": member.address} for number, member in enumerate(self.members)]
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", {"_id": _SET_NAME, "members": members, "settings": settings})
        self._is_initiated = True

    def _primary_now(self) -> Mongod | None:
        return next((member for member in self.members if member.hello().get("isWritablePrimary")), None)


def _has_joined(member: Mongod) -> bool:
    hello = member.hello()
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))
