"""Limits of a client, and the rows of the host table that its requests count in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import NamedTuple

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import GRANT_SCOPE, TOKEN_ENDPOINT, ClientPolicies, Limits, PolicySet
from oauth_ratelimit.core.tier import Series, Tier, extend_horizons, number_of, tiers_of, with_modes
from oauth_ratelimit.store.base import MAX_HORIZON_S

CLIENT_TOTAL = "client_total"
USER_TOTAL = "user_total"  # scope of the rows that count a user through all clients
EVERY_CLIENT = "*"  # client id of those rows
MAX_CONFIGURED_LENGTH = 1024  # characters of a name in the configuration
WAITS_PER_WINDOW = 10  # of hits far from a limit, so that they are sent while they matter
SPARE_CLIENTS = 1000  # whose rules are kept, beyond one for each key allowed; all are found anew after so many


class RowLimits(NamedTuple):
    """Limits that count in one row."""

    tiers: tuple[Tier, ...]
    horizons: Mapping[Series, int]  # seconds for which a frame of each series can matter
    horizon_s: int  # the longest of them
    horizon_by_number: Mapping[int, int]  # all of them by number of the series
    wait_s: float  # seconds for which hits of a key that is far from these limits may wait

    @classmethod
    def of(cls, tiers: tuple[Tier, ...]) -> "RowLimits | None":
        """Return the limits of a row, None without tiers."""
        horizons: dict[Series, int] = {}
        for tier in tiers:
            horizons = extend_horizons(horizons, {tier.series: min(tier.horizon_s, MAX_HORIZON_S)})
        by_number = {number_of(series): horizon_s for series, horizon_s in horizons.items()}
        if not tiers:
            return None
        wait_s = min(tier.window_s for tier in tiers) / WAITS_PER_WINDOW
        return cls(tiers, horizons, max(horizons.values()), by_number, wait_s)


Rows = tuple[tuple[str, RowLimits], ...]
"""Rows that a request counts in: the name of each, and its limits."""


@dataclass(slots=True, eq=False)
class ClientRules:
    """Limits of a client in one scope."""

    client_id: str  # in its storable form
    scope: str | None  # what its rows count besides plain tokens, in its storable form
    mode: Mode  # of the client
    is_canary: bool  # True if the canary enforces limits for the client
    exempt: Decision | None  # the answer to every request, if nothing is decided
    user: RowLimits | None  # per user
    client: RowLimits | None  # for grants without a user
    total: RowLimits | None  # for all users together
    user_total: RowLimits | None  # for one user, through all clients together
    _total_rows: Rows = field(init=False)  # for all users
    _client_rows: Rows = field(init=False)  # for grants without a user
    _name_start: str = field(init=False)  # of a user's row
    _name_end: str = field(init=False)

    def __post_init__(self) -> None:
        total_name = row_name(Key(self.client_id, None, total_scope(self.scope)))
        self._total_rows = () if self.total is None else ((total_name, self.total),)
        self._name_start, self._name_end = f"[{_in_name(self.client_id)},", f",{_in_name(self.scope)}]"
        client = () if self.client is None else ((self.name_of(None), self.client),)
        self._client_rows = (*client, *self._total_rows)

    def name_of(self, username: str | None) -> str:
        """Return the name of the row of a key. Raises ``TypeError`` if the username is neither text nor None."""
        if username is not None and not isinstance(username, str):
            raise TypeError(f"username must be text or None, got {username!r}")
        return f"{self._name_start}{_in_name(username and storable_name(username))}{self._name_end}"

    def rows_of(self, username: str | None) -> Rows:
        """Return the rows that a request counts in. Raises ``TypeError`` if the username is neither text nor None."""
        if username is None:
            return self._client_rows
        rows = self._total_rows if self.user is None else ((self.name_of(username), self.user), *self._total_rows)
        return rows if self.user_total is None else (*rows, (row_name(user_total_key(username)), self.user_total))


class RuleBook:
    """Rules of all clients under some policies. A change of policies is another book."""

    def __init__(self, policies: PolicySet, *, max_keys: int) -> None:
        self._policies = policies
        # The same series for all clients, whatever their modes.
        self._user_tiers = tiers_of(policies.limits.user_total, policies.mode)
        self._user_total = None if policies.mode is Mode.OFF else RowLimits.of(self._user_tiers)
        self._max_clients = max_keys + SPARE_CLIENTS
        self._grants = frozenset(policies.named_grants)
        self._found: dict[tuple[str, str, str | None], ClientRules] = {}

    def find(self, client_id: str, endpoint: str = TOKEN_ENDPOINT, grant_type: str | None = None) -> ClientRules:
        """Return the rules of a client's requests. Raises ``TypeError`` if a name is not text."""
        named = grant_type if grant_type in self._grants else None  # a client may make up any number of them
        try:
            return self._found[client_id, endpoint, named]
        except (KeyError, TypeError):  # a name that is no text may not be hashable
            return self._find(client_id, endpoint, named)

    def _find(self, client_id: str, endpoint: str, grant_type: str | None) -> ClientRules:
        for argument, name in (("client_id", client_id), ("endpoint", endpoint)):
            if not isinstance(name, str):
                raise TypeError(f"{argument} must be text, got {name!r}")
        configured_id = client_id if len(client_id) <= MAX_CONFIGURED_LENGTH else storable_name(client_id)
        policies = self._policies.matching(configured_id, endpoint=endpoint, grant_type=grant_type)
        rules = _rules_of(client_id, policies, self._user_tiers)
        if len(self._found) >= self._max_clients:
            self._found.clear()
        if max(len(client_id), len(endpoint)) <= MAX_CONFIGURED_LENGTH:
            self._found[client_id, endpoint, grant_type] = rules
        return rules

    def limits_of(self, key: Key) -> RowLimits | None:
        """Return the limits that count in the row of a key, None without any."""
        if key.scope == USER_TOTAL:
            return self._user_total
        meaning = meaning_of(key.scope)
        rules = self.find(key.client_id, meaning.endpoint, meaning.grant_type)
        if rules.exempt is not None or (meaning.grant_type is not None and rules.scope is None):
            return None  # or the grant type is not counted apart any more
        if meaning.is_total:
            return rules.total
        return rules.client if key.username is None else rules.user


