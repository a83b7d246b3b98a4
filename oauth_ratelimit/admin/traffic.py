"""Requests over time: the charts, and the table of clients."""

from collections.abc import Callable, Mapping, Sequence, Set

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.marks import Mark, read_marks
from oauth_ratelimit.admin.verdict import RULE, severity
from oauth_ratelimit.config.errors import show
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, ClientTotal, Tally
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record

SPANS_S = {"15m": (900, 60), "1h": (3600, 60), "6h": (21_600, 300), "1d": (86_400, 3600), "7d": (604_800, 3600)}
"""Length of a span and of its steps, in seconds."""

SPAN_NAMES = {"15m": "15 min", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days"}
TTL_S = 8.0  # instances write statistics every ten seconds
LARGE_TTL_S = 30.0  # with many clients, whose table takes a tenth of a second
MANY = 1000  # clients
LONG_TTL_S = 60.0  # of spans in which a minute hardly matters
MAX_LINES = 5  # more lines cannot be told apart
MAX_MARKS = 50
MAX_DIGITS = 11  # of a time
MAX_USES = 6  # limits whose use is drawn
PAGE_SIZE = 25
USE_SPANS = ("15m", "1h", "6h")  # a client has a document for each minute, which are too many in a week

SORTS: Mapping[str, Callable[[ClientTotal], tuple[int, int, int] | float | str]] = {
    "worst": severity,
    "client": lambda client: client.client_id.casefold(),
    "requests": lambda client: -client.all.offered,
    "issued": lambda client: -client.all.issued,
    "denied": lambda client: -client.all.denied,
    "would_deny": lambda client: -client.all.would_deny,
    "share": lambda client: -client.all.over_share,
    "use": lambda client: -(client.highest_use or 0.0),
}
"""Columns of the table of clients, each with its natural order."""

Line = Sequence[Tally | None]
"""Requests in each step; None for a step that is not derived yet."""


class Timeline:
    """The equal steps of a span, the present in the last one."""

    def __init__(self, span: str, now_s: float) -> None:
        length_s, self.step_s = SPANS_S[span]
        end_s = int(now_s // self.step_s + 1) * self.step_s
        self.now_s = now_s
        self.starts_s = range(end_s - length_s, end_s, self.step_s)

    def lines(self, context: OperatorContext, client_ids: Sequence[str]) -> tuple[Line, list[Line]]:
        """Return the requests in each step, of all clients and of chosen ones."""
        found = context.stores.rollups.lines(
            self.starts_s[0], self.now_s, step_s=self.step_s, client_ids=list(map(storable_name, client_ids))
        )

        def line(counts: Mapping[int, Tally]) -> Line:
            return [None if at_s in found.missing else counts.get(at_s, Tally()) for at_s in self.starts_s]

        return line(found.total), [line(found.clients[storable_name(name)]) for name in client_ids]

    def data(self, line: Line, client_id: str) -> Record:
        """Return a line in requests per minute."""
        minutes = [max(MINUTE_S, min(self.step_s, self.now_s - at_s)) / MINUTE_S for at_s in self.starts_s]
        pairs = list(zip(line, minutes, strict=True))
        return {
            "client_id": client_id,
            **{
                outcome: [tally and getattr(tally, outcome) / count for tally, count in pairs]
                for outcome in ("issued", "denied", "would_deny")
            },
        }


class SpanTraffic:
    """Requests of all clients in a span up to now.

    Attributes:
        clients: Those with requests or peaks, the worst first.
        named: The clients without ``OTHER_CLIENTS``.
        drawn: Those with a line of their own.
        lines: Their lines.
        total: The line of all clients.
        is_complete: False while a part is not derived yet.
        fresh_s: Seconds for which an answer is kept.
        has_dry_run: True if a dry run would have denied a request.
    """

    def __init__(self, context: OperatorContext, span: str) -> None:
        self.timeline = Timeline(span, context.now_s)
        totals = context.stores.rollups.totals(self.timeline.starts_s[0], context.now_s)
        found = [client for client in totals.clients if client.all.offered or client.highest_use is not None]
        self.clients = sorted(found, key=lambda each: (severity(each), each.client_id))
        self.named = [client for client in self.clients if client.client_id != OTHER_CLIENTS]
        self.drawn = self.named[:MAX_LINES]
        self.total, self.lines = self.timeline.lines(context, [client.client_id for client in self.drawn])
        self.is_complete = totals.is_complete
        self.fresh_s = LARGE_TTL_S if len(self.clients) > MANY else span_ttl_s(span)
        self.has_dry_run = any(client.tally.would_deny or client.all.would_deny for client in self.named)


def span_traffic(cache: ReadCache, span: str) -> SpanTraffic:
    """Return the requests of all clients in a span, read once for all viewers."""
    return cache.read_cached(
        ("span", span), lambda context: SpanTraffic(context, span), ttl_s=lambda found: found.fresh_s
    )


def span_ttl_s(span: str) -> float:
    return LONG_TTL_S if SPANS_S[span][0] > SPANS_S["6h"][0] else TTL_S


def span_of(params: Params, now_s: float) -> str:
    """Return the chosen span, by default an hour, or what reaches back to the moment ``at`` of a link."""
    at_s = moment(params)
    first_s = now_s if at_s is None else at_s
    usual = next((span for span in ("1h", "6h", "1d") if now_s - SPANS_S[span][0] < first_s), "7d")
    return choice(params, "span", tuple(SPANS_S), usual)


def moment(params: Params) -> int | None:
    """Return the time of an alert or report that links here, None without one."""
    text = params.get("at") or ""
    if text and not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise ValueError(f"at: got {show(text)}, allowed: seconds since the epoch")
    return int(text) if text else None


def traffic(cache: ReadCache, params: Params) -> Record:
    """Return requests per minute over time, of all clients or of one."""
    span = span_of(params, cache.app_limiter.now_s())
    client_id = params.get("id")
    if client_id is None:
        content = _of_all(span_traffic(cache, span))
    else:
        chosen = checked_client_id(client_id)
        content = cache.read_cached(
            ("traffic", span, chosen), lambda context: _of_client(context, span, chosen), ttl_s=span_ttl_s(span)
        )
    since_s = content["times"][0]
    marks = [
        mark
        for mark in read_marks(cache)
        if mark.text and mark.at_s >= since_s and _concerns(mark.client_id, client_id)
    ]
    at_s = moment(params)
    linked = [] if at_s is None else [Mark(at_s, "the moment of the link that was followed here")]
    shown = sorted([*marks[-MAX_MARKS:], *linked], key=lambda mark: mark.at_s)
    return {**content, "marks": [{"at_s": mark.at_s, "text": mark.text} for mark in shown]}


def _concerns(of: str | None, client_id: str | None) -> bool:
    return client_id is None or of in (None, client_id)


def _of_all(found: SpanTraffic) -> Record:
    timeline, rest_count = found.timeline, len(found.clients) - len(found.drawn)
    rest = [
        None if total is None else total - sum(filter(None, lines), Tally())
        for total, *lines in zip(found.total, *found.lines, strict=True)
    ]
    return {
        **_time_data(timeline, is_complete=found.is_complete),
        "fresh_s": found.fresh_s,
        "lines": [timeline.data(line, client.client_id) for client, line in zip(found.drawn, found.lines, strict=True)],
        "rest": timeline.data(rest, OTHER_CLIENTS) if rest_count else None,
        "rest_count": rest_count,
    }


def _of_client(context: OperatorContext, span: str, client_id: str) -> Record:
    timeline = Timeline(span, context.now_s)
    _, (line,) = timeline.lines(context, [client_id])
    minutes: Sequence[ClientMinute] = ()
    if span in USE_SPANS:
        since_s, stored = timeline.starts_s[0], storable_name(client_id)
        minutes = list(context.stores.statistics.minutes(since_s, context.now_s, stored, parts=("peaks", "denials")))
    has_requests = any(tally and tally.offered for tally in line)
    return {
        **_time_data(timeline, is_complete=None not in line),
        "fresh_s": span_ttl_s(span),
        "lines": [timeline.data(line, client_id)] if has_requests else [],
        "rest": None,
        "uses": _uses(timeline, minutes, {policy.name for policy in context.policies.matching(client_id).limits.user}),
    }


def _uses(timeline: Timeline, minutes: Sequence[ClientMinute], of_users: Set[str]) -> list[Record]:
    """Return the highest use of each limit in each step, as a share, and the limit that applied then."""
    uses: dict[str, dict[int, tuple[float, int, int]]] = {}
    for minute in minutes:
        at_s = minute.minute_s // timeline.step_s * timeline.step_s
        for policy, peak in minute.peaks.items():
            steps = uses.setdefault(policy, {})
            share = max(peak.share, steps.get(at_s, (0.0, 0, 0))[0])
            steps[at_s] = (share, peak.limit, peak.window_s)
    highest = sorted(uses.items(), key=lambda item: -max(use[0] for use in item[1].values()))[:MAX_USES]
    found = []
    for policy, steps in highest:
        shares, limits, windows = zip(*(steps.get(at_s, (None, None, None)) for at_s in timeline.starts_s), strict=True)
        found.append({"policy": policy, "share": shares, "limit": limits, "window_s": windows})
    return [{**use, "is_per_user": use["policy"] in of_users} for use in found]


def _time_data(timeline: Timeline, *, is_complete: bool) -> Record:
    return {
        "now_s": timeline.now_s,
        "step_s": timeline.step_s,
        "unit": "per minute" if timeline.step_s == MINUTE_S else "average per minute",
        "times": list(timeline.starts_s),
        "is_complete": is_complete,
    }


def choice(params: Params, name: str, allowed: Sequence[str], default: str) -> str:
    """Return an argument that is one of some words."""
    value = params.get(name) or default
    if value not in allowed:
        raise ValueError(f"{name}: got {show(value)}, allowed: {', '.join(allowed)}")
    return value


def _page_number(params: Params) -> int:
    text = params.get("page") or "1"
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text)):
        raise ValueError(f"page: got {show(text)}, allowed: a whole number from 1 to 999999")
    return int(text)


