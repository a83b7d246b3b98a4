"""The configuration: frozen settings, each key declared once with its type, default and description."""

import os
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, get_args

from oauth_ratelimit.config.limits import MODE, limits_key
from oauth_ratelimit.config.policies import MODE_KEYS, NAME, RULE_KEYS, build_policies
from oauth_ratelimit.config.types import (
    Key,
    Section,
    choice,
    keys_of,
    list_of,
    or_null,
    scalar,
    seconds,
    setting,
    text,
    unique,
    whole,
)
from oauth_ratelimit.core.failed_auth import FailureLimits
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.pseudonyms import MIN_SECRET_BYTES, PseudonymKey, Pseudonyms

NearLimit = Literal["flush", "reserve"]
HeaderFamily = Literal["ietf", "x-ratelimit"]

HEADER_FAMILIES: tuple[HeaderFamily, ...] = get_args(HeaderFamily)
MAX_KEPT_S = 366 * 86_400
MAX_KEYS = 10**9
MAX_SECRET_BYTES = 4096
MAX_NETWORK_LENGTH = 50

_OAUTH_TEXT = r"^[ !#-\[\]-~]+$"  # RFC 6749, section 5.2; anything else makes Authlib answer 500

MONGO_URI = text("text that begins with mongodb:// or mongodb+srv://", pattern=r"^mongodb(\+srv)?://(?!.*\$\{).")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The database that instances share counters through."""

    uri: str | None = setting(
        or_null(MONGO_URI),
        doc="MongoDB connection string; its database is used, else oauth_ratelimit. Default: none, counters stay in "
        "this process.",
        is_secret=True,
    )
    collection: str = setting(
        text(
            "1 to 120 letters, digits, dots, hyphens and underscores, the first a letter or underscore",
            pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$",
            longest=120,
        ),
        default="ratelimits",
        doc="Name of the collection.",
    )
    namespace: str | None = setting(or_null(NAME), doc="Keeps the counters of several issuers in one collection apart.")
    timeout_s: float = setting(
        seconds(0.01, 60, "10 ms to 60 s"),
        default="2s",
        name="timeout",
        doc="Longest time for one call to MongoDB, in the background.",
    )


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Synchronisation of counters with the database."""

    interval_s: float = setting(
        seconds(0.01, 3600, "10 ms to 1 h"), default="1s", name="interval", doc="Time between two sync cycles."
    )
    near_limit: NearLimit = setting(
        choice(get_args(NearLimit)),
        default="flush",
        doc="Behaviour close to a limit: flush synchronises early, in the background; reserve asks MongoDB before "
        "the last requests of a quota are admitted, which makes those requests wait.",
    )
    deadline_s: float = setting(
        seconds(0.001, 10, "1 ms to 10 s"),
        default="20ms",
        name="deadline",
        doc="Longest time that reserve keeps a request waiting; then the counts that are known decide.",
    )
    preload_count: int = setting(
        whole(0, 10**6),
        default=1000,
        name="preload",
        doc="Number of recently busy keys that a process reads when it starts; 0 for none.",
    )


@dataclass(frozen=True, slots=True)
class DenialSettings:
    """The answer to a denied client."""

    error: str = setting(
        text(
            "1 to 64 printable ASCII characters other than quotation mark and backslash",
            pattern=_OAUTH_TEXT,
            longest=64,
        ),
        default="temporarily_unavailable",
        doc="OAuth error code. The device grant gets slow_down.",
    )
    error_description: str = setting(
        text(
            "1 to 500 printable ASCII characters other than quotation mark and backslash",
            pattern=_OAUTH_TEXT,
            longest=500,
        ),
        default="This client has requested too many access tokens. Reuse each token until it expires, and try again "
        "after the seconds given in Retry-After.",
        doc="The same text for every client.",
    )
    error_uri: str | None = setting(
        or_null(
            text(
                "an http or https address in ASCII, up to 1000 characters",
                pattern=r"^https?://[!#-\[\]-~]+$",
                longest=1000,
            )
        ),
        doc="Address of a page that explains how to do better.",
    )
    headers: tuple[HeaderFamily, ...] = setting(
        list_of(choice(HEADER_FAMILIES), build=unique),
        default=list(HEADER_FAMILIES),
        doc="Families of quota headers: RateLimit and RateLimit-Policy, X-RateLimit-*; [] sends none. They describe "
        "enforced limits only.",
    )


def _network(value: object) -> str:
    network = str(ip_network(value)) if isinstance(value, str) else ""
    if not 0 < len(network) <= MAX_NETWORK_LENGTH:  # an IPv6 zone may be text of any length
        raise ValueError
    return network


