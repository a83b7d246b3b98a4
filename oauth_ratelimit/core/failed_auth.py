"""Keys and limits of failed authentications.

There are six kinds. Each has counters of its own, apart from those of tokens:

- a wrong password through a client without a secret: per client, username and address;
- a wrong password that a client with a secret passed on: the same, with limits of its own. Its address is that of the
  client's server for all users, so anybody who knows a username could get its owner denied there;
- all wrong passwords that a client with a secret passed on: per client, from all addresses;
- a wrong client secret, or an unknown client: per client and address;
- all wrong client secrets: per address;
- all wrong passwords through clients without a secret: per address.

An IPv6 address counts with its /64, and with its /48 under ten times the limit.
"""

import enum
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import ceil
from typing import NamedTuple

from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICY_NAME_LENGTH, OwnLimits, Policy, PolicySet, Rules

MAX_STORED_LENGTH = 400  # with an address before it, such a name is still stored as it is
MAX_FOLDED_LENGTH = 256  # characters of a name beyond ASCII; some expand 18-fold
LONG_NAME = "~"  # of all longer ones: hardly anybody has one, and no spelling makes another of it

_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\ufe73\u1cf2\u1cf3")  # invisible, but letters to Unicode
_BASE_LETTERS = {"æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i", "ŋ": "n", "ß": "s"}
_BASE_LETTERS |= {"\ua79b": "a", "\ua79d": "o", "\ua79f": "u"}  # of Volapük
_LATIN = re.compile(r"LATIN .*?(?:LETTER|LIGATURE) (?:\S+ )*?([A-Z]{1,2})(?: |$)")
_LETTERS = frozenset({"Lu", "Ll", "Lt", "Lo"})


def folded(name: str) -> str:
    """Return one form for all spellings of a name that a server may take for the same user or client.

    Otherwise guesses in capitals, with accents or strokes, with digits of another script, or with invisible characters
    would be counted apart, which databases ignore by default. Two names with the same form share their failures at one
    address, and nothing else.
    """
    name = name.strip()
    if not (name.isascii() and name.isprintable()):
        if len(name) > MAX_FOLDED_LENGTH:
            return LONG_NAME
        # The letters come first, because casefold makes letters of some accents, and again for what it has made.
        name = unicodedata.normalize("NFC", _plain(_plain(name).casefold()))
        if len(name) > MAX_FOLDED_LENGTH and not name.isascii():
            return LONG_NAME
    return storable_name(name.strip().casefold(), MAX_STORED_LENGTH)


def _plain(name: str) -> str:
    return "".join(map(_base_of, name))


@lru_cache(maxsize=10_000)
def _base_of(letter: str) -> str:
    """Return the letters and digits that a character is sorted with; nothing for a mark or a symbol.

    Databases compare the first level of the Unicode collation algorithm, or less. Python has no table of it, but the
    names of the characters say nearly the same.
    """
    if letter.isascii():
        return letter if letter.isprintable() else ""
    if letter.lower() in _BASE_LETTERS:
        return _BASE_LETTERS[letter.lower()]
    parts = unicodedata.normalize("NFKD", letter)
    if parts != letter:
        return "".join(map(_base_of, parts if len(parts) == 1 else parts.lstrip(" ")))  # a mark may stand on a space
    category, name = unicodedata.category(letter), unicodedata.name(letter, "")
    if category[0] == "N":
        return str(ceil(unicodedata.numeric(letter)))
    if category == "Zs":
        return " "
    latin = _LATIN.search(name)
    if latin and category != "Cf":
        return latin[1].lower()
    is_letter = category in _LETTERS or name.startswith("COMBINING CYRILLIC LETTER ")
    if not is_letter or letter in _FILLERS or letter > "\uffff":  # older collations take all of those for one
        return ""
    plain = name.removeprefix("COMBINING ").partition(" WITH ")[0].replace("KATAKANA", "HIRAGANA")
    plain = re.sub(" LETTER (?:SMALL|FINAL) ", " LETTER ", plain)
    for candidate in (plain, plain.replace(" LETTER ", " SMALL LETTER ")):
        with suppress(KeyError):
            return unicodedata.lookup(candidate)
    return letter


ANYONE = "*"  # in keys without a client or without a name; their scopes differ from those of keys with one

IPV6_NETWORK_BITS = 64  # a single customer can use any address of such a network
IPV6_WIDE_BITS = 48  # a site, which has 65,536 of them; or as many customers of a mobile network
WIDE_FACTOR = 10
_WIDE_ENDING = f"/{IPV6_WIDE_BITS}"
NAT64 = ip_network("64:ff9b::/96")  # the last 32 bits are the IPv4 address (RFC 6052)


