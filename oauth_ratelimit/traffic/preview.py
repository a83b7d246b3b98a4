"""Preview of a change of mode, trust or limits: what it does if clients go on as lately, in sentences."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.denial_record import Where
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, OnLimit, Policy, PolicySet
from oauth_ratelimit.core.statistics import HOUR_S, MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, WRITTEN_S, ClientMinute, Tally
from oauth_ratelimit.operations.changes import STAYS_OFF, amount_overrides, limits_of
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import (
    MAX_NAMED,
    counted,
    duration,
    listed,
    names_text,
    number,
    percent_text,
    quoted,
    typed_name,
    utc_time,
)
from oauth_ratelimit.operations.marks import last_change_s
from oauth_ratelimit.traffic.outlook import LONGEST, RECENT, ClientLoad, Outlook, read_load

CLEARLY = 0.1  # of the denials; less is no difference
UNCHANGED = "This applies already, so nothing changes."
ENDS = "This replaces the override by {author}, which {was}, with one that {now}."
NO_RECORD = "No requests are recorded in the last hour, so nobody knows whom this hits."
NO_LOAD = "No requests of the last ten full minutes are recorded, so nobody knows what this does."
ONLY_BEGUN = (
    "{requests} since {since}, none in the full minutes before, so nobody knows what this does. Ask again at {at}."
)
FIRST_MINUTE = "Records begin within the first of these minutes, so some of its requests may be missing."
CHANGED_WITHIN = "What was over a limit before the change at {at} was over the limit of then."
NOT_SUMMED_UP = "Some of that time is not summed up yet, so these numbers are too low."
TEMPLATE = Override(Target(OverrideKind.LIMIT, limit_kind=LimitKind.CLIENT), "", "", 0.0)
NOBODY = "In the last hour this would have hit nobody: no request that it concerns was over a limit."
TRIALS = "Some may only be over a limit that stays in a dry run of its own: {names}."
ELSEWHERE = (
    "No limit of tokens changes what is denied {place}, {count} per minute: see denials {client} --where {where}."
)
UNKNOWN = "A window is too short for what is recorded about when requests came: trust the bounds alone."


@dataclass(frozen=True, slots=True)
class Impact:
    lines: list[str]  # the impact in sentences
    # Amounts of further limits that would have to be raised, too, by kind and name
    proposal: dict[LimitKind, dict[str, int]] = field(default_factory=dict)


def impact_of(context: OperatorContext, overrides: Sequence[Override]) -> Impact:
    """Return the impact of overrides of one client, or of all."""
    ends = new_ends(context.overrides, overrides)
    impact = _impact_of(context, overrides, unchanged=[] if ends else [UNCHANGED])
    return replace(impact, lines=[*impact.lines, *ends])


def new_ends(present: Iterable[Override], overrides: Sequence[Override]) -> list[str]:
    """Return a sentence for each end that overrides change: those that they replace are gone then."""
    former = {each.target: each for each in present}
    pairs = ((former[each.target], each) for each in overrides if each.target in former)
    changed = (
        ENDS.format(author=old.author, was=_end_text(old), now=_end_text(new))
        for old, new in pairs
        if old.until_s != new.until_s
    )
    return list(dict.fromkeys(changed))


def _end_text(override: Override) -> str:
    return "has no end" if override.until_s is None else f"ends at {utc_time(override.until_s)}"


def _impact_of(context: OperatorContext, overrides: Sequence[Override], *, unchanged: list[str]) -> Impact:
    target, before = overrides[0].target, context.policies
    after = context.after(overrides).policies
    if context.settings.policies.mode is Mode.OFF and overrides[0].mode in (Mode.DRY_RUN, Mode.ENFORCE):
        return Impact([STAYS_OFF])
    if after == before:
        return Impact(unchanged)
    if target.kind is OverrideKind.MODE and (target.client_id is None or overrides[0].mode is Mode.ENFORCE):
        return Impact(_of_mode(context, after, target.client_id))
    if all(_only_reuses(before, override) for override in overrides):
        return Impact(_spared(context, target.client_id))
    if target.client_id is None:
        return Impact(list(_of_limits(context, after)))
    load = _load(context, target.client_id, after)
    impact = client_impact(load, after)
    if target.limit_kind is not None:
        impact.lines[:0] = _elsewhere(load)
    return impact


def _only_reuses(before: PolicySet, override: Override) -> bool:
    """Return True if an override changes nothing of the limits but ``on_limit``."""
    if override.target.limit_kind is None:
        return False
    present = getattr(limits_of(before, override.target.client_id), override.target.limit_kind)
    one, other = ([each._replace(on_limit=OnLimit.DENY) for each in limits] for limits in (present, override.policies))
    return one == other


def _spared(context: OperatorContext, client_id: str | None) -> list[str]:
    tallies, notes = _tallies(context, client_id, HOUR_S)
    tally = sum(tallies.values(), NO_REQUESTS)
    if not tally.over:
        return [NOBODY, *notes]
    share = percent_text((tally.would_reuse + tally.reused) / tally.over)
    reused = f" {tally.reused:,} got it again already." if tally.reused else ""
    spared = f"In the last hour reuse would have spared {share} of {counted(tally.over, 'request')} over a limit"
    return [f"{spared}: the client had a token that was still valid.{reused}", *notes]


def _load(context: OperatorContext, client_id: str, after: PolicySet) -> ClientLoad:
    is_enforced = _denied_grants(context.policies, client_id) or _denied_grants(after, client_id)
    return read_load(context, client_id, is_trial=not is_enforced)


def client_impact(load: ClientLoad, after: PolicySet) -> Impact:
    """Return the impact of other policies on a client that goes on as lately."""
    if not load.offered or _is_sudden(load):
        return Impact([_unknown(load)])
    unchanged, changed = load.outlook(load.policies), load.outlook(after)
    lines = [
        f"{_recorded(load)} {unchanged.verb}. Unchanged: {_text(unchanged)}.",
        f"{verdict_of(unchanged, changed)} With this change: {_text(changed)}.",
        *([FIRST_MINUTE] if load.is_first else []),
    ]
    proposal = _proposal(load, after) if changed.judged.by_policy else {}
    if proposal:
        raised = apply_overrides(after, amount_overrides(after, load.client_id, proposal, TEMPLATE))
        met = load.met(raised)
        policies = [met[name][1] for amounts in proposal.values() for name in amounts]
        texts = sorted(f"{each.name} at {rate_text(each.limit, each.window.window_s)}" for each in policies)
        lines.append(f"With {' and '.join(texts)}: {_text(load.outlook(raised))}.")
    if not (unchanged.judged.is_known and changed.judged.is_known):
        lines.append(UNKNOWN)
    return Impact([*lines, *_left_out(load.met(after))], proposal)


def _is_sudden(load: ClientLoad) -> bool:
    """Return True if denials have begun after the last full minute, whose load says nothing of them."""
    return load.over(load.begun) > CLEARLY * _offered(load.begun) and not load.over(load.minutes)


def _offered(minutes: Sequence[ClientMinute]) -> int:
    return sum(minute.tally().offered for minute in minutes)


def _unknown(load: ClientLoad) -> str:
    offered = _offered(load.begun)
    if not offered:
        return NO_LOAD
    since, at = (utc_time(load.begun[0].minute_s + after_s) for after_s in (0, MINUTE_S + WRITTEN_S))
    over = f"{load.over(load.begun):,} of " if load.offered else ""
    requests = f"{over}{counted(offered, 'request')}{' were over a limit' if over else ''}"
    return ONLY_BEGUN.format(requests=requests, since=since, at=at)


def _recorded(load: ClientLoad) -> str:
    """Return what was denied in full minutes: if a change was in them, in those after it, else before it."""
    after = [minute for minute in load.minutes if minute.minute_s >= load.changed_s]
    minutes, count = after or load.minutes, len(after or load.minutes)
    recorded = sum((minute.tally() for minute in minutes), NO_REQUESTS)
    order = "" if len(after) == len(load.minutes) else f", {'since' if after else 'before'} the last change"
    span = f"In the last {counted(count, 'minute').removeprefix('1 ')}{order}"
    return f"{span}: {number(load.over(minutes) / count)} of {number(recorded.offered / count)} requests per minute"


def verdict_of(unchanged: Outlook, changed: Outlook) -> str:
    """Return what a change does, by the share of the denials that stay."""
    was, now = unchanged.denied, changed.denied
    if not (was or now):
        bursts = f", unless requests come in denser bursts: up to {number(changed.at_most)} per minute"
        return f"Nobody is denied either way{bursts if changed.at_most else ''}."
    if now > was * (1 + CLEARLY):
        return f"This denies more: {_who(changed)} {number(now)} per minute."
    still = f"{_who(changed, 'still ')} {number(now)}"
    if now <= was * CLEARLY:
        return "This helps."
    if now <= was * 0.5:
        return f"This helps in part: {still} of {number(was)} per minute."
    if now <= was * (1 - CLEARLY):
        return f"This hardly helps: {still} of {number(was)} per minute."
    return f"This does not help: {still} per minute."


def _who(outlook: Outlook, still: str = "") -> str:
    """Return the limits that deny, most first, with the verb."""
    names = list(outlook.judged.by_policy) or ["a limit"]
    verb = f"would {still}deny" if outlook.is_trial else f"{still}{'deny' if len(names) > 1 else 'denies'}"
    return f"{' and '.join(names)} {verb}"


def _text(outlook: Outlook) -> str:
    within = f"{outlook.verb} in the next {duration(outlook.length * MINUTE_S)}"
    if not outlook.at_most:
        return f"none {within}"
    if not outlook.denied:
        return f"none {within}, but up to {number(outlook.at_most)} per minute if they come in bursts"
    bounds = f"{number(outlook.at_least)} to {number(outlook.at_most)}"
    over = "".join(f", over the limit {name} {_start_text(outlook, name)}" for name in outlook.judged.by_policy)
    return f"about {number(outlook.denied)} per minute {within} ({bounds}){over}"


def _start_text(outlook: Outlook, policy: str) -> str:
    first_s = outlook.judged.first_s[policy]
    return (
        f"from {datetime.fromtimestamp(first_s, UTC):%H:%M} UTC" if first_s >= outlook.begin_s + MINUTE_S else "at once"
    )


def _proposal(load: ClientLoad, policies: PolicySet) -> dict[LimitKind, dict[str, int]]:
    _, limits = policies.limits_at(load.client_id)
    limits = limits._replace(user_total=())  # no client can have another amount
    found: dict[LimitKind, dict[str, int]] = {}
    for name, (kind, met) in load.met(policies).items():
        amount = load.needed(kind, met)
        if amount > met.limit and any(policy.name == name for policy in getattr(limits, kind)):
            found.setdefault(kind, {})[name] = amount
    return found


def _left_out(met: Mapping[str, tuple[LimitKind, Policy]]) -> Iterator[str]:
    if any(policy.on_limit is OnLimit.REUSE for _, policy in met.values()):
        yield "Requests that get a token again (on_limit: reuse) are counted as denied here."
    for name, (_, policy) in met.items():
        if policy.window.window_s > LONGEST * MINUTE_S:
            yield f"What {name} denies after {duration(LONGEST * MINUTE_S)} is not known: its window is longer."


def _elsewhere(load: ClientLoad) -> Iterator[str]:
    """Yield where else the client is denied, if it is not by limits of the token endpoint."""
    tallies = Counter[str]()
    for minute in load.minutes:
        for source, tally in minute.tallies.items():
            tallies[Where.TOKEN if source.is_token else source.grant.partition(":")[0]] += tally.denied
    where, denied = max(tallies.items(), key=itemgetter(1), default=("", 0))
    if denied and not tallies[Where.TOKEN]:
        place = "by the guard" if where == Where.GUARD else "at other endpoints"
        count = number(denied / len(load.minutes))
        yield ELSEWHERE.format(place=place, count=count, client=typed_name(load.client_id), where=where)


def _of_limits(context: OperatorContext, after: PolicySet) -> Iterator[str]:
    """Yield the impact on those of all clients that were most over a limit lately, then on the busiest."""
    before, (tallies, _) = context.policies, _tallies(context, None, RECENT * MINUTE_S)
    changed = [each for each in tallies if before.limits_at(each) != after.limits_at(each)]
    changed.sort(key=lambda each: (-tallies[each].over, -tallies[each].offered, each))
    for client_id in changed[:MAX_NAMED]:
        impact = client_impact(_load(context, client_id, after), after)
        yield f"{quoted(client_id)}: {' '.join(impact.lines)}"
    if len(changed) > MAX_NAMED:
        yield f"{counted(len(changed) - MAX_NAMED, 'client')} with less traffic not forecast."
    elif not changed:
        yield NO_LOAD


def _tallies(context: OperatorContext, client_id: str | None, span_s: float) -> tuple[dict[str, Tally], list[str]]:
    """Return the requests of each client, or of one, and what to note about them."""
    totals = context.stores.rollups.rows(context.now_s - span_s, context.now_s)
    tallies = {total.client_id: total.tally for total in totals.clients if total.client_id != OTHER_CLIENTS}
    if client_id is not None:
        stored = storable_name(client_id)
        tallies = {stored: tallies[stored]} if stored in tallies else {}
    changed_s = last_change_s(context, client_id)
    changes = [CHANGED_WITHIN.format(at=utc_time(changed_s))] if changed_s > context.now_s - span_s else []
    return tallies, [*([NOT_SUMMED_UP] if totals.missing else []), *changes]


def _of_mode(context: OperatorContext, after: PolicySet, client_id: str | None) -> list[str]:
    """Return whom another mode would have denied, or spared. Counted, not computed: a dry run counts as enforcing."""
    (tallies, notes), before = _tallies(context, client_id, HOUR_S), context.policies
    offered = sum(tally.offered for tally in tallies.values())
    if not offered:
        return [NO_RECORD, *notes]
    pairs = {name: [_denied_grants(each, client_id or name) for each in (before, after)] for name in tallies}
    begins = any(new - old for old, new in pairs.values())
    grants = {name: new - old if begins else old - new for name, (old, new) in pairs.items()}
    changed = {
        name: _of_grants(context, client_id or name, grants[name], tally)
        for name, tally in tallies.items()
        if tally.over
    }
    hit = sorted((name for name in changed if changed[name].over), key=lambda name: (-changed[name].over, name))
    if not hit:
        return [NOBODY, *notes]
    over, clients = sum(changed[name].over for name in hit), counted(len(tallies), "client")
    verb = "denied" if begins else "spared"
    title = f"In the last hour this would have {verb} {over:,} of {counted(offered, 'request')}"
    lines = [f"{quoted(name)}: {changed[name].over:,} of {counted(tallies[name].offered, 'request')}" for name in hit]
    named = [f"  {line}" for line in names_text(lines, at_most=MAX_NAMED)]
    spared = sum(changed[name].would_reuse + changed[name].reused for name in hit if after.may_reuse(client_id or name))
    if spared:
        named.append(f"Of these, on_limit: reuse would have answered {spared:,} with the token that the client had.")
    limits = chain.from_iterable(chain(*after.limits_at(client_id or name)[1]) for name in hit)
    if trials := sorted({policy.name for policy in limits if policy.mode is Mode.DRY_RUN}):
        named.append(TRIALS.format(names=listed(trials)))
    return [f"{title}, of {len(hit):,} of {clients}:", *named, *notes]


def _denied_grants(policies: PolicySet, client_id: str) -> set[str | None]:
    """Return the grant types whose requests are denied over a limit; None is for all that are not counted apart."""
    found = {name: policies.matching(client_id, grant_type=name) for name in (None, *policies.grants_of(client_id))}
    return {name for name, matched in found.items() if matched.mode is Mode.ENFORCE and not matched.trusted}


def _of_grants(context: OperatorContext, client_id: str, grants: set[str | None], tally: Tally) -> Tally:
    """Return the requests of some grant types, of a client with this tally in the last hour."""
    known = context.policies.grants_of(client_id)
    if not grants or len(grants) > len(known):
        return tally if grants else NO_REQUESTS
    minutes = context.minutes(context.now_s - HOUR_S, client_id, parts=("by",))
    parts = [part for minute in minutes for part in minute.tallies.items() if part[0].is_token]
    found = (part for source, part in parts if (source.grant if source.grant in known else None) in grants)
    return sum(found, NO_REQUESTS)