def _failures_key(kind: str, doc: str) -> Key:
    return limits_key(kind, doc, prefix=f"failures-{kind}", default=[])


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Failed authentications, counted apart: against guessing of passwords and secrets."""

    mode: Mode = setting(
        MODE,
        default="off",
        doc="off counts nothing, dry-run counts and reports, enforce answers 429 before passwords are looked at. Not "
        "affected by a canary. The global mode off switches it off, too.",
    )
    limits: FailureLimits = setting(
        Section(
            "Limits of the guard",
            "Allowed failures, by what they are counted by. All limits that apply must admit a request.",
            (
                _failures_key(
                    "user", "Wrong passwords through a client without a secret, per client, claimed name and address."
                ),
                _failures_key(
                    "passed_on",
                    "Wrong passwords that a client with a secret has passed on, per client, claimed name and "
                    "address. The address is that of the client's server: enforcing this lets anyone who knows a "
                    "name lock its owner out there.",
                ),
                _failures_key(
                    "passed_on_total",
                    "All wrong passwords that a client with a secret has passed on, per client. Denies the client's "
                    "password requests alone.",
                ),
                _failures_key("client", "Wrong client secrets and unknown clients, per claimed client and address."),
                _failures_key(
                    "address", "Wrong passwords through clients without a secret, per address. Denies those alone."
                ),
            ),
            build=FailureLimits,
        ),
        default={
            "user": [{"limit": 10, "window": "10m"}],
            "passed_on": [{"limit": 10, "window": "10m", "mode": "dry-run"}],
            "passed_on_total": [{"limit": 1000, "window": "10m"}],
            "client": [{"limit": 20, "window": "10m"}],
            "address": [{"limit": 100, "window": "10m"}],
        },
        doc="Allowed failures. A kind that is left out has no limit.",
    )
    trusted_addresses: tuple[str, ...] = setting(
        list_of(
            scalar(
                _network,
                "an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, with no bits beyond its "
                "length",
                schema={"type": "string", "maxLength": MAX_NETWORK_LENGTH},
                words="text",
            ),
            build=unique,
        ),
        default=[],
        doc="Addresses and networks that are never counted or denied, such as those of clients' own servers.",
    )
    max_keys: int = setting(
        whole(1, MAX_KEYS),
        default=100_000,
        doc="Largest number of keys of failures that an instance keeps in memory, besides max_keys.",
    )


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Log events and stored records of denials."""

    per_minute: int = setting(
        whole(1, 10**6),
        default=300,
        doc="Largest number of events about denials that a process logs in a minute. A single client gets up to a "
        "quarter of it.",
    )
    keep_denials_s: float = setting(
        seconds(0, MAX_KEPT_S, "0 to 366 days"),
        default="30d",
        name="keep_denials",
        doc="Time for which explain --id finds a denial: one small document per client, user and minute with "
        "denials; 0 keeps none.",
    )
    request_id_header: str | None = setting(
        or_null(
            text(
                "the name of an HTTP header, such as X-Request-ID",
                pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
                longest=100,
            )
        ),
        default="X-Request-ID",
        doc="The request header whose value becomes request_id in events about denials; null for none.",
    )


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """Statistics of each client's minutes in MongoDB: charts, what-if and the report use them."""

    keep_s: float = setting(
        seconds(0, MAX_KEPT_S, "0 to 366 days"),
        default="30d",
        name="keep",
        doc="Time for which they are kept: one document per client and minute with requests; 0 keeps none.",
    )
    clients_per_minute: int = setting(
        whole(1, 100_000),
        default=1000,
        doc="Largest number of clients that a process counts apart in a minute; the rest are counted as one.",
    )
    users_per_client: int = setting(
        whole(0, 1000),
        default=20,
        doc="Largest number of a client's users that a process records in a minute, the heaviest; 0 keeps no names.",
    )
    token_lifetime_s: float | None = setting(
        or_null(seconds(1, MAX_KEPT_S, "1 s to 366 days")),
        name="token_lifetime",
        doc="Lifetime of a token where it is not recorded: the report takes it from expires_in of the tokens issued, "
        "and without either from an hour, and says nothing of it in letters.",
    )


def read_pseudonym_key(*, env: str | None, file: str | None) -> PseudonymKey:
    """Return the key that an environment variable or a file holds.

    Raises:
        ValueError: There is none that can be used. Says where it should be, and nothing of what is there.
    """
    if file is None and env is not None:
        content = os.environ.get(env)
        if content is None:
            raise ValueError(f"the environment variable {env} is not set")
        secret = content.encode("utf-8", "surrogateescape").strip()
    elif env is None and file is not None:
        secret = _start_of(file).strip()
    else:
        raise ValueError("needs either env or file")
    if len(secret) > MAX_SECRET_BYTES:
        raise ValueError(f"the key is longer than {MAX_SECRET_BYTES} bytes")
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"the key has {len(secret)} bytes, allowed: at least {MIN_SECRET_BYTES}, as openssl rand -hex 32 makes"
        )
    return PseudonymKey.of(secret)


