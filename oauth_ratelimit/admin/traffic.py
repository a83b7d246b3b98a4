"""Queries on requests over time: the charts, and the table of clients."""

from collections.abc import Callable, Iterable, Sequence

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.client_use import ClientUse, client_use
from oauth_ratelimit.admin.history import SPANS_S, SpanTraffic, Timeline
from oauth_ratelimit.admin.params import choice, flag, whole
from oauth_ratelimit.admin.sums import ClientTotal
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.overrides import Counters, HistoryEntry
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, Tally
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record, tally_data

TTL_S = 8.0  # instances write statistics every ten seconds
MARKS_TTL_S = 30.0
MAX_LINES = 5  # more lines cannot be told apart
MAX_MARKS = 50
MAX_SIZE = 200  # rows of a page

SORTS = (
    "over",
    "client_id",
    "mode",
    "offered",
    "issued",
    "denied",
    "would_deny",
    "over_share",
    "highest_use",
    "policy",
)

Line = Sequence[Tally | None]
"""Requests in each step; None for a step that is not read yet."""


def span_traffic(cache: ReadCache, span: str) -> SpanTraffic:
    """Return the requests of all clients in a span, read once for all viewers."""

    def read(context: OperatorContext) -> SpanTraffic:
        statistics = context.stores.statistics
        return cache.history.read(
            span,
            now_s=context.now_s,
            read_sums=lambda since_s, until_s, step_s: statistics.sums(since_s, until_s, step_s=step_s),
        )

    return cache.read_cached(("span", span), read, ttl_s=TTL_S)


def traffic(cache: ReadCache, params: Params) -> object:
    """Return requests per minute over time, of all clients or of one."""
    span = choice(params, "span", tuple(SPANS_S), "1h")
    client_id = params.get("id")
    entries = cache.read_cached("history", lambda context: context.stores.overrides.history(), ttl_s=MARKS_TTL_S)
    if client_id is None:
        return {**_of_all(span_traffic(cache, span), _policies(cache)), "marks": _marks(cache, span, entries, None)}
    checked_client_id(client_id)
    use = client_use(cache, client_id)
    content = cache.read_cached(
        ("traffic", span, client_id), lambda context: _of_client(context, span, client_id, use), ttl_s=TTL_S
    )
    return {**content, "marks": _marks(cache, span, entries, client_id)}


def _of_all(found: SpanTraffic, policies: PolicySet) -> Record:
    timeline = found.timeline
    drawn = [number for number in found.ranked[: MAX_LINES + 1] if number][:MAX_LINES]
    lines = [(found.names.all[number], found.line(found.names.all[number])) for number in drawn]
    rest_count = len(found.ranked) - len(lines)
    total_line = found.total_line()
    rest = _difference(total_line, [line for _, line in lines])
    return {
        **_time_data(timeline, is_complete=found.is_complete),
        "lines": [_line_data(client_id, line, timeline) for client_id, line in lines],
        "rest": _line_data(OTHER_CLIENTS, rest, timeline) if rest_count else None,
        "rest_count": rest_count,
        "client_count": len(found.ranked),
        "total": tally_data(sum(filter(None, total_line), Tally())),
        "clients": [_row(found.sums.client(number), policies) for number in drawn],
    }


def _difference(total: Line, lines: Iterable[Line]) -> Line:
    """Return what is left of a line without others."""
    columns = zip(total, *lines, strict=True)
    return [
        all_of
        and Tally(
            *(
                getattr(all_of, name) - sum(getattr(tally, name) for tally in some if tally)
                for name in ("allowed", "denied", "would_deny", "trusted", "retries")
            )
        )
        for all_of, *some in columns
    ]


def _of_client(context: OperatorContext, span: str, client_id: str, use: ClientUse) -> Record:
    length_s, step_s = SPANS_S[span]
    timeline = Timeline.until(context.now_s, length_s=length_s, step_s=step_s)
    line = [Tally()] * timeline.count
    stored = storable_name(client_id)
    for sums in context.stores.statistics.sums(timeline.start_s, context.now_s, step_s=step_s, client_id=stored):
        step = (sums.start_s - timeline.start_s) // step_s
        for counts in zip(*sums.counts, strict=True):
            line[step] += Tally(*counts)
    total = sum(line, Tally())
    return {
        **_time_data(timeline, is_complete=True),
        "lines": [{**_line_data(client_id, line, timeline), "rates": _rates(client_id, context.policies, use)}]
        if total.offered
        else [],
        "rest": None,
        "rest_count": 0,
        "client_count": 1 if total.offered else 0,
        "total": tally_data(total),
    }


def _time_data(timeline: Timeline, *, is_complete: bool) -> Record:
    return {
        "step_s": timeline.step_s,
        "unit": "per minute" if timeline.step_s == MINUTE_S else "average per minute",
        "times": list(timeline.starts_s),
        "is_complete": is_complete,
    }


def _line_data(client_id: str, line: Line, timeline: Timeline) -> Record:
    minutes = [timeline.minutes_of(start_s) for start_s in timeline.starts_s]
    return {
        "client_id": client_id,
        **{
            outcome: [tally and getattr(tally, outcome) / count for tally, count in zip(line, minutes, strict=True)]
            for outcome in ("issued", "denied", "would_deny")
        },
        "rates": [],
    }


