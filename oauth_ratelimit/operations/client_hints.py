"""Hints about unknown client ids: "did you mean"."""

from difflib import get_close_matches
from itertools import chain, islice

from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.statistics import HOUR_S
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext

MAX_COMPARED = 2000  # documents whose client ids are compared
MAX_LENGTH = 100  # characters; the time of a comparison grows with their square
SIMILARITY = 0.75  # one wrong letter in four
WILDCARDS = frozenset("*?[")


def unknown_client_hint(context: OperatorContext, client_id: str) -> str | None:
    """Return a sentence if a client id is unknown; None if it is known, or if the database does not let us find out."""
    similar = similar_client_ids(context, client_id, count=1)
    if similar is None:
        return None
    name = visible_name(client_id)
    suggestion = f"; did you mean '{visible_name(similar[0])}'?" if similar else "."
    if not WILDCARDS.isdisjoint(client_id):
        suggestion = ", taken literally: patterns are for trusted_clients in the configuration file."
    return f"No counters, statistics or configuration for '{name}'{suggestion}"


def similar_client_ids(context: OperatorContext, client_id: str, *, count: int = 3) -> list[str] | None:
    """Return known client ids like an unknown one, the most similar first. Reads some thousand documents.

    Returns None if the client is known, or if the database does not let us find out.
    """
    is_configured = client_id in context.settings.policies.clients or context.origins.of_trust(client_id)
    if not context.is_shared or is_configured or any(each.target.client_id == client_id for each in context.overrides):
        return None
    stored = storable_name(client_id)
    try:
        counters = context.stores.documents.of_client(stored, at_most=1)
        if any(True for _ in chain(counters, context.minutes(0.0, client_id, parts=()))):
            return None
        return _most_similar(client_id, _known_client_ids(context), count)
    except StoreError:
        return None  # a missing hint must not fail the command


def _known_client_ids(context: OperatorContext) -> set[str]:
    """Return the client ids that are configured or were active lately."""
    policies = context.policies
    minutes = context.minutes(context.now_s - HOUR_S, parts=())
    return {
        *policies.clients,
        *policies.trusted_ids,
        *(name for name in policies.trusted if WILDCARDS.isdisjoint(name)),
        *(key.client_id for key, _ in context.stores.documents.latest(context.now_s, MAX_COMPARED)),
        *(minute.client_id for minute in islice(minutes, MAX_COMPARED)),
    }


def _most_similar(client_id: str, known_ids: set[str], count: int) -> list[str]:
    if len(client_id) > MAX_LENGTH:
        return []
    by_folded = {name.casefold(): name for name in sorted(known_ids) if 0 < len(name) <= MAX_LENGTH}
    matches = get_close_matches(client_id.casefold(), by_folded, n=count, cutoff=SIMILARITY)
    return [by_folded[match] for match in matches]
