"""Changes at run time, made of what operators type."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from oauth_ratelimit.config.build import find_clashes
from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.load import limits_of
from oauth_ratelimit.config.notation import DURATION_NOTATION, parse_duration
from oauth_ratelimit.config.values import ClientId
from oauth_ratelimit.core.overrides import LimitKind, Override, Target, apply_overrides
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.errors import ConfigError

LONGEST_S = 3650 * 86_400.0
MAX_KEPT_LENGTH = 1000  # characters of a name or a reason
NO_LIMIT = "none"


def checked_client_id(client_id: str) -> str:
    """Return a client id that can be stored.

    Raises:
        ValueError: It cannot; the message says what can.
    """
    try:
        TypeAdapter(ClientId).validate_python(client_id, strict=True)
        client_id.encode()
    except (ValidationError, UnicodeEncodeError):
        raise ValueError("a client id is text of 1 to 1024 characters") from None
    return client_id


def kept_text(text: str) -> str:
    """Return a name or a reason as it can be put on record: a terminal may send what is no Unicode.

    Raises:
        ValueError: It is too long; the message says what is allowed.
    """
    if len(text) > MAX_KEPT_LENGTH:
        raise ValueError(f"allowed: up to {MAX_KEPT_LENGTH} characters; it is kept on record")
    return text.strip().encode("utf-8", "replace").decode()


def end_after(length: str, *, now_s: float) -> float:
    """Return when something ends that begins now and lasts as long as ``12h`` says.

    Raises:
        ValueError: That is no duration, or too long a one; the message says what is allowed.
    """
    try:
        length_s = parse_duration(length)
    except ValueError:
        raise ValueError(f"allowed: {DURATION_NOTATION}") from None
    if not 0 < length_s <= LONGEST_S:
        raise ValueError("allowed: longer than nothing, up to 10 years")
    return now_s + length_s


def end_at(text: str, *, now_s: float) -> float:
    """Return the moment that a text such as ``2026-12-01T00:00:00Z`` names.

    Raises:
        ValueError: It names none, or one that is over; the message says what is allowed.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise ValueError("allowed: a time with its zone, such as 2026-12-01T00:00:00Z")
    if when.timestamp() <= now_s:
        raise ValueError(f"{text} is over")
    return when.timestamp()


def limit_overrides(
    policies: PolicySet, client_id: str | None, named: Mapping[LimitKind, list[str]], *, like: Override
) -> list[Override]:
    """Return the overrides that put limits in force.

    Args:
        policies: What holds now.
        client_id: Whose limits; None for everybody's.
        named: By kind, each limit as it was typed: a shorthand, a mapping in braces, or ``none``.
        like: An override with author, reason and times; its target does not matter.

    Raises:
        ConfigError: With every problem at once.
    """
    limits = {kind.value: [_limit(text) for text in texts] for kind, texts in named.items()}
    own = limits_of({kind: [limit for limit in some if limit] for kind, some in limits.items()})
    overrides = [
        replace(
            like,
            target=Target(kind=like.target.kind, client_id=client_id, limit_kind=kind),
            policies=getattr(own, kind.value),
        )
        for kind in named
    ]
    if clashes := list(find_clashes(apply_overrides(policies, overrides))):
        raise ConfigError(clashes, source="limits")
    return overrides


def _limit(text: str) -> object:
    """Return what stands for a limit in a configuration file; None for no limit."""
    if text == NO_LIMIT:
        return None
    return parse_yaml(text.encode(), source="limit") if text.lstrip().startswith("{") else text
