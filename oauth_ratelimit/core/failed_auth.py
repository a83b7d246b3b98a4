"""Keys and limits of failed authentications.

There are four kinds. Each has counters of its own, apart from those of tokens:

- a wrong password through a client without a secret: per client, username and address;
- a wrong password that a client with a secret passed on: the same, with limits of its own. Its address is that of the
  client's server for all users, so anybody who knows a username could get its owner denied there;
- a wrong client secret, or an unknown client: per client and address;
- all of these except passwords that were passed on: per address.
"""

import enum
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OwnLimits, Policy, PolicySet, Rules

ANY_CLIENT = "*"  # in keys of an address alone; their scope differs from that of a client with this name
IPV6_NETWORK_BITS = 64  # a single customer can use any address of such a network
MAX_CLAIM_LENGTH = 400  # with an address before it, such a name is still stored as it is
IGNORED = frozenset({"Mn", "Me", "Cf", "Cc"})  # Unicode categories of accents and invisible characters


class FailureKind(enum.StrEnum):
    """Kind of failed authentication."""

    USER = "user"
    PASSED_ON = "passed_on"
    CLIENT = "client"
    ADDRESS = "address"

    @property
    def scope(self) -> str:
        """Scope of its keys. No endpoint in the configuration can have such a name."""
        return f"failures:{self.value}"


class FailureKey(NamedTuple):
    """Key of the counter of a failure.

    Attributes:
        kind: Kind of failure.
        client_id: OAuth client, ``ANY_CLIENT`` for an address alone.
        name: The address, or ``<address> <username>``.
    """

    kind: FailureKind
    client_id: str
    name: str


NAMING_SCOPES = [FailureKind.USER.scope, FailureKind.PASSED_ON.scope]  # their keys contain a username


@dataclass(frozen=True, slots=True)
class AuthAttempt:
    """Unverified identities of a request. It may name several clients and users at once; each is checked.

    Args:
        client_ids: Clients that the request names.
        usernames: Users that it names with a password, as pseudonyms.
        address: Address that it comes from, see ``address_of``.
    """

    client_ids: tuple[str, ...]
    usernames: tuple[str, ...]
    address: str

    def targets(self) -> Iterator[FailureKey]:
        """Yield the keys of all failures that this attempt can be."""
        for client_id in self.client_ids:
            yield self.client_key(client_id)
            yield from self.user_keys(client_id)
            yield from self.user_keys(client_id, FailureKind.PASSED_ON)
        yield self.address_key()

    def user_keys(self, client_id: str, kind: FailureKind = FailureKind.USER) -> Iterator[FailureKey]:
        """Yield the keys of wrong passwords through a client."""
        for name in self.usernames:
            yield FailureKey(kind, client_id, f"{self.address} {name}")

    def client_key(self, client_id: str) -> FailureKey:
        """Return the key of wrong secrets of a client."""
        return FailureKey(FailureKind.CLIENT, client_id, self.address)

    def address_key(self) -> FailureKey:
        """Return the key of the address alone."""
        return FailureKey(FailureKind.ADDRESS, ANY_CLIENT, self.address)


def folded(name: str) -> str:
    """Return one form for all spellings of a name that a server may take for the same user.

    Otherwise guesses in capitals, with accents or with invisible characters, which databases ignore by default, would
    be counted apart. Two users with the same form share their failures at one address, and nothing else. A long name is
    cut before it is normalised, because some characters expand 18-fold.
    """
    if len(name) <= MAX_CLAIM_LENGTH:
        if not (name.isascii() and name.isprintable()):
            letters = unicodedata.normalize("NFD", name)
            name = "".join(letter for letter in letters if unicodedata.category(letter) not in IGNORED)
        name = unicodedata.normalize("NFKC", name).strip().casefold()
    return storable_name(name, MAX_CLAIM_LENGTH)


def claimed_name(failure_name: str) -> str | None:
    """Return the user in the name of a ``FailureKey``, None for an address alone."""
    _, separator, name = failure_name.partition(" ")
    return name if separator else None


@lru_cache(maxsize=10_000)
def address_of(remote_addr: str | None) -> str | None:
    """Return the IPv4 address or the IPv6 network that failures are counted by, None if the text is no address."""
    try:
        address = ip_address((remote_addr or "").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((address, IPV6_NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


@lru_cache(maxsize=10_000)
def is_within(address: str, networks: tuple[str, ...]) -> bool:
    """Return True if an address, as ``address_of`` returns it, is in one of the networks."""
    own = ip_network(address)
    found = map(ip_network, networks)
    return any(own.version == network.version and own.subnet_of(network) for network in found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """Limits of failures by kind."""

    user: tuple[Policy, ...] = ()
    passed_on: tuple[Policy, ...] = ()
    client: tuple[Policy, ...] = ()
    address: tuple[Policy, ...] = ()


def failure_policies(limits: FailureLimits, mode: Mode, *, ceiling: Mode | None) -> PolicySet:
    """Return a policy set in which each kind of failure is an endpoint."""
    return PolicySet(
        mode=mode,
        endpoints={kind.scope: Rules(limits=OwnLimits(user=getattr(limits, kind.value))) for kind in FailureKind},
        ceiling=ceiling,
    )