def _rates(client_id: str, policies: PolicySet, use: ClientUse) -> list[Record]:
    """Return the limits to compare with all requests of a client, as rates per minute.

    Of several tiers the one with the lowest rate counts.
    """
    matched = policies.matching(client_id)
    if matched.trusted:
        return []
    kinds = [LimitKind.CLIENT_TOTAL, *([LimitKind.CLIENT] if use.has_own_requests else [])]
    lowest = [min(limits, key=_per_minute) for kind in kinds if (limits := getattr(matched.limits, kind.value))]
    return [{"policy": policy_text(policy), "per_minute": _per_minute(policy)} for policy in lowest]


def _per_minute(policy: Policy) -> float:
    return policy.limit * MINUTE_S / policy.window.window_s


def _marks(cache: ReadCache, span: str, entries: Sequence[HistoryEntry], client_id: str | None) -> list[Record]:
    """Return the changes by operators in a span, and the ends of overrides, oldest first."""
    now_s = cache.now_s()
    since_s = now_s - SPANS_S[span][0]
    marks: list[tuple[float, str]] = []
    for index, entry in enumerate(entries):
        target, override = entry.target, entry.override
        if client_id is not None and target.client_id not in (None, client_id):
            continue
        marks.append((entry.at_s, f"{_change_text(entry)} ({entry.author})"))
        end_s = None if override is None else override.until_s
        if end_s is not None and since_s <= end_s <= now_s:
            is_replaced = any(later.target == target and later.at_s <= end_s for later in entries[index + 1 :])
            if not is_replaced:
                marks.append((end_s, f"override ended: {_change_text(entry)}"))
    recent = sorted(mark for mark in marks if mark[0] >= since_s)[-MAX_MARKS:]
    return [{"at_s": at_s, "text": text} for at_s, text in recent]


def _change_text(entry: HistoryEntry) -> str:
    target, override = entry.target, entry.override
    owner = "everybody" if target.client_id is None else target.client_id
    if isinstance(target, Counters):
        return f"counters of {owner} set to zero"
    what = target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"
    if override is None:
        return f"override removed: {what} of {owner}"
    if override.mode is not None:
        return f"mode {override.mode.value} for {owner}"
    if target.limit_kind is None:
        return f"{owner} trusted"
    return f"{what} of {owner}: {', '.join(map(policy_text, override.policies)) or 'none'}"


def over_share(tally: Tally) -> float:
    """Return the share of requests that were over a limit."""
    return tally.over / tally.offered if tally.offered else 0.0


def clients(cache: ReadCache, params: Params) -> object:
    """Return one page of the clients with requests in a span, sorted and filtered."""
    span = choice(params, "span", tuple(SPANS_S), "1h")
    sort = choice(params, "sort", SORTS, "over")
    descending = flag(params, "descending", default=sort not in ("client_id", "mode", "policy"))
    size = whole(params, "size", default=50, highest=MAX_SIZE)
    page = whole(params, "page", default=1, highest=10**6)
    wanted = params.get("filter", "").strip().casefold()
    found = span_traffic(cache, span)
    policies = _policies(cache)
    names = found.names.all
    named = [number for number in found.ranked if number]
    matching = [number for number in named if wanted in names[number].casefold()] if wanted else named
    ordered = _sorted(found, matching, sort, policies, descending=descending)
    return {
        "is_complete": found.is_complete,
        "rows": [_row(found.sums.client(number), policies) for number in ordered[(page - 1) * size : page * size]],
        "total": len(matching),
        "client_count": len(named),
        "page": page,
        "size": size,
        "sort": sort,
        "descending": descending,
    }


def _policies(cache: ReadCache) -> PolicySet:
    return cache.read_cached("policies", lambda context: context.policies, ttl_s=TTL_S)


def _row(client: ClientTotal, policies: PolicySet) -> Record:
    matched = policies.matching(client.client_id)
    return {
        "client_id": client.client_id,
        **tally_data(client.tally),
        "over": client.tally.over,
        "over_share": over_share(client.tally),
        "mode": "trusted" if matched.trusted else matched.mode.value,
        "is_canary": matched.is_canary,
        "highest_use": client.highest_use,
        "policy": client.policy,
    }


def _sorted(
    found: SpanTraffic, numbers: Sequence[int], sort: str, policies: PolicySet, *, descending: bool
) -> Sequence[int]:
    """Return numbers of clients in order. Equal ones stay in the order of ``ranked``."""
    if sort == "over" and descending:
        return numbers
    names, offered, over, shares = found.names.all, found.offered, found.over, found.sums.shares
    _, denied, would_deny, _, _ = found.sums.counts
    keys: dict[str, Callable[[int], float | str]] = {
        "over": over.__getitem__,
        "offered": offered.__getitem__,
        "issued": lambda number: offered[number] - denied[number],
        "denied": denied.__getitem__,
        "would_deny": would_deny.__getitem__,
        "over_share": lambda number: over[number] / (offered[number] or 1),
        "highest_use": shares.__getitem__,
        "client_id": lambda number: names[number].casefold(),
        "policy": lambda number: found.sums.client(number).policy or "",
        "mode": lambda number: str(_row(found.sums.client(number), policies)["mode"]),
    }
    return sorted(numbers, key=keys[sort], reverse=descending)
