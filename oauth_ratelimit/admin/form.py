"""The form of an override: its present values, and what an operator sent, with all errors at once."""

from collections.abc import Mapping
from typing import Any

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.config.errors import Problems, show
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.policies import CLIENT_ID
from oauth_ratelimit.config.types import choice, map_of, or_null, text, whole
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import (
    MAX_TEXT_LENGTH,
    amount_overrides,
    checked_client_id,
    end_after,
    limits_of,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record, override_data

EXAMPLE = "; for example "  # a line of a configuration file, which would be wrong in a field
REPEATED_S = 60.0  # the same form so soon afterwards is a second click

Body = Mapping[str, Any]

FIELDS = {
    "kind": choice(OverrideKind),
    "client_id": or_null(CLIENT_ID),  # null is everybody
    "limit_kind": choice(LimitKind),
    "limits": map_of(choice(LimitKind), map_of(text(), whole(1, MAX_LIMIT))),  # amounts by name
    "reason": text(
        f"1 to {MAX_TEXT_LENGTH} characters, which the history keeps", pattern=r"\S", longest=MAX_TEXT_LENGTH
    ),
}


class Form:
    """What an operator sent, parsed field by field as values of a configuration are."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.problems = Problems()
        self.kind = self.field("kind")
        self.client_id = self.field("client_id")
        if self.kind is OverrideKind.TRUSTED and body.get("client_id") is None:
            self.problems.add("client_id", "name a client: trusting everybody is mode off")
        self.reason = (self.field("reason") or "").strip()

    def field(self, name: str) -> Any:
        """Return the parsed value of a field; None after an error, which is kept."""
        return FIELDS[name].parse(self._body.get(name), name, self.problems)

    def end_s(self, now_s: float) -> float | None:
        """Return the end; None for an override without one."""
        try:
            return end_after(str(self._body["for"]), now_s=now_s) if self._body.get("for") else None
        except ValueError as exc:
            self.problems.add("for", str(exc))
            return None

    def raise_errors(self) -> None:
        """Raise ``ConfigError`` if there are errors."""
        if self.problems:
            raise self.problems.error(source="form")


def errors_by_field(error: ConfigError) -> list[dict[str, str]]:
    """Return what is wrong with fields such as ``reason`` or ``limits.user.burst``, and what is allowed."""
    errors = []
    for problem in error.problems:
        path, _, allowed = problem.partition(EXAMPLE)[0].partition(": ")
        errors.append({"field": path, "text": allowed})
    return errors


def read_overrides(context: OperatorContext, body: Body, *, operator: str) -> list[Override]:
    """Return the overrides that a form describes, or raise ``ConfigError`` with all errors.

    If the operator has sent the same form a moment ago, they are those that it has made.
    """
    form, found = Form(body), list[Override]()
    made = (operator, form.reason, context.now_s, form.end_s(context.now_s))
    targets = set()
    if form.kind is OverrideKind.LIMIT:
        limits, present = form.field("limits") or {}, limits_of(context.policies, form.client_id)
        targets = {Target(form.kind, form.client_id, kind) for kind in limits}
        for kind, amounts in limits.items():
            for name in amounts.keys() - {policy.name for policy in getattr(present, kind)}:
                form.problems.add(f"limits.{kind}", f"got {show(name)}, allowed: the name of a limit that applies now")
        template = Override(Target(form.kind, form.client_id, LimitKind.USER), *made)
        found = amount_overrides(context.policies, form.client_id, limits, template)
    elif form.kind is OverrideKind.MODE and body.get("mode") != Mode.DRY_RUN:
        form.problems.add("mode", f"got {show(body.get('mode'))}, allowed: dry-run; others by mode set in the terminal")
    form.raise_errors()
    if form.kind is not OverrideKind.LIMIT:
        mode = Mode.DRY_RUN if form.kind is OverrideKind.MODE else None
        found = [Override(Target(form.kind, form.client_id), *made, mode=mode)]
        targets = {each.target for each in found}
    known = [
        each
        for each in context.overrides
        if each.target in targets
        and (each.author, each.reason) == (operator, form.reason)
        and context.now_s - each.made_at_s < REPEATED_S
    ]
    if known and (not found or (form.kind is not OverrideKind.LIMIT and known[0].mode is found[0].mode)):
        return known
    if not found:
        form.problems.add("limits", "enter another amount: these apply already")
        form.raise_errors()
    return found


def read_target(body: Body) -> tuple[Target, str]:
    """Return the override to remove and the reason, or raise ``ConfigError`` with all errors."""
    form = Form(body)
    limit_kind = form.field("limit_kind") if form.kind is OverrideKind.LIMIT else None
    form.raise_errors()
    return Target(form.kind, form.client_id, limit_kind), form.reason


def current(cache: ReadCache, params: Params) -> Record:
    """Return what applies now to a client, or to everybody, as the form holds it."""
    client_id = params.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)
    return cache.read(lambda context: {"now_s": context.now_s, **current_values(context, client_id)})


def current_values(context: OperatorContext, client_id: str | None) -> Record:
    """Return mode, limits and overrides that a client has now, or everybody for None, at the token endpoint."""
    policies, limits = context.policies, limits_of(context.policies, client_id)
    return {
        "client_id": client_id,
        "mode": policies.mode if client_id is None else policies.matching(client_id).mode,
        "trusted": client_id is not None and policies.trusts(client_id),
        "limits": {
            kind.value: {
                "texts": list(map(policy_text, getattr(limits, kind))),
                "amounts": {policy.name: policy.limit for policy in getattr(limits, kind)},
                "rates": [
                    rate_text(policy.limit, policy.window.window_s).partition("/")[2]
                    for policy in getattr(limits, kind)
                ],
            }
            for kind in LimitKind
        },
        "overrides": [override_data(each) for each in context.overrides if each.target.client_id == client_id],
    }
