"""The form of a change: its present values, and what an operator sent, with all errors at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.params import Params, client_or_all
from oauth_ratelimit.config.errors import Problems, show
from oauth_ratelimit.config.policies import CLIENT_ID
from oauth_ratelimit.config.types import choice, map_of, or_null, text, whole
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind, Limits, OnLimit
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import (
    MAX_TEXT_LENGTH,
    amount_overrides,
    end_after,
    limits_of,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record

EXAMPLE = "; for example "  # a line of a configuration file, which would be wrong in a field
REPEATED_S = 60.0  # the same form so soon afterwards is a second click
REUSING = (LimitKind.CLIENT, LimitKind.CLIENT_TOTAL)  # kinds of limits that can give out a token again

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
        is_reuse, present = body.get("on_limit") == OnLimit.REUSE, limits_of(context.policies, form.client_id)
        limits = {} if is_reuse else form.field("limits") or {}
        template = Override(Target(form.kind, form.client_id, LimitKind.USER), *made)
        for kind, by_name in limits.items():
            for name in by_name.keys() - {policy.name for policy in getattr(present, kind)}:
                form.problems.add(f"limits.{kind}", f"got {show(name)}, allowed: the name of a limit that applies now")
        raised = amount_overrides(context.policies, form.client_id, limits, template)
        found = _reuse_overrides(present, template) if is_reuse else raised
        targets = {Target(form.kind, form.client_id, kind) for kind in (REUSING if is_reuse else limits)}
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
    if known and (not found or set(map(_value, known)) == set(map(_value, found))):
        return known
    if not found:
        other = "enter another amount: these apply already"
        form.problems.add("limits", "none of them can give out a token again" if body.get("on_limit") else other)
        form.raise_errors()
    return found


def _reuse_overrides(present: Limits, template: Override) -> list[Override]:
    """Return the overrides that answer requests without a user over a limit with the token that the client has."""
    found = []
    for kind in REUSING:
        limits = getattr(present, kind)
        if any(not each.count_denied for each in limits):
            reused = tuple(each if each.count_denied else replace(each, on_limit=OnLimit.REUSE) for each in limits)
            target = Target(OverrideKind.LIMIT, template.target.client_id, kind)
            found.append(replace(template, target=target, policies=reused))
    return found


def _value(override: Override) -> object:
    return override.target, override.mode, override.policies


def read_target(body: Body) -> tuple[Target, str]:
    """Return the override to remove and the reason, or raise ``ConfigError`` with all errors."""
    form = Form(body)
    limit_kind = form.field("limit_kind") if form.kind is OverrideKind.LIMIT else None
    form.raise_errors()
    return Target(form.kind, form.client_id, limit_kind), form.reason


def amounts(cache: ReadCache, params: Params) -> Record:
    """Return the limits that apply now to a client, or to everybody, at the token endpoint."""
    client_id = client_or_all(params)

    def query(context: OperatorContext) -> Record:
        limits = limits_of(context.policies, client_id)
        return {"now_s": context.now_s, "limits": {kind: getattr(limits, kind) for kind in LimitKind}}

    return cache.read(query)
