"""Impact of a change of mode, trust or limits before it is made: sentences for the terminal and the admin page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, OnLimit, PolicySet
from oauth_ratelimit.core.statistics import HOUR_S, MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, Tally
from oauth_ratelimit.operations.changes import amount_overrides, limits_of
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, duration, percent_text
from oauth_ratelimit.operations.summary import names_text
from oauth_ratelimit.traffic.forecast import LONGEST, RECENT, Forecaster, Outlook, forecaster_of

MAX_NAMED = 5
CLEARLY = 0.9  # times as many, or fewer, is a difference
UNCHANGED = "This applies already, so nothing changes."
NO_RECORD = "No requests are recorded in the last hour, so nobody knows whom this hits."
NO_LOAD = "No requests of the last ten full minutes are recorded, so nobody knows what this does."
NOT_SUMMED_UP = "Some of that time is not summed up yet, so these numbers are too low."
TEMPLATE = Override(Target(OverrideKind.LIMIT, limit_kind=LimitKind.CLIENT), "", "", 0.0)
NOBODY = "In the last hour this would have hit nobody: no request that it concerns was over a limit."
TRIALS = "Some may only be over a limit that stays in a dry run of its own: {names}."


@dataclass(frozen=True, slots=True)
class Impact:
    lines: list[str]  # the impact in sentences
    # Amounts of further limits that would have to be raised, too, by kind and name
    proposal: dict[LimitKind, dict[str, int]] = field(default_factory=dict)


def impact_of(context: OperatorContext, overrides: Sequence[Override]) -> Impact:
    """Return the impact of overrides of one client, or of all."""
    target, before = overrides[0].target, context.policies
    targets = {override.target for override in overrides}
    kept = [override for override in context.overrides if override.target not in targets]
    after = apply_overrides(context.settings.policies, [*kept, *overrides])
    if after == before:
        return Impact([UNCHANGED])
    if target.kind is OverrideKind.MODE and (target.client_id is None or overrides[0].mode is Mode.ENFORCE):
        return Impact(_of_mode(context, after, target.client_id))
    if all(_only_reuses(before, override) for override in overrides):
        return Impact(_spared(context, target.client_id))
    if target.client_id is None:
        return Impact(list(_of_limits(context, after)))
    return client_impact(_forecaster(context, target.client_id, after), target.client_id, before, after)


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
    spared = f"In the last hour reuse would have spared {share} of {counted(tally.over, 'denial')}"
    return [f"{spared}: the client had a token that was still valid.{reused}", *notes]


def _forecaster(context: OperatorContext, client_id: str, after: PolicySet) -> Forecaster:
    is_enforced = _denied_grants(context.policies, client_id) or _denied_grants(after, client_id)
    return forecaster_of(context, client_id, counts_dry_run=not is_enforced)


def client_impact(forecaster: Forecaster, client_id: str, before: PolicySet, after: PolicySet) -> Impact:
    """Return the impact of other policies on a client that goes on as lately."""
    if not forecaster.offered:
        return Impact([NO_LOAD])
    verb = "would be denied" if forecaster.counts_dry_run else "denied"
    unchanged, changed = forecaster.outlook(before), forecaster.outlook(after)
    recorded, minutes = forecaster.recorded, counted(forecaster.minute_count, "minute")
    over = recorded.over if forecaster.counts_dry_run else recorded.denied + recorded.reused
    lines = [
        f"In the last {minutes.removeprefix('1 ')}: {_amount(over / forecaster.minute_count)} of "
        f"{_amount(forecaster.offered)} requests per minute {verb}. Unchanged: {_text(unchanged, verb)}.",
        f"{_judgement(unchanged, changed)} With this change: {_text(changed, verb)}.",
    ]
    proposal = _proposal(forecaster, client_id, after) if changed.first_s else {}
    if proposal:
        raised = apply_overrides(after, amount_overrides(after, client_id, proposal, TEMPLATE))
        names = {name for amounts in proposal.values() for name in amounts}
        met = forecaster.met(raised)
        rates = [rate_text(met[name][1].limit, met[name][1].window.window_s) for name in names]
        texts = [f"{name} at {rate}" for name, rate in zip(names, rates, strict=True)]
        lines.append(f"With {' and '.join(sorted(texts))}: {_text(forecaster.outlook(raised), verb)}.")
    return Impact([*lines, *_unknown(forecaster, after)], proposal)


def _proposal(forecaster: Forecaster, client_id: str, policies: PolicySet) -> dict[LimitKind, dict[str, int]]:
    _, limits = policies.limits_at(client_id)
    found: dict[LimitKind, dict[str, int]] = {}
    for name, (kind, met) in forecaster.met(policies).items():
        amount = forecaster.needed(kind, met)
        if amount > met.limit and any(policy.name == name for policy in getattr(limits, kind)):
            found.setdefault(kind, {})[name] = amount
    return found


def _unknown(forecaster: Forecaster, policies: PolicySet) -> Iterator[str]:
    """Yield what recorded minutes cannot say."""
    met = forecaster.met(policies)
    if any(policy.on_limit is OnLimit.REUSE for _, policy in met.values()):
        yield "Requests that get a token again (on_limit: reuse) are counted as denied here."
    for name, (_, policy) in met.items():
        window_s = policy.window.window_s
        if window_s < MINUTE_S:
            yield (
                f"What {name} denies depends on bursts within {duration(window_s)}, which recorded minutes do not "
                f"show: the bounds are those of even requests and of the densest recorded second."
            )
        elif window_s > LONGEST * MINUTE_S:
            yield f"What {name} denies after {duration(LONGEST * MINUTE_S)} is not known: its window is longer."


def _judgement(unchanged: Outlook, changed: Outlook) -> str:
    """Return whether a change helps. It does only if it does so however requests are spread within a minute."""
    pairs = list(zip(unchanged.ways, changed.ways, strict=True))
    helps = [now < CLEARLY * was for was, now in pairs]
    if all(helps):
        return "This helps."
    if all(was < CLEARLY * now for was, now in pairs):
        return "This denies more."
    if not any(helps):
        return "This does not help." if any(changed.ways) else "Nobody is denied either way."
    return "This may help: it depends on when within a minute requests come, which is not recorded."


def _text(outlook: Outlook, verb: str) -> str:
    within = f"in the next {duration(outlook.length * MINUTE_S)}"
    if not outlook.at_most:
        return f"none {verb} {within}"
    if not outlook.denied:
        return f"none {verb} {within}, but up to {_amount(outlook.at_most)} per minute if they come in bursts"
    bounds = f"{_amount(outlook.at_least)} to {_amount(outlook.at_most)}"
    starts = [(name, datetime.fromtimestamp(at_s, UTC)) for name, at_s in outlook.first_s.items()]
    over = "".join(f", over the limit {name} from {start:%H:%M} UTC" for name, start in starts)
    return f"about {_amount(outlook.denied)} per minute {verb} {within} ({bounds}){over}"


def _amount(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 10 or per_minute == int(per_minute) else f"{per_minute:.1f}"


def _of_limits(context: OperatorContext, after: PolicySet) -> Iterator[str]:
    """Yield the impact on those of all clients that were most over a limit lately, then on the busiest."""
    before, (tallies, _) = context.policies, _tallies(context, None, RECENT * MINUTE_S)
    changed = [each for each in tallies if before.limits_at(each) != after.limits_at(each)]
    changed.sort(key=lambda each: (-tallies[each].over, -tallies[each].offered, each))
    for client_id in changed[:MAX_NAMED]:
        impact = client_impact(_forecaster(context, client_id, after), client_id, before, after)
        yield f"{client_id}: {' '.join(impact.lines)}"
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
    return tallies, [NOT_SUMMED_UP] if totals.missing else []


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
    lines = [f"{name}: {changed[name].over:,} of {counted(tallies[name].offered, 'request')}" for name in hit]
    named = [f"  {line}" for line in names_text(lines, at_most=MAX_NAMED)]
    spared = sum(changed[name].would_reuse + changed[name].reused for name in hit if _reuses(after, client_id or name))
    if spared:
        named.append(f"Of these, on_limit: reuse would have answered {spared:,} with the token that the client had.")
    limits = chain.from_iterable(chain(*after.limits_at(client_id or name)[1]) for name in hit)
    if trials := sorted({policy.name for policy in limits if policy.mode is Mode.DRY_RUN}):
        named.append(TRIALS.format(names=", ".join(names_text(trials, at_most=MAX_NAMED))))
    return [f"{title}, of {len(hit):,} of {clients}:", *named, *notes]


def _reuses(policies: PolicySet, client_id: str) -> bool:
    _, limits = policies.limits_at(client_id)
    return any(policy.on_limit is OnLimit.REUSE for policy in (*limits.client, *limits.client_total))


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
