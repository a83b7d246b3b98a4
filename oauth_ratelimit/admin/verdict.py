"""Query for the first line of the overview: requests over limits in the last minutes, and the state of the whole."""

from collections.abc import Sequence

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.history import SpanTraffic
from oauth_ratelimit.admin.sums import Step
from oauth_ratelimit.admin.traffic import over_share, span_traffic
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.statistics import MINUTE_S, Tally
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.operations.status import Status

MINUTES = 5
WRITTEN_S = 20  # after the end of a minute all instances have written it
TTL_S = 8.0


def verdict(cache: ReadCache, params: Params) -> object:
    """Return what is denied per minute, the clients over a limit, and mode, canary, instances and store.

    While MongoDB is unreachable the numbers are None, and ``store`` says since when.
    """
    try:
        found = span_traffic(cache, "15m")
        state = cache.read_cached("state", _state, ttl_s=TTL_S)
    except StoreError as exc:
        outage = cache.outage(exc)
        policies = cache.settings_in_memory().policies
        return {
            "now_s": cache.now_s(),
            **dict.fromkeys(("denied_per_minute", "would_deny_per_minute", "allowed_per_minute")),
            **dict.fromkeys(("clients_over", "worst", "instances")),
            **_mode_data(policies.mode, policies.canary),
            "store": {"is_reachable": False, "since_s": outage.since_s, "error": outage.text},
        }
    return {
        **_numbers(found),
        **state,
        "store": {"is_reachable": True, "since_s": None, "error": None},
    }


def _numbers(found: SpanTraffic) -> Record:
    timeline = found.timeline
    until_s = int((timeline.now_s - WRITTEN_S) // MINUTE_S) * MINUTE_S
    since_s = until_s - MINUTES * MINUTE_S
    steps = found.between(since_s, until_s)
    now, before = _total(steps), _total(found.between(since_s - MINUTES * MINUTE_S, since_s))
    over_count, worst = found.over_limit(steps)
    return {
        "now_s": timeline.now_s,
        "since_s": since_s,
        "until_s": until_s,
        "denied_per_minute": _pair(now.denied, before.denied),
        "would_deny_per_minute": _pair(now.would_deny, before.would_deny),
        "allowed_per_minute": _pair(now.allowed + now.trusted, before.allowed + before.trusted),
        "clients_over": over_count,
        "worst": worst
        and {
            "client_id": worst.client_id,
            "share": over_share(worst.tally),
            "denied": worst.tally.denied,
            "would_deny": worst.tally.would_deny,
        },
    }


def _total(steps: Sequence[Step]) -> Tally:
    return sum((Tally(*step.totals) for step in steps), Tally())


def _pair(now: int, before: int) -> Record:
    return {"value": now / MINUTES, "before": before / MINUTES}


def _state(context: OperatorContext) -> Record:
    policies = context.policies
    found = Status(context)
    return {
        **_mode_data(policies.mode, policies.canary),
        "instances": {"count": len(found.heartbeats), "late": found.late_count},
    }


def _mode_data(mode: Mode, canary: Canary | None) -> Record:
    return {"mode": mode.value, "canary": canary and {"percent": canary.percent, "instances": canary.instances}}
