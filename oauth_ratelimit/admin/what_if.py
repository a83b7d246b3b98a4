"""Queries on other limits: their effect on recorded traffic, and limits proposed from it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.client_use import client_use
from oauth_ratelimit.admin.form import UNCONFIGURED_CLIENT
from oauth_ratelimit.admin.params import choice, whole
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind, Policy
from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, ClientMinute, Kind, Tally
from oauth_ratelimit.core.what_if import By, Effect, Subject, effects, loads
from oauth_ratelimit.operations.changes import checked_client_id, limit_texts
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.profiles import HOUR_S, Traffic
from oauth_ratelimit.operations.serialize import Record, bearer_data, effects_data, origin_data
from oauth_ratelimit.operations.suggest import proposal_data, suggest, suggestion_data

SPANS_S = {"hour": 3600, "day": 86_400, "week": 604_800}
DAY_MINUTES = 1440
MAX_READ = 12_000  # documents with users, about a second; a sample will not do, because windows need every minute
MAX_SUMMED = 150_000  # documents that MongoDB sums up, about half a second here
TTL_S = 20.0  # while the slider moves, only the limit changes
SUGGEST_TTL_S = 60.0
MAX_BEARERS = 50
MAX_PEAKS = 200
MAX_TOP = 5
KIND_OF: Mapping[str, LimitKind] = {
    "client": LimitKind.CLIENT,
    "user": LimitKind.USER,
    "total": LimitKind.CLIENT_TOTAL,
}
BY_OF_KIND: Mapping[LimitKind, By] = {
    LimitKind.CLIENT: "client",
    LimitKind.USER: "user",
    LimitKind.CLIENT_TOTAL: "total",
}
TOO_MUCH = (
    "Too many statistics to read for a page: choose one client or a shorter time, or use the command line "
    "(flask oauth-ratelimit {command})."
)

NOT_BY_MINUTE = "Statistics are kept by the minute: the effect of a window that is not whole minutes is not known."


@dataclass(slots=True)
class Recorded:
    """Recorded requests of clients or users.

    Attributes:
        now_s: Time of the read, seconds since the epoch.
        loads: Requests by minute.
        over: Really denied requests, and those that would have been denied, by subject.
    """

    now_s: float
    loads: dict[Subject, dict[int, int]] = field(default_factory=dict)
    over: dict[Subject, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, context: OperatorContext, by: By, span_s: int, *, lead_s: int, client_id: str | None) -> "Recorded":
        """Return the requests of a span, and those of ``lead_s`` before it, which fill the first windows.

        Raises:
            ValueError: There are too many documents to read for a page.
        """
        found = cls(context.now_s)
        since_s = context.now_s - span_s
        if by == "user":
            minutes = minutes_of(context, since_s - lead_s, client_id, parts=("by", "users"), command="what-if")
            found.loads = loads(found._noting_over(minutes, since_s), by)
        else:
            found._read_sums(context, by, since_s, lead_s=lead_s, client_id=client_id)
        return found

    def _read_sums(
        self, context: OperatorContext, by: By, since_s: float, *, lead_s: int, client_id: str | None
    ) -> None:
        store = context.stores.statistics
        stored = client_id and storable_name(client_id)
        if store.count(since_s - lead_s, context.now_s, stored) > MAX_SUMMED:
            raise ValueError(TOO_MUCH.format(command="what-if"))
        kind: Kind | None = "client" if by == "client" else None
        for sums in store.sums(since_s - lead_s, context.now_s, step_s=MINUTE_S, client_id=stored, kind=kind):
            for name, *counts in zip(sums.client_ids, *sums.counts, strict=True):
                tally = Tally(*counts)
                if name != OTHER_CLIENTS and tally.trusted * 2 > tally.offered:
                    continue
                subject = Subject(name, None)
                if tally.offered > tally.trusted:
                    load = self.loads.setdefault(subject, {})
                    load[sums.start_s] = load.get(sums.start_s, 0) + tally.offered - tally.trusted
                if sums.start_s >= since_s:
                    self._note(subject, tally.denied, tally.would_deny)

    def _noting_over(self, minutes: Iterable[ClientMinute], since_s: float) -> Iterator[ClientMinute]:
        for minute in minutes:
            for user in minute.users if minute.minute_s >= since_s else ():
                self._note(Subject(minute.client_id, user.username), user.denied, user.would_deny)
            yield minute

    def _note(self, subject: Subject, denied: int, would_deny: int) -> None:
        if denied or would_deny:
            known_denied, known_would_deny = self.over.get(subject, (0, 0))
            self.over[subject] = known_denied + denied, known_would_deny + would_deny


def minutes_of(
    context: OperatorContext, since_s: float, client_id: str | None, *, parts: tuple[str, ...], command: str
) -> Iterator[ClientMinute]:
    """Return recorded minutes since a time.

    Raises:
        ValueError: There are too many documents to read for a page.
    """
    store = context.stores.statistics
    stored = client_id and storable_name(client_id)
    if store.count(since_s, context.now_s, stored) > MAX_READ:
        raise ValueError(TOO_MUCH.format(command=command))
    return store.minutes(since_s, context.now_s, stored, parts=parts)


@dataclass(frozen=True, slots=True)
class _Question:
    """Input of a what-if.

    Args:
        span: Name of the span.
        by: Requests that the limit counts.
        client_id: The client, None for all.
        window_minutes: Length of the window.
        limit: Hits per window.
    """

    span: str
    by: By
    client_id: str | None
    window_minutes: int
    limit: int


def what_if(cache: ReadCache, params: Params) -> object:
    """Return the approximate effect of a limit on the last hour, day or week.

    Starts from the present limit, and from the last day, or the last hour if a day is too much to read.
    """
    client_id = params.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)
    usual: By = "client"
    if client_id is not None and "by" not in params:
        source = client_use(cache, client_id).main_source
        usual = "user" if source is not None and source.kind == "user" else "client"
    by: By = choice(params, "by", get_args(By), usual)  # type: ignore[assignment]  # one of By's texts
    span = choice(params, "span", tuple(SPANS_S), "day")
    policies, present = cache.read_cached(
        ("present", by, client_id), lambda context: _present(context, by, client_id), ttl_s=TTL_S
    )
    tier = _tier(policies)
    window_minutes = whole(params, "window", default=tier[1] if tier else 1, highest=DAY_MINUTES)
    limit = whole(params, "limit", default=_limit_in(policies, window_minutes) or 100, highest=MAX_LIMIT)
    question = _Question(span, by, client_id, window_minutes, limit)
    try:
        recorded = _recorded(cache, question)
    except ValueError:
        if "span" in params:
            raise
        question = replace(question, span="hour")
        recorded = _recorded(cache, question)
    return {**_answer(question, recorded), "current": present, "override": _override(question, policies)}


def _recorded(cache: ReadCache, question: _Question) -> Recorded:
    """Return the requests that a question is about.

    Raises:
        ValueError: There are too many documents to read for a page.
    """
    span, by, client_id, lead_s = question.span, question.by, question.client_id, question.window_minutes * MINUTE_S
    return cache.read_cached(
        ("what-if", span, by, lead_s, client_id),
        lambda context: Recorded.read(context, by, SPANS_S[span], lead_s=lead_s, client_id=client_id),
        ttl_s=TTL_S,
    )


def _present(context: OperatorContext, by: By, client_id: str | None) -> tuple[tuple[Policy, ...], Record]:
    """Return the limits that apply now to a client, or by default."""
    kind, name = KIND_OF[by], UNCONFIGURED_CLIENT if client_id is None else client_id
    policies: tuple[Policy, ...] = getattr(context.policies.limits_at(name)[1], kind.value)
    data: Record = {
        "texts": limit_texts(kind, policies),
        "tiers": [
            {"policy": policy.name, "limit": policy.limit, "window_s": policy.window.window_s} for policy in policies
        ],
        "origin": origin_data(context.origins.of_limits(name, kind)),
    }
    return policies, data


def _tier(policies: tuple[Policy, ...]) -> tuple[Policy, int] | None:
    """Return the limit to start from and its window in minutes: the first with whole minutes."""
    for policy in policies:
        minutes, rest_s = divmod(policy.window.window_s, MINUTE_S)
        if not rest_s and minutes <= DAY_MINUTES:
            return policy, minutes
    return (policies[0], 1) if policies else None


def _limit_in(policies: tuple[Policy, ...], window_minutes: int) -> int | None:
    """Return the present limit in a window, converted from another window if there is none with this length."""
    window_s = window_minutes * MINUTE_S
    exact = [policy.limit for policy in policies if policy.window.window_s == window_s]
    converted = [max(1, policy.limit * window_s // policy.window.window_s) for policy in policies]
    return min(exact or converted, default=None)


def _answer(question: _Question, recorded: Recorded) -> Record:
    since_s = recorded.now_s - SPANS_S[question.span]
    window_minutes, limit = question.window_minutes, question.limit
    found = effects(recorded.loads, limit=limit, window_minutes=window_minutes, since_s=since_s)
    peaks = (window_peak(recorded.loads[effect.subject], window_minutes, since_s=since_s) for effect in found)
    return {
        "span": question.span,
        "by": question.by,
        "client_id": question.client_id,
        "window_s": window_minutes * MINUTE_S,
        "limit": limit,
        **effects_data(found),
        "recorded": _over_data(recorded.over.values()),
        "peaks": sorted(peaks, reverse=True)[:MAX_PEAKS],
        "bearers": [{**_effect_data(effect, recorded), "peak": effect.peak} for effect in found[:MAX_BEARERS]],
    }


def _effect_data(effect: Effect, recorded: Recorded) -> Record:
    return {**bearer_data(effect), "recorded": _over_data([recorded.over.get(effect.subject, (0, 0))])}


def _over_data(over: Iterable[tuple[int, int]]) -> Record:
    pairs = list(over)
    return {"denied": sum(denied for denied, _ in pairs), "would_deny": sum(would for _, would in pairs)}


def window_peak(load: Mapping[int, int], window_minutes: int, *, since_s: float) -> int:
    """Return the most requests in consecutive whole minutes of a window that ends after ``since_s``."""
    starts = sorted(load)
    peak = inside = first = 0
    for start_s in starts:
        inside += load[start_s]
        while starts[first] <= start_s - window_minutes * MINUTE_S:
            inside -= load[starts[first]]
            first += 1
        if start_s >= since_s:
            peak = max(peak, inside)
    return peak


def _override(question: _Question, policies: tuple[Policy, ...]) -> Record | None:
    """Return the form of an override with this limit. All other tiers stay. None unless a client is named."""
    if question.client_id is None:
        return None
    kind, window_s = KIND_OF[question.by], question.window_minutes * MINUTE_S
    tiers = [
        replace(policy, limit=question.limit) if policy.window.window_s == window_s else policy for policy in policies
    ]
    texts = limit_texts(kind, tiers) if tiers else []
    if all(policy.window.window_s != window_s for policy in policies):
        texts.append(rate_text(question.limit, window_s))
    return {"kind": "limit", "client_id": question.client_id, "limits": {kind.value: texts}}


def effect_in_span(
    context: OperatorContext, kind: LimitKind, policy: Policy, *, client_id: str | None, span_s: int
) -> Record:
    """Return the effect of a limit on recorded traffic.

    Raises:
        ValueError: The statistics do not tell it; the message says why.
    """
    window_minutes, rest_s = divmod(policy.window.window_s, MINUTE_S)
    if rest_s:
        raise ValueError(NOT_BY_MINUTE)
    recorded = Recorded.read(context, BY_OF_KIND[kind], span_s, lead_s=policy.window.window_s, client_id=client_id)
    since_s = context.now_s - span_s
    found = effects(recorded.loads, limit=policy.limit, window_minutes=window_minutes, since_s=since_s)
    return {
        "policy": policy.name,
        "kind": kind.value,
        **effects_data(found),
        "recorded": _over_data(recorded.over.values()),
        "top": [_effect_data(effect, recorded) for effect in found[:MAX_TOP] if effect.denied],
    }


def suggest_limits(cache: ReadCache, params: Params) -> object:
    """Return limits proposed from recorded traffic, of all clients or of one."""
    span = choice(params, "span", tuple(SPANS_S), "week")
    client_id = params.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)

    def read(context: OperatorContext) -> Record:
        traffic = Traffic(HOUR_S)
        since_s = context.now_s - SPANS_S[span]
        parts = ("by", "users", "lifetimes")
        for minute in minutes_of(context, since_s, client_id, parts=parts, command="suggest"):
            traffic.add_minute(minute)
        assumed_s = context.settings.statistics.token_lifetime_s or HOUR_S
        proposal = suggest(traffic, assumed_lifetime_s=assumed_s)
        if client_id is not None:
            proposal.suggestions = [replace(one, client_id=client_id) for one in proposal.suggestions]
        return {
            "span": span,
            "client_id": client_id,
            **proposal_data(proposal),
            "suggestions": [
                {**suggestion_data(one), "text": rate_text(one.limit, one.window_s)} for one in proposal.suggestions
            ],
        }

    return cache.read_cached(("suggest", span, client_id), read, ttl_s=SUGGEST_TTL_S)