def _start_of(path: str) -> bytes:
    """Return as much of a file as a key and the white space around it may take."""
    try:
        with Path(path).open("rb") as file:
            return file.read(2 * MAX_SECRET_BYTES)
    except (OSError, ValueError) as exc:
        raise ValueError(f"the file cannot be read: {getattr(exc, 'strerror', None) or type(exc).__name__}") from None


_PSEUDONYM_KEY = Section(
    "One key of user names",
    "A key for user names, in the environment or in a file, never in the configuration itself.",
    (
        Key(
            "env",
            or_null(
                # In capitals, so that a key that is put here by mistake is hardly ever taken for a name and repeated.
                text(
                    "the name of an environment variable, in capitals, digits and underscores",
                    pattern=r"^[A-Z_][A-Z0-9_]*$",
                    longest=200,
                )
            ),
            "The environment variable that holds the key.",
        ),
        Key(
            "file",
            or_null(text("the absolute path of a file", pattern="^/", longest=4096)),
            "The file that holds the key. White space around it is left out.",
        ),
    ),
    build=read_pseudonym_key,
)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """User pseudonyms in MongoDB, logs, metrics, hooks, pages and reports."""

    user_names: str = setting(
        choice(("plain", "hashed")),
        default="plain",
        doc="plain stores and shows usernames as they are, hashed a keyed hash (HMAC-SHA-256) under the first key. A "
        "change starts new counts.",
    )
    keys: tuple[PseudonymKey, ...] = setting(
        list_of(_PSEUDONYM_KEY),
        default=[],
        doc="Keys of the hashes, the newest first. The first one hashes usernames, and a new one starts new counts. "
        "All others, or all with plain, are former keys: only erase uses them (docs/privacy.md).",
    )

    def __post_init__(self) -> None:
        if self.user_names == "hashed" and not self.keys:
            raise ValueError("hashed needs at least one key under keys")
        if len({each.label for each in self.keys}) < len(self.keys):
            raise ValueError("two of the keys are the same")

    @property
    def key(self) -> PseudonymKey | None:
        """The key that hashes usernames; None if they stay plain."""
        return self.keys[0] if self.user_names == "hashed" else None

    @property
    def former_keys(self) -> tuple[PseudonymKey, ...]:
        """The keys that only ``erase`` uses."""
        return self.keys[1:] if self.user_names == "hashed" else self.keys

    def names(self) -> Pseudonyms:
        """Return the pseudonyms of usernames under these keys."""
        return Pseudonyms(self.key, self.former_keys)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration.

    Args:
        policies: Limits and modes of every client.
        store: The database that instances share counters through.
        sync: Synchronisation of counters with the database.
        denial: The answer to a denied client.
        guard: Failed authentications.
        events: Log events and stored records of denials.
        statistics: Statistics of each client's minutes.
        privacy: User pseudonyms.
        max_keys: Largest number of keys that an instance keeps in memory.
    """

    policies: PolicySet = field(default_factory=PolicySet)
    store: StoreSettings = setting(Section.of(StoreSettings, "store"), default={})
    sync: SyncSettings = setting(Section.of(SyncSettings, "sync"), default={})
    denial: DenialSettings = setting(Section.of(DenialSettings, "denial"), default={})
    guard: GuardSettings = setting(Section.of(GuardSettings, "guard"), default={})
    events: EventSettings = setting(Section.of(EventSettings, "events"), default={})
    statistics: StatisticsSettings = setting(Section.of(StatisticsSettings, "statistics"), default={})
    privacy: PrivacySettings = setting(Section.of(PrivacySettings, "privacy"), default={})
    max_keys: int = setting(
        whole(1, MAX_KEYS),
        default=1_000_000,
        doc="Largest number of keys (client and user) that an instance keeps in memory.",
    )

    @property
    def is_guarded(self) -> bool:
        """True if failed authentications are counted."""
        return self.guard.mode is not Mode.OFF and self.policies.mode is not Mode.OFF


_STORE, _SYNC, *_OTHERS = _KEYS = keys_of(Settings)


def _settings(**values: Any) -> Settings:
    own = {each.name: values.pop(each.name) for each in _KEYS}
    return Settings(policies=build_policies(**values), **own)


FILE = Section(
    "The file", "Configuration of oauth_ratelimit.", (*MODE_KEYS, _STORE, _SYNC, *RULE_KEYS, *_OTHERS), build=_settings
)