def clients(cache: ReadCache, params: Params) -> Record:
    """Return one page of the clients with requests in a span, sorted and filtered."""
    span = span_of(params, cache.app_limiter.now_s())
    sort = choice(params, "sort", tuple(SORTS), "worst")
    is_reversed = choice(params, "order", ("down", "up"), "down") == "up"
    page, wanted = _page_number(params), params.get("filter", "").strip()
    found = span_traffic(cache, span)
    policies: PolicySet = cache.read_cached("policies", lambda context: context.policies, ttl_s=TTL_S)
    matching = [client for client in found.named if wanted.casefold() in client.client_id.casefold()]
    ordered = matching if sort == "worst" else sorted(matching, key=SORTS[sort])
    ordered = ordered[::-1] if is_reversed else ordered
    shown = ordered[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return {
        "now_s": found.timeline.now_s,
        "is_complete": found.is_complete,
        "rows": [(client, policies.matching(client.client_id)) for client in shown],
        "first": (page - 1) * PAGE_SIZE + 1,
        "total": len(matching),
        "page": page,
        "pages": max(1, -(-len(matching) // PAGE_SIZE)),
        "sort": sort,
        "is_reversed": is_reversed,
        "filter": wanted,
        "span": span,
        "rule": RULE,
        "has_dry_run": found.has_dry_run,
        "fresh_s": found.fresh_s,
    }
