"""Overrides from operator input, validated."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.errors import Problems
from oauth_ratelimit.config.loader import parse_limits
from oauth_ratelimit.config.notation import DURATION_NOTATION, parse_duration
from oauth_ratelimit.config.policies import CLIENT_ID, find_clashes
from oauth_ratelimit.core.overrides import Override, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, PolicySet
from oauth_ratelimit.errors import ConfigError

MAX_DURATION_S = 3650 * 86_400.0
MAX_LIMIT_LENGTH = 1000  # characters of one limit as typed
MAX_TEXT_LENGTH = 1000  # characters of an author or a reason
NO_LIMIT = "none"


def checked_client_id(client_id: str) -> str:
    """Return a client id that can be stored.

    Raises:
        ValueError: It cannot be stored; the message says what is allowed.
    """
    problems = Problems()
    CLIENT_ID.parse(client_id, "", problems)
    if problems:
        raise ValueError("a client id is text of 1 to 1024 characters")
    return client_id


def storable_text(text: str) -> str:
    """Return an author or a reason for the history, with invalid Unicode from a terminal replaced.

    Raises:
        ValueError: It is too long; the message says what is allowed.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"allowed: up to {MAX_TEXT_LENGTH} characters, which the history keeps")
    return text.strip().encode("utf-8", "replace").decode()


def end_after(duration: str, *, now_s: float) -> float:
    """Return the end of a duration such as ``12h`` that begins now.

    Raises:
        ValueError: It is no duration or out of range; the message says what is allowed.
    """
    try:
        duration_s = parse_duration(duration)
    except ValueError:
        raise ValueError(f"allowed: {DURATION_NOTATION}") from None
    if not 0 < duration_s <= MAX_DURATION_S:
        raise ValueError("allowed: more than 0 s, up to 10 years")
    return now_s + duration_s


def end_at(text: str, *, now_s: float) -> float:
    """Return a future time such as ``2026-12-01T00:00:00Z`` in seconds since the epoch.

    Raises:
        ValueError: It is no time, or in the past; the message says what is allowed.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise ValueError("allowed: a time with its zone, such as 2026-12-01T00:00:00Z")
    if when.timestamp() <= now_s:
        raise ValueError(f"{text} is in the past")
    return when.timestamp()


def limit_overrides(
    policies: PolicySet, client_id: str | None, limits: Mapping[LimitKind, list[str]], *, template: Override
) -> list[Override]:
    """Return the overrides that set limits.

    Args:
        policies: Current limits and modes.
        client_id: The client; None for all clients.
        limits: By kind, each limit as typed: a shorthand, a mapping in braces, or ``none``.
        template: An override with the author, the reason and the times; its limit kind is ignored.

    Raises:
        ConfigError: With all problems at once.
    """
    parsed = {kind.value: [_parse_limit(text) for text in texts] for kind, texts in limits.items()}
    own = parse_limits({kind: [limit for limit in some if limit] for kind, some in parsed.items()})
    overrides = [
        replace(
            template,
            target=Target(kind=template.target.kind, client_id=client_id, limit_kind=kind),
            policies=getattr(own, kind.value),
        )
        for kind in limits
    ]
    problems = Problems()
    find_clashes(apply_overrides(policies, overrides), problems)
    if problems:
        raise problems.error(source="limits")
    return overrides


def _parse_limit(text: str) -> object:
    """Return a limit as a configuration file would hold it; None for no limit."""
    if text == NO_LIMIT:
        return None
    if len(text) > MAX_LIMIT_LENGTH:
        raise ConfigError([f"got {len(text)} characters, allowed: up to {MAX_LIMIT_LENGTH}"], source="limit")
    return parse_yaml(text.encode(), source="limit") if text.lstrip().startswith("{") else text