def _rules_of(client_id: str, policies: ClientPolicies, user_tiers: tuple[Tier, ...]) -> ClientRules:
    mode, limits = policies.mode, policies.limits
    exempt = None
    if policies.trusted or mode is Mode.OFF or limits == Limits():
        exempt = Decision(mode, trusted=policies.trusted)
    return ClientRules(
        storable_name(client_id),
        None if policies.scope is None else storable_name(policies.scope),
        mode,
        policies.is_canary,
        exempt,
        user=RowLimits.of(tiers_of(limits.user, mode)),
        client=RowLimits.of(tiers_of(limits.client, mode)),
        total=RowLimits.of(tiers_of(limits.client_total, mode, is_total=True)),
        user_total=RowLimits.of(user_tiers_for(policies, user_tiers)),
    )


def user_tiers_for(policies: ClientPolicies, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    """Return the tiers of a user through all clients as they apply to the requests of one client."""
    modes = {policy.name: policy.mode or policies.mode for policy in policies.limits.user_total}
    own = tuple(tier for tier in tiers if tier.policy.name in modes)
    return with_modes(own, tuple(modes[tier.policy.name] for tier in own))


class ScopeMeaning(NamedTuple):
    endpoint: str
    grant_type: str | None  # None for all that are not counted apart
    is_total: bool


def meaning_of(scope: str | None) -> ScopeMeaning:
    """Return what the rows of a scope count."""
    if scope == USER_TOTAL:
        return ScopeMeaning(TOKEN_ENDPOINT, None, is_total=True)
    name = scope or ""
    is_total = is_total_scope(scope)
    name = name.removesuffix(CLIENT_TOTAL).removesuffix("/") if is_total else name
    if name.startswith(GRANT_SCOPE):
        return ScopeMeaning(TOKEN_ENDPOINT, name.removeprefix(GRANT_SCOPE), is_total)
    return ScopeMeaning(name or TOKEN_ENDPOINT, None, is_total)


def is_total_scope(scope: str | None) -> bool:
    """Return True if rows count what others do, too: all users of a client together, or all clients of a user."""
    return scope is not None and (scope in (CLIENT_TOTAL, USER_TOTAL) or scope.endswith(f"/{CLIENT_TOTAL}"))


def total_scope(scope: str | None) -> str:
    """Return the scope of the row that counts all users of a client together."""
    return CLIENT_TOTAL if scope is None else f"{scope}/{CLIENT_TOTAL}"


def user_total_key(username: str) -> Key:
    """Return the key that counts a user through all clients. The username is a pseudonym."""
    return Key(EVERY_CLIENT, storable_name(username), USER_TOTAL)


def row_name(key: Key) -> str:
    """Return the name of a key's row: the key as JSON."""
    return f"[{','.join(map(_in_name, key))}]"


def _in_name(part: str | None) -> str:
    return "null" if part is None else encode_basestring(part)


def key_of(name: str) -> Key:
    return Key(*json.loads(name))
