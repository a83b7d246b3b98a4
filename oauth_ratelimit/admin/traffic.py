"""Requests over time: the charts, and the table of clients."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby

from oauth_ratelimit.admin.cache import Params, ReadCache, choice, client_or_all, whole
from oauth_ratelimit.admin.order import RULE, severity
from oauth_ratelimit.admin.present import read_marks, read_status
from oauth_ratelimit.admin.text import client_name
from oauth_ratelimit.admin.verdict import Mark
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, ClientMinute, ClientTotal, Peak, Tally
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.serialize import Record, json_safe

SPANS_S = {"15m": (900, 60), "1h": (3600, 60), "6h": (21_600, 300), "1d": (86_400, 3600), "7d": (604_800, 3600)}
"""Length of a span and of its steps, in seconds."""

SPAN_NAMES = {"15m": "15 min", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days"}
TTL_S = 8.0  # instances write statistics every ten seconds
LARGE_TTL_S = 30.0  # with many clients, whose table takes a tenth of a second
MANY = 1000  # clients
LONG_TTL_S = 60.0  # of spans in which a minute hardly matters
MAX_LINES = 5  # more lines cannot be told apart
MAX_MARKS = 50
MAX_USES = 6  # limits whose use is drawn
MAX_RATES = 3  # in the label of a limit that was changed
COLOUR_COUNT = 7
REST = "rest"  # colour of all clients without a line of their own
PAGE_SIZE, MAX_PAGE = 25, 999_999
USE_SPANS = ("15m", "1h", "6h")  # a client has a document for each minute, which are too many in a week

SORTS: Mapping[str, Callable[[ClientTotal], tuple[int, int, int] | float | str]] = {
    "worst": severity,
    "client": lambda client: client.client_id.casefold(),
    "requests": lambda client: -client.all.offered,
    "issued": lambda client: -client.all.issued,
    "denied": lambda client: -client.all.denied,
    "would_deny": lambda client: -client.all.would_deny,
    "reused": lambda client: -client.all.reused,
    "share": lambda client: -client.own.over_share,
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
        stored = list(map(storable_name, client_ids))
        found = context.stores.rollups.rows(self.starts_s[0], self.now_s, step_s=self.step_s, client_ids=stored)

        def line(rows: Sequence[ClientTotal]) -> Line:
            counts = {row.start_s: row.all for row in rows}
            return [None if at_s in found.missing else counts.get(at_s, NO_REQUESTS) for at_s in self.starts_s]

        return line(found.together), [line([row for row in found.clients if row.client_id == name]) for name in stored]

    def per_minute(self, line: Line, outcome: str) -> list[float | None]:
        minutes = (max(MINUTE_S, min(self.step_s, self.now_s - at_s)) / MINUTE_S for at_s in self.starts_s)
        return [
            None if tally is None else getattr(tally, outcome) / count
            for tally, count in zip(line, minutes, strict=True)
        ]


class SpanTraffic:
    """Requests of all clients in a span up to now. Clients are ``named`` with requests or peaks, the worst first.

    ``lines`` has name, colour and line of the first ones, and of all others. ``is_complete`` is False while a part is
    not derived yet.
    """

    def __init__(self, context: OperatorContext, span: str) -> None:
        self.timeline = Timeline(span, context.now_s)
        totals = context.stores.rollups.rows(self.timeline.starts_s[0], context.now_s)
        found = [client for client in totals.clients if client.all.offered or client.highest_use is not None]
        found.sort(key=lambda each: (severity(each), each.client_id))
        self.named = [client for client in found if client.client_id != OTHER_CLIENTS]
        drawn = [client.client_id for client in self.named[:MAX_LINES]]
        total, lines = self.timeline.lines(context, drawn)
        self.colours = colours(drawn)
        self.lines = [(client_name(name), self.colours[name], line) for name, line in zip(drawn, lines, strict=True)]
        self.rest_count = len(found) - len(drawn)
        if self.rest_count:
            rest = [
                each and each - sum(filter(None, some), NO_REQUESTS) for each, *some in zip(total, *lines, strict=True)
            ]
            self.lines.append((client_name(OTHER_CLIENTS), REST, rest))
        self.is_complete = not totals.missing
        self.fresh_s = LARGE_TTL_S if len(found) > MANY else span_ttl_s(span)
        self.has_dry_run = any(client.all.would_deny for client in self.named)
        self.has_reuse = any(client.all.reused for client in self.named)


def colours(client_ids: Sequence[str]) -> dict[str, str]:
    """Return a colour for each client: by its id, so that it keeps its colour while ranks change."""
    found: dict[str, str] = {}
    for client_id in sorted(client_ids):
        first = zlib.crc32(client_id.encode("utf-8", "replace"))
        names = (str((first + step) % COLOUR_COUNT + 1) for step in range(COLOUR_COUNT))
        found[client_id] = next(name for name in names if name not in found.values())
    return found


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
    return whole(params, "at", 0) if params.get("at") else None


def traffic(cache: ReadCache, params: Params) -> Record:
    """Return the charts, in requests per minute, of all clients or of one."""
    span = span_of(params, cache.app_limiter.now_s())
    client_id = client_or_all(params)
    notes: list[str] = []
    if client_id is None:
        found = span_traffic(cache, span)
        timeline, fresh_s, is_complete, charts = found.timeline, found.fresh_s, found.is_complete, _of_all(found)
        notes += [f"{counted(found.rest_count, 'other client')} in grey."] if found.rest_count else []
    else:
        chosen, fresh_s = client_id, span_ttl_s(span)
        timeline, is_complete, charts = cache.read_cached(
            ("traffic", span, chosen), lambda context: _of_client(context, span, chosen), ttl_s=fresh_s
        )
    since_s = timeline.starts_s[0]
    marks = [
        mark
        for mark in read_marks(cache)
        if mark.text and mark.at_s >= since_s and (client_id is None or mark.client_id in (None, client_id))
    ]
    at_s = moment(params)
    linked = [] if at_s is None else [Mark(at_s, "the moment of the link that was followed here")]
    shown = sorted([*marks[-MAX_MARKS:], *linked], key=lambda mark: mark.at_s)
    content = {
        "step_s": timeline.step_s,
        "unit": "per minute" if timeline.step_s == MINUTE_S else "average per minute",
        "times": list(timeline.starts_s),
        "marks": [{"at_s": mark.at_s, "text": mark.text} for mark in shown],
        "charts": charts,
    }
    notes += [] if is_complete else ["Older requests are still being read."]
    return {"now_s": timeline.now_s, "fresh_s": fresh_s, "notes": notes, "content": json_safe(content)}


def _drawn(label: str, colour: str, values: Sequence[float | None], style: str = "") -> Record:
    return {"label": label, "colour": colour, "values": values, "style": style}


def _of_all(found: SpanTraffic) -> Record:
    over = [
        _drawn(f"{name}{words}", colour, values, style)
        for name, colour, line in found.lines
        for outcome, words, style in (
            ("denied", "", ""),
            ("reused", " (token again)", "dotted"),
            ("would_deny", " (dry run)", "dashed"),
        )
        if any(values := found.timeline.per_minute(line, outcome))
    ]
    issued = [_drawn(name, colour, found.timeline.per_minute(line, "issued")) for name, colour, line in found.lines]
    return {"denied": over, "issued": issued}


def _of_client(context: OperatorContext, span: str, client_id: str) -> tuple[Timeline, bool, Record]:
    timeline = Timeline(span, context.now_s)
    _, (line,) = timeline.lines(context, [client_id])
    minutes = context.minutes(timeline.starts_s[0], client_id, parts=("peaks",)) if span in USE_SPANS else ()
    requests = [
        _drawn(label, colour, values, style)
        for outcome, label, colour, style in (
            ("issued", "issued", "1", ""),
            ("reused", "got their token again", "3", ""),
            ("denied", "denied", "bad", ""),
            ("would_deny", "would be denied (dry run)", "bad", "dashed"),
            ("would_reuse", "over a limit, and reuse would spare them", "3", "dashed"),
        )
        if any(values := timeline.per_minute(line, outcome)) or outcome == "issued"
    ]
    uses = _highest_uses(timeline, minutes)
    if timeline.step_s == MINUTE_S:
        limits = context.policies.matching(client_id).limits
        of_users = {policy.name for policy in (*limits.user, *limits.user_total)}
        requests += _limits_per_minute(uses, of_users)
    charts = {"requests": requests if any(tally and tally.offered for tally in line) else [], "uses": list(_uses(uses))}
    return timeline, None not in line, charts


def _highest_uses(timeline: Timeline, minutes: Iterable[ClientMinute]) -> dict[str, list[Peak | None]]:
    """Return the highest use of each limit in each step, for the limits that are used most."""
    uses: dict[str, dict[int, Peak]] = {}
    for minute in minutes:
        at_s = minute.minute_s // timeline.step_s * timeline.step_s
        for policy, peak in minute.peaks.items():
            steps = uses.setdefault(policy, {})
            steps[at_s] = max(peak, steps.get(at_s, peak))
    highest = sorted(uses.items(), key=lambda item: -max(peak.share for peak in item[1].values()))[:MAX_USES]
    return {policy: list(map(steps.get, timeline.starts_s)) for policy, steps in highest}


def _limits_per_minute(uses: Mapping[str, Sequence[Peak | None]], of_users: Set[str]) -> Iterator[Record]:
    """Yield the limits that requests per minute can be compared with: another window only with its own use."""
    for policy, steps in uses.items():
        if policy not in of_users and any(peak and peak.window_s == MINUTE_S for peak in steps):
            yield _drawn(f"limit of {policy}", REST, [peak and peak.limit for peak in steps], "stepped")


def _uses(uses: Mapping[str, Sequence[Peak | None]]) -> Iterator[Record]:
    """Yield the use of each limit in percent; its label has the limit, and former ones."""
    for number, (policy, steps) in enumerate(uses.items(), 1):
        rates = [rate for rate, _ in groupby(rate_text(peak.limit, peak.window_s) for peak in steps if peak)]
        yield _drawn(
            f"{policy}: {' → '.join(rates[-MAX_RATES:])}", str(number), [peak and peak.share * 100 for peak in steps]
        )
    if uses:
        yield _drawn("the limit", "bad", [100 for _ in next(iter(uses.values()))], "stepped")


def clients(cache: ReadCache, params: Params) -> Record:
    """Return one page of the clients with requests in a span, sorted and filtered."""
    span = span_of(params, cache.app_limiter.now_s())
    sort = choice(params, "sort", tuple(SORTS), "worst")
    is_reversed = choice(params, "order", ("down", "up"), "down") == "up"
    page, wanted = whole(params, "page", 1, least=1, most=MAX_PAGE), params.get("filter", "").strip()
    found = span_traffic(cache, span)
    _, status = read_status(cache)
    matching = [client for client in found.named if wanted.casefold() in client.client_id.casefold()]
    ordered = matching if sort == "worst" else sorted(matching, key=SORTS[sort])
    ordered = ordered[::-1] if is_reversed else ordered
    shown = ordered[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return {
        "now_s": found.timeline.now_s,
        "is_complete": found.is_complete,
        "rows": [(client, status.policies.matching(client.client_id)) for client in shown],
        "colours": found.colours,
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
        "has_reuse": found.has_reuse,
        "fresh_s": found.fresh_s,
    }
