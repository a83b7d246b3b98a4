"""Changes through the page: what an operator sent, preview, apply and remove overrides, and what followed."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from oauth_ratelimit.admin.cache import Params, Reading, client_or_all, whole
from oauth_ratelimit.admin.client import client
from oauth_ratelimit.admin.present import change_delay_s, read_minutes
from oauth_ratelimit.config.errors import Problems, show
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.policies import CLIENT_ID
from oauth_ratelimit.config.types import choice, map_of, or_null, text
from oauth_ratelimit.config.types import whole as whole_number
from oauth_ratelimit.core.key import logged_name, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind, Limits, OnLimit
from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, NOT_TOKEN
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import (
    MAX_TEXT_LENGTH,
    amount_overrides,
    check_obeyed,
    end_after,
    limits_of,
    notes_on_mode,
)
from oauth_ratelimit.operations.context import OperatorContext, unknown_client_hint
from oauth_ratelimit.operations.denial_run import last_runs, source_text
from oauth_ratelimit.operations.explain import LimitExplanation
from oauth_ratelimit.operations.format import Record, duration, enforces, number, short
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.traffic.preview import impact_of, new_ends

log = get_logger(__name__)

BUSY = "Another preview is being computed in this process. Try again in some seconds."
IN_DRY_RUN = "A dry run applies already, so nobody is denied. With this it stays one when the configuration enforces."
MAX_OUTCOME_S = 600.0

_computing = threading.Lock()  # held while one preview is computed
_applying = threading.Lock()  # held while a change is compared with those that apply, and applied

EXAMPLE = "; for example "  # a line of a configuration file, which would be wrong in a field
REPEATED_S = 60.0  # the same form so soon afterwards is a second click
USER = text("a name", longest=MAX_TEXT_LENGTH)
REUSING = (LimitKind.CLIENT, LimitKind.CLIENT_TOTAL)  # kinds of limits that can give out a token again

Body = Mapping[str, Any]

FIELDS = {
    "kind": choice(OverrideKind),
    "client_id": or_null(CLIENT_ID),  # null is everybody
    "limit_kind": choice(LimitKind),
    "limits": map_of(choice(LimitKind), map_of(text(), whole_number(1, MAX_LIMIT))),  # amounts by name
    "reason": text(
        f"1 to {MAX_TEXT_LENGTH} characters, which the history keeps", pattern=r"\S", longest=MAX_TEXT_LENGTH
    ),
}


class Form:
    """Body of an operator's request, parsed field by field as values of a configuration are."""

    def __init__(self, body: Body) -> None:
        self._body, self.problems = body, Problems()
        self.kind, self.client_id = self.field("kind"), self.field("client_id")
        if self.kind is OverrideKind.TRUSTED and body.get("client_id") is None:
            self.problems.add("client_id", "name a client: trusting everybody is mode off")
        self.reason = (self.field("reason") or "").strip()

    def field(self, name: str) -> Any:
        """Return the parsed value of a field; None after an error, which is kept."""
        return FIELDS[name].parse(self._body.get(name), name, self.problems)

    def end_s(self, now_s: float) -> float | None:
        try:
            return end_after(str(self._body["for"]), now_s=now_s) if self._body.get("for") else None
        except ValueError as exc:
            self.problems.add("for", str(exc))
            return None

    def raise_errors(self) -> None:
        if self.problems:
            raise self.problems.error(source="form")


def errors_by_field(error: ConfigError) -> list[dict[str, str]]:
    """Return what is wrong with fields such as ``reason`` or ``limits.user.burst``, and what is allowed."""
    parts = (problem.partition(EXAMPLE)[0].partition(": ") for problem in error.problems)
    return [{"field": path, "text": allowed} for path, _, allowed in parts]


