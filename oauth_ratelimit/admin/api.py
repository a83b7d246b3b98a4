"""
What the page asks for, as plain data.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from oauth_ratelimit.admin.cache import Question, Readings
from oauth_ratelimit.admin.habits import habits
from oauth_ratelimit.admin.traffic import traffic
from oauth_ratelimit.admin.what_if import what_if
from oauth_ratelimit.config.models import GRANT_TYPES
from oauth_ratelimit.core.denial_record import parse_decision_id
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.overrides import LimitKind
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, Limits
from oauth_ratelimit.counters.client_state import CLIENT_TOTAL
from oauth_ratelimit.counters.usage import Standings
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import Desk
from oauth_ratelimit.operations.denial import denial_data
from oauth_ratelimit.operations.explain import Case
from oauth_ratelimit.operations.serialize import (
    Record,
    entry_data,
    layer_data,
    nearest,
    override_data,
    policy_text,
    standing_data,
)
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.operations.suggestions import known_clients
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

Look = Callable[[Readings, Question], object]

KEPT_S = 2.0  # what pages that are open beside each other are told the same of
TOP_READ = 5000  # documents, about a tenth of a second
TOP_SHOWN = 20
NAMES_KEPT_S = 60.0  # what a mistyped name is compared with takes some thousand documents to read
BUSY_S = 180
USERS_SHOWN = 50
HISTORY_SHOWN = 200


def status(readings: Readings, question: Question) -> object:
    """
    Return the mode, the canary, the default limits, the database and the instances.
    """
    return readings.read_once("status", _status, keep_s=KEPT_S)


def _status(desk: Desk) -> Record:
    policies = desk.policies
    return {
        "now_s": desk.now_s,
        **Status(desk).data(),
        "trusted": policies.trusted,
        "own_rules_count": len(policies.clients),
        "limits": limits_data(policies.limits),
        "sync_interval_s": desk.settings.sync.interval_s,
    }


def limits_data(limits: Limits) -> Record:
    """
    Return limits, by what they count.
    """
    return {kind.value: [policy_text(policy) for policy in getattr(limits, kind.value)] for kind in LimitKind}


def top(readings: Readings, question: Question) -> object:
    """
    Return who is nearest to a limit.
    """
    return readings.read_once("top", _top, keep_s=KEPT_S)


def _top(desk: Desk) -> Record:
    documents = dict(desk.documents.latest(desk.now_s, TOP_READ))
    read_count = len(documents)
    if read_count == TOP_READ:
        busy = [key for key in _busy(desk) if key not in documents]
        documents |= desk.documents.of_keys(busy[:TOP_READ])
    return {
        "rows": _fullest(desk, documents.items(), TOP_SHOWN),
        "read_count": read_count,
        "is_complete": read_count < TOP_READ,
    }


def _busy(desk: Desk) -> Iterator[Key]:
    """
    Yield who was busy in the last minutes, of each client itself and its heaviest users.

    For where not every document can be read: those with long windows come first there, and those that are busy now,
    in a short one, might be missing.
    """
    minutes = StatisticsStore(desk.connection).minutes(desk.now_s - BUSY_S, desk.now_s, parts=("users",))
    keys: dict[Key, None] = {}
    for minute in islice(minutes, TOP_READ):
        keys |= {Key(minute.client_id, None): None, Key(minute.client_id, None, CLIENT_TOTAL): None}
        keys |= dict.fromkeys(Key(minute.client_id, user.username) for user in minute.users)
    yield from keys


def _fullest(desk: Desk, documents: Iterable[tuple[Key, Snapshot]], count: int) -> list[Record]:
    """
    Return those that have used up most of a limit, each with the limit that it is nearest to.
    """
    standings = Standings(desk.policies)
    each = (nearest(standings.of(key, snapshot, desk.now_s), 1) for key, snapshot in documents)
    counted = (standing for first in each for standing in first if standing.estimate > 0)
    return [standing_data(standing) for standing in nearest(counted, count)]


def client(readings: Readings, question: Question) -> object:
    """
    Return how a request of a client would be decided, and why; and which of its users are nearest to a limit.
    """
    client_id = checked_client_id(question.get("id", ""))
    username = question.get("user") or None
    grant = question.get("grant") or None
    endpoint = question.get("endpoint") or TOKEN_ENDPOINT

    def known() -> set[str]:
        return readings.read_once("known-clients", known_clients, keep_s=NAMES_KEPT_S)

    def look(desk: Desk) -> Record:
        case = Case(
            desk, client_id, username=username, grant_type=GRANT_TYPES.get(grant or "", grant), endpoint=endpoint
        )
        documents = list(desk.documents.of_client(storable_name(client_id), at_most=TOP_READ))
        rules, plan = desk.policies.rules_of(client_id)
        return {
            **case.data(known=known),
            "canary": case.canary,
            "plan": rules.plan,
            "grants": sorted({*desk.policies.grants, *plan.grants, *rules.grants}),
            "endpoints": list(desk.policies.endpoints),
            "limit_origins": {kind.value: layer_data(desk.layers.of_limits(client_id, kind)) for kind in LimitKind},
            "limits_now": limits_data(desk.policies.limits_at(client_id)[1]),
            "users": _fullest(desk, documents, USERS_SHOWN),
            "are_users_complete": len(documents) < TOP_READ,
            "overrides": [override_data(each) for each in desk.overrides if each.target.client_id == client_id],
        }

    return readings.read(look)


def overrides(readings: Readings, question: Question) -> object:
    """
    Return what is overridden, and all that ever was, the latest first.
    """

    def look(desk: Desk) -> Record:
        history = desk.override_store.history()
        return {
            "overrides": list(map(override_data, desk.overrides)),
            "history": list(map(entry_data, reversed(history[-HISTORY_SHOWN:]))),
            "history_count": len(history),
        }

    return readings.read(look)


def denial(readings: Readings, question: Question) -> object:
    """
    Return the denial with a decision id; nothing of it if it is not known.
    """
    number = parse_decision_id(question.get("decision", "").strip().lower())

    def look(desk: Desk) -> Record:
        record = DenialStore(desk.connection).find(number)
        kept_s = desk.settings.events.keep_denials_s
        return {"kept_s": kept_s, "denial": record and denial_data(record, number - record.denial.first_id)}

    return readings.read(look)


LOOKS: Mapping[str, Look] = {
    "status": status,
    "top": top,
    "client": client,
    "overrides": overrides,
    "traffic": traffic,
    "habits": habits,
    "denial": denial,
    "what-if": what_if,
}