class FailureKind(enum.StrEnum):
    scope: str  # of its keys; no endpoint in the configuration can have such a name
    wide_scope: str  # of its keys for a /48

    USER = "user"
    PASSED_ON = "passed_on"
    PASSED_ON_TOTAL = "passed_on_total"
    CLIENT = "client"
    CLIENT_ADDRESS = "client_address"
    ADDRESS = "address"

    def __init__(self, value: str) -> None:
        self.scope = f"failures:{value}"
        self.wide_scope = f"{self.scope}{_WIDE_ENDING}"


_WIDE = (FailureKind.USER, FailureKind.CLIENT, FailureKind.CLIENT_ADDRESS, FailureKind.ADDRESS)
KIND_OF = {kind.scope: kind for kind in FailureKind} | {kind.wide_scope: kind for kind in _WIDE}
"""Kinds by the scope of their keys."""
FAILURE_SCOPES = frozenset(KIND_OF)
NAMING_SCOPES = [FailureKind.USER.scope, FailureKind.PASSED_ON.scope, FailureKind.USER.wide_scope]
"""Scopes of keys that contain a username."""


def failure_key(kind: FailureKind, client_id: str, network: str, username: str | None = None) -> Key:
    """Return the key of failures from a network, see ``networks_of``. Its name is ``<network> <username>``."""
    scope = kind.wide_scope if _WIDE_ENDING in network else kind.scope
    return Key(client_id, network if username is None else f"{network} {username}", scope)


def secret_keys(client_id: str | None, networks: Sequence[str]) -> list[Key]:
    """Return the keys of a wrong secret of a client, by its ``folded`` id; None if nobody knows whose secret it is."""
    clients = [] if client_id is None else [failure_key(FailureKind.CLIENT, client_id, network) for network in networks]
    return [*clients, *(failure_key(FailureKind.CLIENT_ADDRESS, ANYONE, network) for network in networks)]


def password_keys(client_id: str, username: str | None, networks: Sequence[str], *, is_public: bool) -> list[Key]:
    """Return the keys of a wrong password through an authenticated client, which has no secret if it is public.

    The user is the pseudonym of what ``folded`` returns, None if nobody knows whose password it is.
    """
    kind, places = (FailureKind.USER, networks) if is_public else (FailureKind.PASSED_ON, networks[:1])
    users = [] if username is None else [failure_key(kind, client_id, network, username) for network in places]
    if is_public:
        return [*users, *(failure_key(FailureKind.ADDRESS, ANYONE, network) for network in networks)]
    return [*users, failure_key(FailureKind.PASSED_ON_TOTAL, client_id, ANYONE)]


@lru_cache(maxsize=10_000)
def networks_of(remote_addr: str | None) -> tuple[str, ...]:
    """Return where a request comes from: the IPv4 address, or the /64 and then the /48 of the IPv6 address.

    The address may have a port, brackets or a zone, as some servers add them. A text that is no address has no network.
    """
    address = _address_of(remote_addr or "")
    if isinstance(address, IPv6Address):
        wide = (IPV6_NETWORK_BITS, IPV6_WIDE_BITS)
        return tuple(str(ip_network((address, bits), strict=False)) for bits in wide)
    return () if address is None else (str(address),)


_IN_BRACKETS = re.compile(r"\[([^]]*)\](?::\d*)?")
_WITH_PORT = re.compile(r"([0-9.]+):\d*")


def _address_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, that of the IPv4 host behind a mapped or translated one; None if the text is none."""
    decorated = _IN_BRACKETS.fullmatch(text) or _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((decorated[1] if decorated else text).partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address
    return address


@lru_cache(maxsize=10_000)
def is_within(remote_addr: str, networks: tuple[str, ...]) -> bool:
    """Return True if an address, in a form that ``networks_of`` takes, is in one of the networks."""
    address = _address_of(remote_addr)
    return address is not None and any(address in ip_network(network) for network in networks)


class FailureLimits(NamedTuple):
    user: tuple[Policy, ...] = ()
    passed_on: tuple[Policy, ...] = ()
    passed_on_total: tuple[Policy, ...] = ()
    client: tuple[Policy, ...] = ()
    client_address: tuple[Policy, ...] = ()
    address: tuple[Policy, ...] = ()


def failure_policies(limits: FailureLimits, mode: Mode, *, ceiling: Mode | None) -> PolicySet:
    """Return a policy set in which each kind of failure is an endpoint, once more for a /48."""
    by_scope = {kind.scope: getattr(limits, kind.value) for kind in FailureKind}
    by_scope |= {kind.wide_scope: tuple(map(_widened, getattr(limits, kind.value))) for kind in _WIDE}
    endpoints = {scope: Rules(limits=OwnLimits(user=policies)) for scope, policies in by_scope.items()}
    return PolicySet(mode=mode, endpoints=endpoints, ceiling=ceiling)


def _widened(policy: Policy) -> Policy:
    ending = f"-{IPV6_WIDE_BITS}"
    name = policy.name[: MAX_POLICY_NAME_LENGTH - len(ending)].rstrip() + ending
    return policy._replace(name=name, limit=min(WIDE_FACTOR * policy.limit, MAX_LIMIT))
