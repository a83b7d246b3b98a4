"""Queries over recorded statistics: the effect of another limit, and the traffic of one client in a day."""

from collections.abc import Sequence
from typing import get_args

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind, Policy
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Loads, effects, loads
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.serialize import Record, bearer_data, effects_data, tally_data
from oauth_ratelimit.report.findings import ClientFinding, find
from oauth_ratelimit.report.letter import Period, letter_to, observations

SPANS_S = {"hour": 3600, "day": 86_400, "week": 604_800}
DAY_S = SPANS_S["day"]
WINDOW_MINUTES = (1, 5, 10, 15, 30, 60, 360, 1440)
MAX_READ = 30_000  # documents, about half a second; a sample will not do, because windows need every minute
TTL_S = 20.0  # while the slider moves, only the limit changes
MAX_BEARERS = 50
MAX_HEAVIEST = 5
BY_OF_KIND: dict[LimitKind, By] = {LimitKind.CLIENT: "client", LimitKind.USER: "user", LimitKind.CLIENT_TOTAL: "total"}


def what_if(cache: ReadCache, params: Params) -> object:
    """Return the approximate effect of a limit on the last hour, day or week."""
    span = _choice(params, "span", tuple(SPANS_S), "day")
    by: By = _choice(params, "by", get_args(By), "client")  # type: ignore[assignment]  # one of By's texts
    window_minutes = int(_choice(params, "window", tuple(map(str, WINDOW_MINUTES)), "1"))
    limit = _limit(params.get("limit", "100"))
    client_id = params.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)

    def read(context: OperatorContext) -> tuple[float, Loads]:
        return context.now_s, _loads(context, by, SPANS_S[span] + window_minutes * MINUTE_S, client_id=client_id)

    now_s, recorded = cache.read_cached(("what-if", span, by, window_minutes, client_id), read, ttl_s=TTL_S)
    found = effects(recorded, limit=limit, window_minutes=window_minutes, since_s=now_s - SPANS_S[span])
    return {
        "limit": limit,
        "window_s": window_minutes * MINUTE_S,
        "by": by,
        "span_s": SPANS_S[span],
        # The end of the slider: a limit that cannot have been exceeded even if every minute were the busiest. A window
        # that starts within a minute touches one minute more than its length.
        "highest": max([1, *(effect.peak * (window_minutes + 1) for effect in found)]),
        **effects_data(found),
        "bearers": [{**bearer_data(effect), "peak": effect.peak} for effect in found[:MAX_BEARERS]],
    }


def effect_in_last_day(
    context: OperatorContext, kind: LimitKind, policy: Policy, *, client_id: str | None
) -> Record | None:
    """Return the effect of a limit on the last day; None if the statistics do not cover it."""
    window_minutes, rest_s = divmod(policy.window.window_s, MINUTE_S)
    if rest_s:
        return None
    try:
        recorded = _loads(context, BY_OF_KIND[kind], DAY_S + policy.window.window_s, client_id=client_id)
    except ValueError:
        return None
    found = effects(recorded, limit=policy.limit, window_minutes=window_minutes, since_s=context.now_s - DAY_S)
    return {"policy": policy.name, "kind": kind.value, **effects_data(found)} if found else None


def _loads(context: OperatorContext, by: By, span_s: int, *, client_id: str | None) -> Loads:
    """Return the recorded requests.

    Raises:
        ValueError: There are too many documents to read for a page.
    """
    store, since_s = context.stores.statistics, context.now_s - span_s
    stored = client_id and storable_name(client_id)
    if store.count(since_s, context.now_s, stored) > MAX_READ:
        raise ValueError(
            "Too many statistics to read for a page: choose one client or a shorter time, or use the command line "
            "(flask oauth-ratelimit what-if)."
        )
    parts = ("by", "users") if by == "user" else ("by",)
    return loads(store.minutes(since_s, context.now_s, stored, parts=parts), by)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and 1 <= int(text) <= MAX_LIMIT):
        raise ValueError(f"limit: got {text[:40]!r}, expected a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def _choice(params: Params, name: str, allowed: Sequence[str], default: str) -> str:
    value = params.get(name, default)
    if value not in allowed:
        raise ValueError(f"{name}: got {value[:40]!r}, expected one of {', '.join(allowed)}")
    return value


def client_day(cache: ReadCache, params: Params) -> object:
    """Return the recorded traffic of a client in the last day."""
    client_id = checked_client_id(params.get("id", ""))
    return cache.read_cached(("client-day", client_id), lambda context: _client_day(context, client_id), ttl_s=TTL_S)


def _client_day(context: OperatorContext, client_id: str) -> Record:
    settings = context.settings
    period = Period(context.now_s - DAY_S, context.now_s)
    minutes = context.stores.statistics.minutes(period.since_s, period.until_s, storable_name(client_id))
    findings = find(minutes, assumed_lifetime_s=settings.statistics.token_lifetime_s)
    if not findings:
        return {"span_s": DAY_S, "offered": 0}
    (finding,) = findings
    letter = letter_to(finding, period, error_uri=settings.denial.error_uri) if finding.faults else None
    return {
        **_totals(finding),
        "verdict": finding.verdict.value,
        "faults": [text for _, text in observations(finding)],
        "letter": letter and f"{letter.subject}\n\n{letter.text}",
        "peaks": [
            {"policy": policy, **peak._asdict()}
            for policy, peak in sorted(finding.total.peaks.items(), key=lambda item: -item[1].share)
        ],
        "grants": [
            {"kind": source.kind, "grant": source.grant, **tally_data(tally)}
            for source, tally in sorted(finding.total.tallies.items(), key=lambda item: -item[1].offered)
        ],
        "users": [
            {"username": user.username, "offered": user.offered, "over": user.denied + user.would_deny}
            for user in finding.total.heaviest(MAX_HEAVIEST)
        ],
    }


def _totals(finding: ClientFinding) -> Record:
    total, requests = finding.total, finding.total.tally()
    busiest_count, busiest_s = total.busiest
    return {
        "span_s": DAY_S,
        "offered": requests.offered,
        "over": requests.over,
        "retries": requests.retries,
        "user_count": total.user_count,
        "per_user_hour": finding.tokens_per_user_hour,
        "refresh_share": finding.refresh_share,
        "needed": finding.needed,
        "burst": total.burst,
        "busiest_count": busiest_count,
        "busiest_at": utc_time(busiest_s),
    }