def read_overrides(context: OperatorContext, body: Body, *, operator: str) -> list[Override]:
    """Return the overrides that a form describes, or raise ``ConfigError`` with all errors.

    If the operator has sent the same form a moment ago, they are those that it has made.
    """
    form, found = Form(body), list[Override]()
    made = (operator, form.reason, context.now_s, form.end_s(context.now_s))
    if form.kind is OverrideKind.LIMIT:
        is_reuse, present = body.get("on_limit") == OnLimit.REUSE, limits_of(context.policies, form.client_id)
        limits = {} if is_reuse else form.field("limits") or {}
        template = Override(Target(form.kind, form.client_id, LimitKind.USER), *made)
        for kind, by_name in limits.items():
            for name in by_name.keys() - {policy.name for policy in getattr(present, kind)}:
                form.problems.add(f"limits.{kind}", f"got {show(name)}, allowed: the name of a limit that applies now")
        raised = amount_overrides(context.policies, form.client_id, limits, template, former=context.overrides)
        found = _reuse_overrides(present, template) if is_reuse else raised
    elif form.kind is OverrideKind.MODE and body.get("mode") != Mode.DRY_RUN:
        form.problems.add("mode", f"got {show(body.get('mode'))}, allowed: dry-run; others by mode set in the terminal")
    form.raise_errors()
    if form.kind is not OverrideKind.LIMIT:
        mode = Mode.DRY_RUN if form.kind is OverrideKind.MODE else None
        found = [Override(Target(form.kind, form.client_id), *made, mode=mode)]
    known = [
        each
        for each in context.overrides
        if (each.target.kind, each.target.client_id) == (form.kind, form.client_id)
        and (each.author, each.reason) == (operator, form.reason)
        and context.now_s - each.made_at_s < REPEATED_S
    ]
    made_set, wanted = (
        {(each.target, each.mode, each.policies, each.lasts_ms) for each in some} for some in (known, found)
    )
    if known and wanted <= made_set:
        return known
    if not found:
        other = "enter another amount, or another end of an override: these apply already"
        form.problems.add("limits", "none of them can give out a token again" if body.get("on_limit") else other)
        form.raise_errors()
    return found


def _reuse_overrides(present: Limits, template: Override) -> list[Override]:
    """Return the overrides that answer requests without a user over a limit with the token that the client has."""
    found = []
    for kind in REUSING:
        limits = getattr(present, kind)
        reused = tuple(each if each.count_denied else each._replace(on_limit=OnLimit.REUSE) for each in limits)
        if any(not each.count_denied for each in limits):
            found.append(replace(template, target=replace(template.target, limit_kind=kind), policies=reused))
    return found


def amounts(reading: Reading, params: Params) -> Record:
    """Return the limits that apply now to a client, a user of it or everybody, at the token endpoint.

    First comes what denies most.
    """
    client_id, has_user = client_or_all(params), bool(params.get("user"))

    def query(context: OperatorContext) -> Record:
        present = limits_of(context.policies, client_id)
        unused = (LimitKind.USER_TOTAL if client_id else None, LimitKind.CLIENT if has_user else None)
        limits = [(kind, each) for kind in LimitKind if kind not in unused for each in getattr(present, kind)]
        runs = last_runs(read_minutes(reading, client_id)[1])[:1] if client_id else []
        denied = Counter({policy: each.total for run in runs for (policy, _), each in run.denials.items()})
        grants = sorted({grant for run in runs for _, grant in run.denials})
        is_elsewhere = all(grant.startswith(NOT_TOKEN) for grant in grants)
        return {
            "now_s": context.now_s,
            "limits": sorted(limits, key=lambda item: -denied[item[1].name]),
            "elsewhere": list(map(source_text, grants)) if is_elsewhere else [],
        }

    return reading.read(("amounts", client_id, has_user), query)


def preview(context: OperatorContext, body: Body, *, operator: str) -> Record:
    """Return what overrides change, and what that does if clients go on as lately."""
    overrides = read_overrides(context, {"reason": "preview", **body}, operator=operator)
    if not _computing.acquire(blocking=False):
        raise ValueError(BUSY)
    try:
        impact = impact_of(context, overrides)
    finally:
        _computing.release()
    client_id, policies = overrides[0].target.client_id, context.policies
    mode = policies.matching(client_id).mode if client_id else policies.mode
    is_in_one = overrides[0].mode is mode is Mode.DRY_RUN and (client_id is not None or not enforces(policies))
    is_in_one &= context.after(overrides).policies != policies  # else it is this override, whose end may change
    shown = [IN_DRY_RUN, *new_ends(context.overrides, overrides)] if is_in_one else impact.lines
    lines = list(dict.fromkeys([*shown, *_notes(context, overrides[0])]))
    if client_id and (user := USER.parse(body.get("user") or "", "user", Problems())):
        moments = (context, context.after(overrides))
        now, then = (user_text(LimitExplanation(each, client_id, username=user)) for each in moments)
        lines[:0] = [f"{short(user)}: {now}. With this change: {then}.", f"All users of {short(client_id)} together:"]
    return {"lines": list(map(visible_name, lines)), "proposal": {} if is_in_one else impact.proposal}


