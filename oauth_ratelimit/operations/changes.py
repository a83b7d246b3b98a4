"""Overrides from operator input, validated."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.errors import Problems
from oauth_ratelimit.config.loader import parse_limits
from oauth_ratelimit.config.notation import DURATION_NOTATION, parse_duration, parse_rates, rate_text
from oauth_ratelimit.config.policies import CLIENT_ID, find_clashes
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.origin import Origins
from oauth_ratelimit.core.overrides import Override, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.format import canary_text, origin_text, policy_text

MAX_DURATION_S = 3650 * 86_400.0
MAX_LIMIT_LENGTH = 1000  # characters of one limit as typed
MAX_TEXT_LENGTH = 1000  # characters of an author or a reason
MAX_NAMED = 5  # sections of the configuration in a sentence
NO_LIMIT = "none"
NAMED_LIMIT = re.compile(
    r"([^{}:]+): *([0-9]+ *(?:/|per)[^:]*?)(?: +(off|dry-run|enforce))?"
)  # as policy_text writes it
STAYS_OFF = "The configuration has mode: off, which beats every override. Change it there first."
STAND_IN = "1/minute"  # for a limit that cannot be read, so that the others keep their positions


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
        limits: By kind, each limit as typed: a shorthand, also with a name and a mode (``burst: 20/5s enforce``), a
            mapping in braces, or ``none``.
        template: An override with the author, the reason and the times; its limit kind is ignored.

    Raises:
        ConfigError: With all problems at once.
    """
    problems: list[str] = []
    parsed = {kind.value: _parse_texts(texts, f"limits.{kind.value}", problems) for kind, texts in limits.items()}
    try:
        own = parse_limits(parsed)
    except ConfigError as exc:
        problems += exc.problems
    if problems:
        raise ConfigError(problems, source="limits")
    overrides = [
        replace(
            template,
            target=Target(kind=template.target.kind, client_id=client_id, limit_kind=kind),
            policies=getattr(own, kind.value),
        )
        for kind in limits
    ]
    clashes = Problems()
    find_clashes(apply_overrides(policies, overrides), clashes)
    if clashes:
        raise clashes.error(source="limits")
    return overrides


def unaffected_by_mode(policies: PolicySet, overrides: Sequence[Override], change: Override) -> list[str]:
    """Return sentences about those whose mode stays in spite of an override of the mode.

    Args:
        policies: Limits and modes of the configuration.
        overrides: Active overrides, with or without the one that it replaces.
        change: The override of the mode.
    """
    applied = (*(each for each in overrides if each.target != change.target), change)
    effective, client_id = apply_overrides(policies, applied), change.target.client_id
    if policies.mode is Mode.OFF and change.mode is not Mode.OFF:
        return [STAYS_OFF]
    if client_id is not None:
        client_mode = effective.matching(client_id).mode
        if client_mode is change.mode:
            return []
        origin = origin_text(Origins(policies, applied).of_mode(client_id))
        return [f"{client_id} stays in mode {client_mode.value}, because this comes first: {origin}."]
    if change.mode is not Mode.ENFORCE:
        return []
    own = list(_not_enforced(effective))
    more = f" and {len(own) - MAX_NAMED} more" if len(own) > MAX_NAMED else ""
    sentences = [f"These have a mode of their own, which stays: {', '.join(own[:MAX_NAMED])}{more}."] if own else []
    if effective.canary is not None:
        sentences.append(f"The canary stays: enforced for {canary_text(effective.canary)}, a dry run for the others.")
    return sentences


def _not_enforced(policies: PolicySet) -> Iterator[str]:
    """Yield path and mode of each section that does not enforce, whatever the global mode."""
    for section in ("clients", "plans", "grants", "endpoints"):
        for name, rules in getattr(policies, section).items():
            mode = rules.ceiling or rules.mode
            if mode in (Mode.DRY_RUN, Mode.OFF):
                yield f"{section}.{name} ({mode.value})"


def _parse_texts(texts: list[str], at: str, problems: list[str]) -> list[object]:
    """Return limits as a configuration file would hold them; an empty list for ``none``."""
    if texts == [NO_LIMIT]:
        return []
    parsed: list[object] = []
    for index, text in enumerate(texts):
        place = f"{at}[{index}]"
        try:
            parsed.append(_parse_limit(text))
        except ConfigError as exc:
            problems += [f"{place}: {problem}" for problem in exc.problems]
            parsed.append(STAND_IN)
    return parsed


def _parse_limit(text: str) -> object:
    """Return a limit as a configuration file would hold it."""
    if text == NO_LIMIT:
        raise ConfigError([f"got {NO_LIMIT} beside other limits, allowed: {NO_LIMIT} alone, which lifts the limit"])
    if len(text) > MAX_LIMIT_LENGTH:
        raise ConfigError([f"got {len(text)} characters, allowed: up to {MAX_LIMIT_LENGTH}"], source="limit")
    if text.lstrip().startswith("{"):
        return parse_yaml(text.encode("utf-8", "replace"), source="limit")
    named = NAMED_LIMIT.fullmatch(text.strip())
    if named is None:
        return text
    name, rate, mode = named.groups()
    try:
        ((limit, window_s),) = parse_rates(rate)
    except ValueError:
        return text  # its error names the whole text
    return {"name": name, "limit": limit, "window": window_s, **({"mode": mode} if mode else {})}


def limit_texts(kind: LimitKind, policies: Sequence[Policy]) -> list[str]:
    """Return limits as ``limit_overrides`` reads them: the shortest notation that gives the same limits."""
    if not policies:
        return [NO_LIMIT]
    short = [rate_text(policy.limit, policy.window.window_s) for policy in policies]
    try:
        alike = getattr(parse_limits({kind.value: short}), kind.value)
    except ConfigError:  # several limits with the same window need names
        alike = [None] * len(short)
    return [
        text if policy == other else _full_text(policy)
        for text, policy, other in zip(short, policies, alike, strict=True)
    ]


def _full_text(policy: Policy) -> str:
    """Return a limit with its name and mode, in braces if it has further settings."""
    window = policy.window
    plain = Policy(policy.name, policy.limit, Window.of(window.window_s), mode=policy.mode)
    if policy == plain:
        return policy_text(policy)
    settings = {
        "name": policy.name,
        "limit": policy.limit,
        "window": window.window_s,
        "frames": window.frame_count,
        "estimator": policy.estimator.value,
        "count_denied": policy.count_denied,
        **({"mode": policy.mode.value} if policy.mode else {}),
    }
    return json.dumps(settings)  # a flow mapping of YAML
