"""Requests of one client in the last hour, and the verdict on them."""

from dataclasses import dataclass

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import ClientPolicies
from oauth_ratelimit.core.statistics import ClientSum, Peak, Source, Tally
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, policy_text
from oauth_ratelimit.operations.serialize import Record

HOUR_S = 3600
TTL_S = 8.0
NEAR = 0.8  # share of a limit
MAX_WORST = 5


@dataclass(frozen=True, slots=True)
class ClientUse:
    """Requests of one client in the last hour.

    Args:
        total: Their sum.
    """

    total: ClientSum

    @property
    def has_own_requests(self) -> bool:
        """True if there were requests without a user."""
        return self.total.tally("client").offered > 0

    @property
    def main_source(self) -> Source | None:
        """The source of most requests over a limit, else of most requests; None without any."""
        tallies = {source: tally for source, tally in self.total.tallies.items() if source.is_token and tally.offered}
        return max(tallies, key=lambda source: (tallies[source].over, tallies[source].offered), default=None)

    @property
    def highest_peak(self) -> tuple[str, Peak] | None:
        """The limit with the highest use, None if none is recorded."""
        return max(self.total.peaks.items(), key=lambda item: item[1].share, default=None)

    def worst_users(self) -> list[Record]:
        """Return the users with most requests over a limit, then those with most requests."""
        users = sorted(
            self.total.users.values(), key=lambda user: (-(user.denied + user.would_deny), -user.offered, user.username)
        )
        return [
            {"username": user.username, "offered": user.offered, "over": user.denied + user.would_deny}
            for user in users[:MAX_WORST]
        ]

    def worst_user(self) -> str | None:
        """Return the user to explain first, if the main source has users."""
        source = self.main_source
        users = self.worst_users()
        return str(users[0]["username"]) if users and source is not None and source.kind == "user" else None


def client_use(cache: ReadCache, client_id: str) -> ClientUse:
    """Return the requests of a client in the last hour."""

    def read(context: OperatorContext) -> ClientUse:
        total = ClientSum(client_id)
        since_s, stored = context.now_s - HOUR_S, storable_name(client_id)
        for minute in context.stores.statistics.minutes(since_s, context.now_s, stored, parts=("by", "peaks", "users")):
            total.add(minute)
        return ClientUse(total)

    return cache.read_cached(("use", client_id), read, ttl_s=TTL_S)


def verdict_on_client(
    use: ClientUse, matched: ClientPolicies, *, nearest: LimitUsage | None, suggestions: list[str] | None
) -> Record:
    """Return the verdict on a client's last hour, and on its present use if that is over a limit.

    Args:
        use: Its requests.
        matched: Its policies.
        nearest: Its highest present use of a limit.
        suggestions: Ids like this one if it is unknown, else None.
    """
    tally = use.total.tally()
    policy, peak = use.highest_peak or (None, None)
    share = peak and peak.share
    highest = (
        f" Highest use: {percent(peak.share)} of {policy}: {rate_text(peak.limit, peak.window_s)}." if peak else ""
    )
    if suggestions is not None:
        kind, text = "unknown", "Unknown: no counters, statistics or configuration for this id."
    elif matched.trusted:
        kind, text = "trusted", f"Trusted: never denied. {counted(tally.offered, 'request')} in the last hour."
    elif tally.over:
        part, counts = percent(tally.over / tally.offered), f"{tally.over:,} of {tally.offered:,}"
        kind = "over"
        text = f"Over its limit: {part} of the requests of the last hour {_outcome(tally)} ({counts}).{highest}"
    elif nearest is not None and nearest.retry_after_s:
        policy, share = nearest.policy.name, nearest.used_ratio
        kind, position = "over", "Over" if share > 1 else "At"
        text = f"{position} its limit now: {nearest.estimate:.0f} hits; allowed: {policy_text(nearest.policy)}."
    elif not tally.offered:
        kind, text = "idle", "No requests are recorded in the last hour."
    elif peak is not None and peak.share >= NEAR:
        kind, text = "near", f"Near its limit.{highest}"
    else:
        kind, text = "ok", f"Within its limits.{highest}"
    return {
        "kind": kind,
        "text": text,
        "highest_use": share,
        "policy": policy,
        "worst_users": use.worst_users(),
        "suggestions": suggestions or [],
    }


def _outcome(tally: Tally) -> str:
    if not tally.would_deny:
        return "were denied"
    return "were denied, or would be in a dry run" if tally.denied else "would be denied"


def percent(share: float) -> str:
    """Return a share such as ``13 %``."""
    return f"{share * 100:,.0f} %" if share >= 0.01 else "less than 1 %"
