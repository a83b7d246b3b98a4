"""Failed authentications: whom each is counted against, and how many are allowed.

Four kinds, each counted apart and never together with tokens:

- a wrong password through a client without a secret: per client, name and address;
- one that a client with a secret has passed on: the same, with limits of its own. Its address is the client's own
  server, and stands for all its users, so whoever knows a name could have its owner denied there;
- a wrong client secret, or an unknown client: per client and address;
- all but what was passed on: per address.
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

ANY_CLIENT = "*"  # in keys of an address alone; their scope tells them from a client with this name
IPV6_NETWORK_BITS = 64  # what a single customer gets: any address in it is theirs to use
MAX_CLAIM_LENGTH = 400  # with an address before it, a name is still short enough to be kept as it is
IGNORED = frozenset({"Mn", "Me", "Cf", "Cc"})  # accents, and what is not seen: categories of Unicode


class FailureKind(enum.StrEnum):
    """What a failure is counted by."""

    USER = "user"
    PASSED_ON = "passed_on"
    CLIENT = "client"
    ADDRESS = "address"

    @property
    def scope(self) -> str:
        """The scope of its keys. An endpoint in the configuration cannot have such a name."""
        return f"failures:{self.value}"


class FailureKey(NamedTuple):
    """Whom a failure is counted against.

    Attributes:
        kind: What it is counted by.
        client_id: The client, ``ANY_CLIENT`` for an address alone.
        name: The address, or ``<address> <name>``.
    """

    kind: FailureKind
    client_id: str
    name: str


NAMING_SCOPES = [FailureKind.USER.scope, FailureKind.PASSED_ON.scope]  # of keys whose name holds a user's


@dataclass(frozen=True, slots=True)
class AuthAttempt:
    """What a request claims before anything is proven. A request may claim several things at once; each is looked at.

    Args:
        client_ids: The clients that it names.
        usernames: The users that it names with a password, as they are kept.
        address: Where it comes from.
    """

    client_ids: tuple[str, ...]
    usernames: tuple[str, ...]
    address: str

    def targets(self) -> Iterator[FailureKey]:
        """Yield all that this attempt could be counted against."""
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
    """Return a claimed name such that its spellings are one, as far as a server may take them for one user.

    Without it, a guess in capitals would be counted apart, or one with an accent or a character that is not seen, which
    databases ignore by default. Two users whom it takes for one share their failures at one address, and nothing else.
    Cut first, because some characters expand 18-fold.
    """
    if len(name) <= MAX_CLAIM_LENGTH:
        if not (name.isascii() and name.isprintable()):
            letters = unicodedata.normalize("NFD", name)
            name = "".join(letter for letter in letters if unicodedata.category(letter) not in IGNORED)
        name = unicodedata.normalize("NFKC", name).strip().casefold()
    return storable_name(name, MAX_CLAIM_LENGTH)


def claimed_name(failure_name: str) -> str | None:
    """Return the user in the name of a key with a failure scope, None if it is of an address alone."""
    _, separator, name = failure_name.partition(" ")
    return name if separator else None


@lru_cache(maxsize=10_000)
def address_of(remote_addr: str | None) -> str | None:
    """Return the address that failures are counted by: an IPv4 address, an IPv6 network; None if there is none."""
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
    """Return whether an address, as ``address_of`` returns it, lies in one of the networks."""
    own = ip_network(address)
    found = map(ip_network, networks)
    return any(own.version == network.version and own.subnet_of(network) for network in found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class FailureLimits:
    """How many failures are allowed, by what they are counted by."""

    user: tuple[Policy, ...] = ()
    passed_on: tuple[Policy, ...] = ()
    client: tuple[Policy, ...] = ()
    address: tuple[Policy, ...] = ()


def failure_policies(limits: FailureLimits, mode: Mode, *, ceiling: Mode | None) -> PolicySet:
    """Return the policy set that failures are counted under: each kind as an endpoint of its own."""
    return PolicySet(
        mode=mode,
        endpoints={kind.scope: Rules(limits=OwnLimits(user=getattr(limits, kind.value))) for kind in FailureKind},
        ceiling=ceiling,
    )
