"""Requests of one client in the last hour, and the verdict on them."""

from dataclasses import dataclass

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import ClientPolicies
from oauth_ratelimit.core.statistics import ClientSum, Peak, Source, Tally
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.serialize import Record

HOUR_S = 3600
TTL_S = 8.0
NEAR = 0.8  # share of a limit
MAX_WORST = 5
MAX_NAMED = 2  # users in the text


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


def verdict_on_client(use: ClientUse, matched: ClientPolicies, *, suggestions: list[str] | None) -> Record:
    """Return the verdict on a client's last hour.

    Args:
        use: Its requests.
        matched: Its policies.
        suggestions: Ids like this one if it is unknown, else None.
    """
    tally = use.total.tally()
    peak = use.highest_peak
    kind, text = _kind_and_text(use, tally, matched, suggestions)
    return {
        "kind": kind,
        "text": text,
        "share": tally.over / tally.offered if tally.offered else None,
        "offered": tally.offered,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
        "highest_use": peak and peak[1].share,
        "policy": peak and peak[0],
        "grants": [
            {"kind": source.kind, "grant": source.grant, "offered": part.offered, "over": part.over}
            for source, part in sorted(use.total.tallies.items(), key=lambda item: -item[1].offered)
        ],
        "worst_users": use.worst_users(),
        "suggestions": suggestions or [],
    }


def _kind_and_text(
    use: ClientUse, tally: Tally, matched: ClientPolicies, suggestions: list[str] | None
) -> tuple[str, str]:
    if suggestions is not None:
        return "unknown", "unknown: no counters, statistics or configuration for this id"
    if matched.trusted:
        return "trusted", f"trusted: never denied; {counted(tally.offered, 'request')} in the last hour"
    if not tally.offered:
        return "ok", "no requests in the last hour"
    peak = use.highest_peak
    of_limit = f"; {_peak_text(*peak)}" if peak else ""
    if tally.over:
        over = f"over its limit: {percent(tally.over / tally.offered)} of the requests of the last hour"
        outcome = "denied" if tally.denied >= tally.would_deny else "would be denied"
        return "over", f"{over} ({counted(tally.over, 'request')}, {outcome}){of_limit}{_users_text(use)}"
    if peak is not None and peak[1].share >= NEAR:
        return "near", f"near its limit{of_limit}"
    return "ok", f"within its limits{of_limit}"


def _peak_text(policy: str, peak: Peak) -> str:
    return f"{policy} {rate_text(peak.limit, peak.window_s)}: highest use {percent(peak.share)}"


def _users_text(use: ClientUse) -> str:
    names = [str(user["username"]) for user in use.worst_users() if user["over"]][:MAX_NAMED]
    return f"; worst users: {', '.join(names)}" if names else ""


def percent(share: float) -> str:
    """Return a share such as ``13 %``."""
    return f"{share * 100:.0f} %" if share >= 0.01 else "less than 1 %"
