"""What the page asks for, as plain data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import get_args

from oauth_ratelimit.admin.cache import Question, ReadCache
from oauth_ratelimit.admin.traffic import traffic
from oauth_ratelimit.config.models import GRANT_TYPES
from oauth_ratelimit.core.denial_record import parse_decision_id
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.policy import MAX_LIMIT, TOKEN_ENDPOINT, LimitKind, Limits, Policy
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Loads, effects, loads
from oauth_ratelimit.counters.client_state import CLIENT_TOTAL
from oauth_ratelimit.counters.usage import UsageReader
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import LimitExplanation
from oauth_ratelimit.operations.format import policy_text, utc_time
from oauth_ratelimit.operations.serialize import (
    Record,
    bearer_data,
    denial_data,
    effects_data,
    entry_data,
    origin_data,
    override_data,
    tally_data,
    usage_data,
)
from oauth_ratelimit.operations.status import Status, nearest_to_limit
from oauth_ratelimit.operations.suggestions import known_client_ids
from oauth_ratelimit.report.findings import ClientFinding, find
from oauth_ratelimit.report.letter import Span, letter_to, observations
from oauth_ratelimit.store.base import Snapshot

SPANS = {"hour": 3600, "day": 86_400, "week": 604_800}
WINDOW_MINUTES = (1, 5, 10, 15, 30, 60, 360, 1440)
MAX_READ = 30_000  # documents, about half a second; there is no sample, because windows need every minute
RECORDED_KEPT_S = 20.0  # what was recorded; only the limit is another when the slider moves
SHOWN = 50
BY: dict[LimitKind, By] = {LimitKind.CLIENT: "client", LimitKind.USER: "user", LimitKind.CLIENT_TOTAL: "total"}


def what_if(readings: ReadCache, question: Question) -> object:
    """Return what a limit would have done in the last hour, day or week, about."""
    span = _one_of(question, "span", tuple(SPANS), "day")
    by: By = _one_of(question, "by", get_args(By), "client")  # type: ignore[assignment]
    window_minutes = int(_one_of(question, "window", tuple(map(str, WINDOW_MINUTES)), "1"))
    limit = _limit(question.get("limit", "100"))
    client_id = question.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)
    now_s, found = readings.read_once(
        ("what-if", span, by, window_minutes, client_id),
        lambda context: (
            context.now_s,
            _loads(context, by, SPANS[span] + window_minutes * MINUTE_S, client_id=client_id),
        ),
        keep_s=RECORDED_KEPT_S,
    )
    told = effects(found, limit=limit, window_minutes=window_minutes, since_s=now_s - SPANS[span])
    return {
        "limit": limit,
        "window_s": window_minutes * MINUTE_S,
        "by": by,
        "span_s": SPANS[span],
        # What nobody can have exceeded, were all minutes like the busiest: the end of the slider. One minute more than
        # the window has, because it may begin within one.
        "highest": max([1, *(effect.peak * (window_minutes + 1) for effect in told)]),
        **effects_data(told),
        "bearers": [{**bearer_data(effect), "peak": effect.peak} for effect in told[:SHOWN]],
    }


def past_of(context: OperatorContext, kind: LimitKind, policy: Policy, *, client_id: str | None) -> Record | None:
    """Return what a limit would have done in the last day; None if the statistics cannot tell."""
    window_minutes, rest_s = divmod(policy.window.window_s, MINUTE_S)
    if rest_s:
        return None
    try:
        found = _loads(context, BY[kind], SPANS["day"] + policy.window.window_s, client_id=client_id)
    except ValueError:
        return None
    since_s = context.now_s - SPANS["day"]
    told = effects(found, limit=policy.limit, window_minutes=window_minutes, since_s=since_s)
    return {"policy": policy.name, "kind": kind.value, **effects_data(told)} if told else None


def _loads(context: OperatorContext, by: By, span_s: int, *, client_id: str | None) -> Loads:
    """Return what was offered.

    Raises:
        ValueError: It is too much to read for a page.
    """
    store, since_s = context.stores.statistics, context.now_s - span_s
    stored = client_id and storable_name(client_id)
    if store.count(since_s, context.now_s, stored) > MAX_READ:
        raise ValueError(
            "There is too much to read for a page: choose one client or a shorter time, or ask the command line "
            "(flask oauth-ratelimit what-if)."
        )
    parts = ("by", "users") if by == "user" else ("by",)
    return loads(store.minutes(since_s, context.now_s, stored, parts=parts), by)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and 1 <= int(text) <= MAX_LIMIT):
        raise ValueError(f"limit: a whole number from 1 to {MAX_LIMIT}, got {text[:40]!r}")
    return int(text)


def _one_of(question: Question, name: str, allowed: Sequence[str], default: str) -> str:
    value = question.get(name, default)
    if value not in allowed:
        raise ValueError(f"{name}: one of {', '.join(allowed)}, got {value[:40]!r}")
    return value


SPAN_S = 86_400  # of one client, so at most 1,440 documents
HEAVIEST_SHOWN = 5


def habits(readings: ReadCache, question: Question) -> object:
    """Return what a client has done in the last day."""
    client_id = checked_client_id(question.get("id", ""))
    return readings.read_once(
        ("habits", client_id), lambda context: _habits(context, client_id), keep_s=RECORDED_KEPT_S
    )


def _habits(context: OperatorContext, client_id: str) -> Record:
    settings = context.settings
    store, stored = context.stores.statistics, storable_name(client_id)
    minutes = store.minutes(context.now_s - SPAN_S, context.now_s, stored)
    found = find(minutes, token_lifetime_s=settings.statistics.token_lifetime_s)
    if not found:
        return {"span_s": SPAN_S, "offered": 0}
    (finding,) = found
    span = Span(context.now_s - SPAN_S, context.now_s, settings.statistics.token_lifetime_s)
    letter = letter_to(finding, span, error_uri=settings.denial.error_uri) if finding.faults else None
    return {
        **_numbers(finding),
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
            for user in finding.total.heaviest(HEAVIEST_SHOWN)
        ],
    }


def _numbers(finding: ClientFinding) -> Record:
    total, requests = finding.total, finding.total.tally()
    busiest_count, busiest_s = total.busiest
    return {
        "span_s": SPAN_S,
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


Look = Callable[[ReadCache, Question], object]

KEPT_S = 2.0  # what pages that are open beside each other are told the same of
TOP_READ = 5000  # documents, about a tenth of a second
TOP_SHOWN = 20
NAMES_KEPT_S = 60.0  # what a mistyped name is compared with takes some thousand documents to read
BUSY_S = 180
USERS_SHOWN = 50
HISTORY_SHOWN = 200


def status(readings: ReadCache, question: Question) -> object:
    """Return the mode, the canary, the default limits, the database and the instances."""
    return readings.read_once("status", _status, keep_s=KEPT_S)


def _status(context: OperatorContext) -> Record:
    policies = context.policies
    return {
        "now_s": context.now_s,
        **Status(context).data(),
        "trusted": policies.trusted,
        "own_rules_count": len(policies.clients),
        "limits": limits_data(policies.limits),
        "sync_interval_s": context.settings.sync.interval_s,
    }


def limits_data(limits: Limits) -> Record:
    """Return limits, by what they count."""
    return {kind.value: [policy_text(policy) for policy in getattr(limits, kind.value)] for kind in LimitKind}


def top(readings: ReadCache, question: Question) -> object:
    """Return who is nearest to a limit."""
    return readings.read_once("top", _top, keep_s=KEPT_S)


def _top(context: OperatorContext) -> Record:
    documents = dict(context.stores.documents.latest(context.now_s, TOP_READ))
    read_count = len(documents)
    if read_count == TOP_READ:
        busy = [key for key in _busy(context) if key not in documents]
        documents |= context.stores.documents.of_keys(busy[:TOP_READ])
    return {
        "rows": _fullest(context, documents.items(), TOP_SHOWN),
        "read_count": read_count,
        "is_complete": read_count < TOP_READ,
    }


def _busy(context: OperatorContext) -> Iterator[Key]:
    """Yield who was busy in the last minutes, of each client itself and its heaviest users.

    For where not every document can be read: those with long windows come first there, and those that are busy now,
    in a short one, might be missing.
    """
    minutes = context.stores.statistics.minutes(context.now_s - BUSY_S, context.now_s, parts=("users",))
    keys: dict[Key, None] = {}
    for minute in islice(minutes, TOP_READ):
        keys |= {Key(minute.client_id, None): None, Key(minute.client_id, None, CLIENT_TOTAL): None}
        keys |= dict.fromkeys(Key(minute.client_id, user.username) for user in minute.users)
    yield from keys


def _fullest(context: OperatorContext, documents: Iterable[tuple[Key, Snapshot]], count: int) -> list[Record]:
    """Return those that have used up most of a limit, each with the limit that it is nearest to."""
    usages = UsageReader(context.policies)
    each = (nearest_to_limit(usages.of(key, snapshot, context.now_s), 1) for key, snapshot in documents)
    counted = (usage for first in each for usage in first if usage.estimate > 0)
    return [usage_data(usage) for usage in nearest_to_limit(counted, count)]


def client(readings: ReadCache, question: Question) -> object:
    """Return how a request of a client would be decided, and why; and which of its users are nearest to a limit."""
    client_id = checked_client_id(question.get("id", ""))
    username = question.get("user") or None
    grant = question.get("grant") or None
    endpoint = question.get("endpoint") or TOKEN_ENDPOINT

    def known() -> set[str]:
        return readings.read_once("known-clients", known_client_ids, keep_s=NAMES_KEPT_S)

    def look(context: OperatorContext) -> Record:
        case = LimitExplanation(
            context, client_id, username=username, grant_type=GRANT_TYPES.get(grant or "", grant), endpoint=endpoint
        )
        documents = list(context.stores.documents.of_client(storable_name(client_id), at_most=TOP_READ))
        rules, plan = context.policies.rules_of(client_id)
        return {
            **case.data(known_ids=known),
            "canary": case.canary,
            "plan": rules.plan,
            "grants": sorted({*context.policies.grants, *plan.grants, *rules.grants}),
            "endpoints": list(context.policies.endpoints),
            "limit_origins": {
                kind.value: origin_data(context.origins.of_limits(client_id, kind)) for kind in LimitKind
            },
            "limits_now": limits_data(context.policies.limits_at(client_id)[1]),
            "users": _fullest(context, documents, USERS_SHOWN),
            "are_users_complete": len(documents) < TOP_READ,
            "overrides": [override_data(each) for each in context.overrides if each.target.client_id == client_id],
        }

    return readings.read(look)


def overrides(readings: ReadCache, question: Question) -> object:
    """Return what is overridden, and all that ever was, the latest first."""

    def look(context: OperatorContext) -> Record:
        history = context.stores.overrides.history()
        return {
            "overrides": list(map(override_data, context.overrides)),
            "history": list(map(entry_data, reversed(history[-HISTORY_SHOWN:]))),
            "history_count": len(history),
        }

    return readings.read(look)


def denial(readings: ReadCache, question: Question) -> object:
    """Return the denial with a decision id; nothing of it if it is not known."""
    number = parse_decision_id(question.get("decision", "").strip().lower())

    def look(context: OperatorContext) -> Record:
        record = context.stores.denials.find(number)
        kept_s = context.settings.events.keep_denials_s
        return {"kept_s": kept_s, "denial": record and denial_data(record, number - record.denial.first_id)}

    return readings.read(look)


LOOKS: Mapping[str, Look] = {
    "status": status,
    "top": top,
    "client": client,
    "overrides": overrides,
    "traffic": traffic,
    "habits": habits,
    "denial": denial,
    "what-if": what_if,
}
