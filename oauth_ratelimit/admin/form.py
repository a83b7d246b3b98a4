"""The form of an override: its present values, and what an operator sent, with all errors at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, PolicySet
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import (
    MAX_TEXT_LENGTH,
    checked_client_id,
    end_after,
    end_at,
    limit_overrides,
    limit_texts,
    storable_text,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record, origin_data

MAX_LIMITS = 20  # of one kind
EXAMPLE = "; for example "  # a line of a configuration file, which would be wrong in a field
UNCONFIGURED_CLIENT = "\0"  # no client id, so only the defaults apply to it

Body = Mapping[str, Any]
Value = TypeVar("Value")
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class FieldError:
    """Error of one field.

    Args:
        field: Name of the field, such as ``reason`` or ``limits.user``; empty for the whole form.
        text: What is wrong, and what is allowed.
    """

    field: str
    text: str


class FormError(ValueError):
    """The form is not valid.

    Args:
        errors: All errors.
    """

    def __init__(self, errors: list[FieldError]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"{error.field}: {error.text}" if error.field else error.text for error in errors))

    def data(self) -> list[Record]:
        """Return the errors as records."""
        return [{"field": error.field, "text": error.text} for error in self.errors]


class FormReader:
    """Reads fields one by one and collects errors.

    Args:
        body: The form.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._errors: list[FieldError] = []

    def field(self, name: str, parse: Callable[[Any], Value]) -> Value | None:
        """Return the parsed value of a field; None after an error, which is kept."""
        try:
            return parse(self._body.get(name))
        except ValueError as exc:
            self._errors.append(FieldError(name, str(exc)))
        return None

    def limits(self) -> dict[LimitKind, list[str]]:
        """Return the texts of the limits by kind."""
        given = self._body.get("limits")
        if not isinstance(given, dict) or not given:
            self._errors.append(FieldError("limits", "name at least one"))
            return {}
        limits = {}
        for name, texts in given.items():
            if name not in list(LimitKind):
                self._errors.append(FieldError("limits", f"expected one of {', '.join(LimitKind)}"))
            elif not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                self._errors.append(FieldError(f"limits.{name}", "expected a list of texts"))
            elif not 1 <= len(texts) <= MAX_LIMITS:
                problem = f"got {len(texts)}, expected 1 to {MAX_LIMITS}; none lifts the limit"
                self._errors.append(FieldError(f"limits.{name}", problem))
            else:
                limits[LimitKind(name)] = texts
        return limits

    def parsed_limits(self, parse: Callable[[], list[Override]]) -> list[Override]:
        """Return overrides of limits; none after an error, which is kept at its field."""
        try:
            return parse()
        except ConfigError as exc:
            for problem in exc.problems:
                path, separator, text = problem.partition(EXAMPLE)[0].partition(": ")
                is_field = bool(separator) and path.startswith("limits.")
                self._errors.append(FieldError(path, text) if is_field else FieldError("limits", problem))
        return []

    def add(self, field: str, text: str) -> None:
        """Add an error."""
        self._errors.append(FieldError(field, text))

    def raise_errors(self) -> None:
        """Raise all errors, if there are any.

        Raises:
            FormError: There are.
        """
        if self._errors:
            raise FormError(self._errors)


def read_overrides(context: OperatorContext, body: Body, *, operator: str) -> list[Override]:
    """Return the overrides that a form describes.

    Raises:
        FormError: The form is not valid; it has all errors.
    """
    form = FormReader(body)
    kind = form.field("kind", _word(OverrideKind))
    client_id = form.field("client_id", _client_id)
    if kind is OverrideKind.TRUSTED and body.get("client_id") is None:
        form.add("client_id", "name a client: trusting everybody is mode off")
    mode = form.field("mode", _word(Mode)) if kind is OverrideKind.MODE else None
    limits = form.limits() if kind is OverrideKind.LIMIT else {}
    reason = form.field("reason", read_reason)
    ends = [form.field(name, _end(parse, context.now_s)) for name, parse in (("for", end_after), ("until", end_at))]
    template = Override(Target(OverrideKind.TRUSTED, ""), operator, reason or "", context.now_s, _first(ends))
    found: list[Override] = []
    if limits:
        template = replace(template, target=Target(OverrideKind.LIMIT, client_id, LimitKind.USER))
        found = form.parsed_limits(lambda: limit_overrides(context.policies, client_id, limits, template=template))
    form.raise_errors()
    if kind is None or limits:
        return found
    return [replace(template, target=Target(kind, client_id), mode=mode)]


def read_target(body: Body) -> tuple[Target, str]:
    """Return the override to remove, and the reason.

    Raises:
        FormError: The form is not valid; it has all errors.
    """
    form = FormReader(body)
    kind = form.field("kind", _word(OverrideKind)) or OverrideKind.MODE
    limit_kind = form.field("limit_kind", _word(LimitKind)) if kind is OverrideKind.LIMIT else None
    client_id = form.field("client_id", _client_id)
    if kind is OverrideKind.TRUSTED and body.get("client_id") is None:
        form.add("client_id", "name the client that is no longer trusted")
    reason = form.field("reason", read_reason)
    form.raise_errors()
    return Target(kind, client_id, limit_kind), reason or ""


def _word(words: type[Word]) -> Callable[[Any], Word]:
    def parse(value: Any) -> Word:
        if value not in list(words):
            raise ValueError(f"expected one of {', '.join(words)}")
        return words(value)

    return parse


def _client_id(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("expected a text, or null for everybody")
    return checked_client_id(value)


def read_reason(value: Any) -> str:
    """Return the reason for a change.

    Raises:
        ValueError: There is none, or it is too long.
    """
    if not isinstance(value, str) or not 1 <= len(value.strip()) <= MAX_TEXT_LENGTH:
        raise ValueError(f"expected 1 to {MAX_TEXT_LENGTH} characters, which the history keeps")
    return storable_text(value)


def _end(parse: Callable[..., float], now_s: float) -> Callable[[Any], float | None]:
    return lambda text: parse(str(text), now_s=now_s) if text else None


def _first(ends: Sequence[float | None]) -> float | None:
    return next((end for end in ends if end is not None), None)


def current(cache: ReadCache, params: Params) -> object:
    """Return what applies now to a client, or to everybody, as the form holds it."""
    client_id = params.get("id") or None
    if client_id is not None:
        checked_client_id(client_id)
    return cache.read(lambda context: current_values(context, client_id))


def current_values(context: OperatorContext, client_id: str | None) -> Record:
    """Return mode, trust and limits that apply now to a client, or to everybody for None, at the token endpoint."""
    name = UNCONFIGURED_CLIENT if client_id is None else client_id
    policies: PolicySet = context.policies
    limits = policies.limits_at(name)[1]
    return {
        "client_id": client_id,
        "mode": policies.mode.value if client_id is None else policies.matching(name).mode.value,
        "mode_origin": origin_data(context.origins.of_mode(name)),
        "trusted": policies.trusts(name),
        "limits": {
            kind.value: {
                "texts": limit_texts(kind, getattr(limits, kind.value)),
                "names": [policy.name for policy in getattr(limits, kind.value)],
                "origin": origin_data(context.origins.of_limits(name, kind)),
            }
            for kind in LimitKind
        },
    }
