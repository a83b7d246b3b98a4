"""Requests over time: the charts, and the table of clients."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from oauth_ratelimit.admin.cache import Params, Reading, choice, client_or_all, kept, whole
from oauth_ratelimit.admin.present import RULE, read_marks, read_status, severity
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, ClientMinute, ClientTotal, Peak, Tally
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import Record, client_text, counted, json_safe
from oauth_ratelimit.operations.marks import Mark


class Span(NamedTuple):
    """A length of time up to now, in equal steps."""

    name: str
    length_s: int
    step_s: int
    fresh_s: float = 0.0  # an open page shows it so long; in a long span a minute hardly matters


SPANS = {
    "15m": Span("15 min", 900, 60),
    "1h": Span("1 hour", 3600, 60),
    "6h": Span("6 hours", 21_600, 300),
    "1d": Span("1 day", 86_400, 3600, 60.0),
    "7d": Span("7 days", 604_800, 3600, 60.0),
}
LARGE_FRESH_S = 30.0  # with many clients, whose table takes a tenth of a second
MANY = 1000  # clients
MAX_LINES = 5  # more lines cannot be told apart
MAX_MARKS = 50
MAX_USES = 6  # limits whose use is drawn
MAX_RATES = 3  # in the label of a limit that was changed
COLOUR_COUNT = 7
REST = "rest"  # colour of all clients without a line of their own
PAGE_SIZE, MAX_PAGE = 25, 999_999
MAX_USE_STEP_S = 300  # a client has a document for each minute, which are too many in a day

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


class Traffic:
    """Requests in a span up to now, the present in its last step. ``charts`` are requests per minute.

    ``is_complete`` is False while a part is not derived yet.
    """

    rest_count = 0  # clients without a line of their own
    is_complete = True
    charts: Mapping[str, Sequence[Record]]

    def __init__(self, context: OperatorContext, span: Span) -> None:
        self.now_s, self.step_s, self.fresh_s = context.now_s, span.step_s, span.fresh_s
        end_s = int(self.now_s // self.step_s + 1) * self.step_s
        self.starts_s = range(end_s - span.length_s, end_s, self.step_s)

    def lines(self, context: OperatorContext, client_ids: Sequence[str]) -> tuple[Line, list[Line]]:
        """Return the requests in each step, of all clients and of chosen ones."""
        stored = list(map(storable_name, client_ids))
        found = context.stores.rollups.rows(self.starts_s[0], self.now_s, step_s=self.step_s, client_ids=stored)

        def line(rows: Sequence[ClientTotal]) -> Line:
            counts = {row.start_s: row.all for row in rows}
            return [None if at_s in found.missing else counts.get(at_s, NO_REQUESTS) for at_s in self.starts_s]

        return line(found.together), [line([row for row in found.clients if row.client_id == name]) for name in stored]

    def drawn(self, line: Line, outcome: str, label: str, colour: str, style: str = "") -> Record:
        minutes = (max(MINUTE_S, min(self.step_s, self.now_s - at_s)) / MINUTE_S for at_s in self.starts_s)
        counts = (None if tally is None else getattr(tally, outcome) for tally in line)
        values = [None if count is None else count / length for count, length in zip(counts, minutes, strict=True)]
        return _drawn(label, colour, values, style)


class AllTraffic(Traffic):
    """Requests of all clients. They are ``named`` with requests or peaks, the worst first, which have ``colours``."""

    def __init__(self, context: OperatorContext, span: Span) -> None:
        super().__init__(context, span)
        totals = context.stores.rollups.rows(self.starts_s[0], context.now_s)
        found = [client for client in totals.clients if client.all.offered or client.highest_use is not None]
        found.sort(key=lambda each: (severity(each), each.client_id))
        self.named = [client for client in found if client.client_id != OTHER_CLIENTS]
        shown = [client.client_id for client in self.named[:MAX_LINES]]
        total, lines = self.lines(context, shown)
        self.colours = colours(shown)
        named = [(client_text(name), self.colours[name], line) for name, line in zip(shown, lines, strict=True)]
        self.rest_count = len(found) - len(shown)
        if self.rest_count:
            steps = zip(total, *lines, strict=True)
            rest = [each and each - sum(filter(None, some), NO_REQUESTS) for each, *some in steps]
            named.append(("all others", REST, rest))
        over = (
            self.drawn(line, outcome, f"{name}{words}", colour, style)
            for name, colour, line in named
            for outcome, words, style in (
                ("denied", "", ""),
                ("reused", " (token again)", "dotted"),
                ("would_deny", " (dry run)", "dashed"),
            )
        )
        guessed = shown.index(ANYONE) if ANYONE in shown else None  # no client, so it gets no token
        issued = [
            self.drawn(line, "issued", name, colour)
            for place, (name, colour, line) in enumerate(named)
            if place != guessed
        ]
        self.charts = {"denied": [each for each in over if any(each["values"])], "issued": issued}
        self.is_complete = not totals.missing
        self.fresh_s = LARGE_FRESH_S if len(found) > MANY else self.fresh_s


class ClientTraffic(Traffic):
    """Requests of one client, and the use of its limits."""

    def __init__(self, context: OperatorContext, span: Span, client_id: str) -> None:
        super().__init__(context, span)
        _, (line,) = self.lines(context, [client_id])
        self.is_complete = None not in line
        is_short = span.step_s <= MAX_USE_STEP_S
        minutes = context.minutes(self.starts_s[0], client_id, parts=("peaks",)) if is_short else ()
        requests = [
            each
            for outcome, label, colour, style in (
                ("issued", "issued", "1", ""),
                ("reused", "got their token again", "3", ""),
                ("denied", "denied", "bad", ""),
                ("would_deny", "would be denied (dry run)", "bad", "dashed"),
                ("would_reuse", "over a limit, and reuse would spare them", "3", "dashed"),
            )
            if any((each := self.drawn(line, outcome, label, colour, style))["values"]) or outcome == "issued"
        ]
        uses = self._highest_uses(minutes)
        limits = context.policies.matching(client_id).limits
        if span.step_s == MINUTE_S:
            requests += _limits_per_minute(uses, {policy.name for policy in (*limits.user, *limits.user_total)})
        has_any = any(tally and tally.offered for tally in line)
        self.charts = {
            "requests": requests if has_any else [],
            "uses": list(_uses(uses, () if context.policies.grants_of(client_id) else chain(*limits))),
        }

    def _highest_uses(self, minutes: Iterable[ClientMinute]) -> dict[str, list[Peak | None]]:
        """Return the highest use of each limit in each step, for the limits that are used most."""
        uses: dict[str, dict[int, Peak]] = {}
        for minute in minutes:
            at_s = minute.minute_s // self.step_s * self.step_s
            for policy, peak in minute.peaks.items():
                steps = uses.setdefault(policy, {})
                steps[at_s] = max(peak, steps.get(at_s, peak))
        highest = sorted(uses.items(), key=lambda item: -max(peak.share for peak in item[1].values()))[:MAX_USES]
        return {policy: list(map(steps.get, self.starts_s)) for policy, steps in highest}


def colours(client_ids: Sequence[str]) -> dict[str, str]:
    """Return a colour for each client: by its id, so that it keeps its colour while ranks change."""
    found: dict[str, str] = {}
    for client_id in sorted(client_ids):
        first = zlib.crc32(client_id.encode("utf-8", "replace"))
        names = (str((first + step) % COLOUR_COUNT + 1) for step in range(COLOUR_COUNT))
        found[client_id] = next(name for name in names if name not in found.values())
    return found


FRESH_S = attrgetter("fresh_s")
read_all = kept(lambda context, span: AllTraffic(context, SPANS[span]), ttl_s=FRESH_S)
read_client = kept(lambda context, span, client_id: ClientTraffic(context, SPANS[span], client_id), ttl_s=FRESH_S)


def span_of(params: Params, now_s: float) -> str:
    """Return the chosen span, by default an hour, or what reaches back to the moment ``at`` of a link."""
    at_s = moment(params)
    first_s = now_s if at_s is None else at_s
    usual = next((span for span in ("1h", "6h", "1d") if now_s - SPANS[span].length_s < first_s), "7d")
    return choice(params, "span", tuple(SPANS), usual)


def moment(params: Params) -> int | None:
    """Return the time of an alert or report that links here, None without one."""
    return whole(params, "at", 0) if params.get("at") else None


def traffic(reading: Reading, params: Params) -> Record:
    """Return the charts of all clients or of one."""
    span, client_id = span_of(params, reading.now_s), client_or_all(params)
    found: Traffic = read_all(reading, span) if client_id is None else read_client(reading, span, client_id)
    marks = [mark for mark in read_marks(reading) if mark.text and mark.at_s >= found.starts_s[0]]
    marks = [mark for mark in marks if client_id is None or mark.client_id in (None, client_id)]
    at_s = moment(params)
    linked = [] if at_s is None else [Mark(at_s, "the moment of the link that was followed here")]
    shown = sorted([*marks[-MAX_MARKS:], *linked], key=lambda mark: mark.at_s)
    content = {
        "step_s": found.step_s,
        "unit": "per minute" if found.step_s == MINUTE_S else "average per minute",
        "times": list(found.starts_s),
        "marks": [{"at_s": mark.at_s, "text": mark.text} for mark in shown],
        "charts": found.charts,
    }
    notes = [f"{counted(found.rest_count, 'other client')} in grey."] if found.rest_count else []
    notes += [] if found.is_complete else ["Older requests are still being read."]
    return {"now_s": found.now_s, "fresh_s": found.fresh_s, "notes": notes, "content": json_safe(content)}


def _drawn(label: str, colour: str, values: Sequence[float | None], style: str = "") -> Record:
    return {"label": label, "colour": colour, "values": values, "style": style}


def _limits_per_minute(uses: Mapping[str, Sequence[Peak | None]], of_users: Set[str]) -> Iterator[Record]:
    """Yield the limits that requests per minute can be compared with: another window only with its own use."""
    for policy, steps in uses.items():
        if policy not in of_users and any(peak and peak.window_s == MINUTE_S for peak in steps):
            yield _drawn(f"limit of {policy}", REST, [peak and peak.limit for peak in steps], "stepped")


def _uses(uses: Mapping[str, Sequence[Peak | None]], limits: Iterable[Policy]) -> Iterator[Record]:
    """Yield the use of each limit in percent; its label has the limit that applies now, and former ones."""
    now = {policy.name: [rate_text(policy.limit, policy.window.window_s)] for policy in limits}
    for number, (policy, steps) in enumerate(uses.items(), 1):
        recorded = (rate_text(peak.limit, peak.window_s) for peak in steps if peak)
        rates = [rate for rate, _ in groupby(chain(recorded, now.get(policy, ())))]
        yield _drawn(
            f"{policy}: {' → '.join(rates[-MAX_RATES:])}", str(number), [peak and peak.share * 100 for peak in steps]
        )
    if uses:
        yield _drawn("the limit", "bad", [100 for _ in next(iter(uses.values()))], "stepped")


def clients(reading: Reading, params: Params) -> Record:
    """Return one page of the clients with requests in a span, sorted and filtered."""
    span = span_of(params, reading.now_s)
    sort = choice(params, "sort", tuple(SORTS), "worst")
    is_reversed = choice(params, "order", ("down", "up"), "down") == "up"
    page, wanted = whole(params, "page", 1, least=1, most=MAX_PAGE), params.get("filter", "").strip()
    found = read_all(reading, span)
    _, status = read_status(reading)
    matching = [client for client in found.named if wanted.casefold() in client.client_id.casefold()]
    ordered = matching if sort == "worst" else sorted(matching, key=SORTS[sort])
    ordered = ordered[::-1] if is_reversed else ordered
    shown = ordered[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return {
        "now_s": found.now_s,
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
        "spans": SPANS,
        "rule": RULE,
        "has_dry_run": any(client.all.would_deny for client in found.named),
        "has_reuse": any(client.all.reused for client in found.named),
        "fresh_s": found.fresh_s,
    }
