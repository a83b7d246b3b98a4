"""
Client ids that were hardly meant: of which nothing is known, most of them mistyped, or on which a limit has no effect.
"""

from collections.abc import Callable
from difflib import get_close_matches

from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

LOOKED_AT = 2000  # documents, of which the names are compared
LOOKED_BACK_S = 3600.0
LONGEST = 100  # characters; comparing takes time that grows with the square of them
SIMILARITY = 0.75  # a letter more, less, other or moved in four
PATTERN = frozenset("*?[")


def unknown_client_hint(
    context: OperatorContext, client_id: str, *, known: Callable[[], set[str]] | None = None
) -> str | None:
    """Return what to tell somebody who has named a client that nobody has ever heard of.

    Args:
        desk: What the operator works with.
        client_id: What was typed; a pattern of trusted clients is never strange.
        known: Returns what ``known_clients`` does, where somebody keeps it; otherwise they are looked up.

    Returns:
        A sentence; None if the client is known, or where rights are missing to tell.
    """
    if not PATTERN.isdisjoint(client_id) or _is_configured(context, client_id):
        return None
    stored = storable_name(client_id)
    try:
        if any(True for _ in context.documents.of_client(stored, at_most=1)) or StatisticsStore(
            context.connection
        ).knows(stored):
            return None
        similar = _similar(client_id, known() if known else known_clients(context))
    except StoreError:
        return None  # a hint is no reason to fail
    name = visible_name(client_id)
    more = f"; did you mean '{visible_name(similar)}'?" if similar else "."
    return f"No counters, statistics or configuration for '{name}'{more}"


def trusted_client_hint(context: OperatorContext, client_id: str) -> str | None:
    """Return what to tell somebody who limits a client that is trusted; None if it is not."""
    if not context.policies.matching(client_id).trusted:
        return None
    return f"'{visible_name(client_id)}' is a trusted client: its limits do not matter as long as it is"


def _is_configured(context: OperatorContext, client_id: str) -> bool:
    if client_id in context.settings.policies.clients or context.origins.of_trust(client_id):
        return True
    return any(override.target.client_id == client_id for override in context.overrides)


def known_clients(context: OperatorContext) -> set[str]:
    """Return clients that are configured or have asked lately. Reads some thousand documents."""
    policies = context.policies
    return {
        *policies.clients,
        *(name for name in policies.trusted if PATTERN.isdisjoint(name)),
        *(key.client_id for key, _ in context.documents.latest(context.now_s, LOOKED_AT)),
        *StatisticsStore(context.connection).clients(context.now_s - LOOKED_BACK_S, at_most=LOOKED_AT),
    }


def _similar(client_id: str, known: set[str]) -> str | None:
    folded = {name.casefold(): name for name in sorted(known) if 0 < len(name) <= LONGEST}
    if len(client_id) > LONGEST:
        return None
    found = get_close_matches(client_id.casefold(), folded, n=1, cutoff=SIMILARITY)
    return folded[found[0]] if found else None