def user_text(found: LimitExplanation) -> str:
    """Return how much of its limits a user has used, and whether its next request is admitted."""
    limits = [(usage.policy, number(usage.estimate)) for usage, _ in found.usages]
    used = [f"{each.name}: {count} of {rate_text(each.limit, each.window.window_s)}" for each, count in limits]
    return "; ".join([*used, f"next request {found.forecast()[1]}"])


def apply(context: OperatorContext, body: Body, *, operator: str) -> Record:
    """Apply overrides, once if the same form is sent again."""
    with _applying:
        applied = read_overrides(context, body, operator=operator)
        for number, override in enumerate(applied):
            if override not in context.overrides:
                applied[number] = context.stores.overrides.put(override)
                _log_change(override.target, "set", operator=operator)
    check_obeyed(context)
    return {"since_s": int(min(applied[0].made_at_s, context.now_s))}  # dated by MongoDB's clock


def remove(context: OperatorContext, body: Body, *, operator: str) -> Record:
    form = Form(body)
    target = Target(form.kind, form.client_id, form.field("limit_kind") if form.kind is OverrideKind.LIMIT else None)
    form.raise_errors()
    is_removed = context.stores.overrides.remove(target, author=operator, reason=form.reason)
    if is_removed:
        _log_change(target, "unset", operator=operator)
        check_obeyed(context)
    return {"is_removed": is_removed}


CHANGES: Mapping[str, Callable[..., Record]] = {"preview": preview, "apply": apply, "remove": remove}
"""Requests of an operator, each with its JSON, about the present."""


def panel(reading: Reading, params: Params) -> Record:
    """Return the overrides of a client, or of everybody, and what followed a change that was made lately."""
    client_id, since_s, user = client_or_all(params), whole(params, "since", 0), params.get("user")

    def query(context: OperatorContext) -> Record:
        is_recent = since_s <= context.now_s < since_s + MAX_OUTCOME_S
        return {
            "now_s": context.now_s,
            "overrides": [each for each in context.overrides if each.target.client_id == client_id],
            "user_text": f"{user}: {user_text(client(reading, params)['explanation'])}." if client_id and user else "",
            **(_outcome(reading, params, since_s) if is_recent else {}),
        }

    return reading.read(("panel", client_id, since_s, user), query)


def _outcome(reading: Reading, params: Params, since_s: int) -> Record:
    """Return the measured minutes of a client since a change, and the verdict that the page has."""
    client_id = client_or_all(params)
    if client_id is None:
        return {"outcome": f"Applied. Takes effect on every instance within {duration(change_delay_s(reading))}."}
    found, recorded = client(reading, params)["verdict"], read_minutes(reading, client_id)[1]
    later = (each for each in recorded if each.minute_s + MINUTE_S > since_s)
    minutes = [(each.minute_s, sum(each.tallies.values(), NO_REQUESTS)) for each in later]
    return {"outcome": f"{'Still denied' if found.kind == 'denied' else 'Applied'}. {found.lead}", "minutes": minutes}


def _log_change(target: Target, action: str, *, operator: str) -> None:
    log.info(
        "override_changed",
        operator=logged_name(operator),
        action=action,
        kind=target.kind.value,
        client_id=target.client_id and logged_name(target.client_id),
        limit_kind=target.limit_kind and target.limit_kind.value,
    )


def _notes(context: OperatorContext, override: Override) -> Iterator[str]:
    """Yield what an override does not change, what else it does, and a doubt about the client."""
    client_id, kind, policies = override.target.client_id, override.target.limit_kind, context.policies
    if override.mode is not None:
        yield from notes_on_mode(context.settings, context.overrides, override)
    if client_id is None:
        yield from ["Clients with limits of their own keep them."] if kind else []
        return
    if hint := unknown_client_hint(context, client_id):
        yield hint
    if override.target.kind is not OverrideKind.TRUSTED and policies.trusts(client_id):
        yield "This client is trusted: limits and mode have no effect on it."
    own = {name: policies.sections(client_id, grant_type=name).values() for name in policies.grants_of(client_id)}
    grants = [name for name, found in own.items() if kind and any(each.names_limits(kind) for each in [*found][:3])]
    if grants:
        yield f"Grant types with {kind} limits of their own keep them: {', '.join(grants)}."
