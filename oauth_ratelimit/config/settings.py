"""The configuration: frozen settings, each key declared once with its type and default. docs/keys.yaml describes it."""

import os
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from oauth_ratelimit.config.errors import Problems, without_parts_of
from oauth_ratelimit.config.policies import MODE, NAME, POLICY_KEYS, build_policies, limits_key, switched
from oauth_ratelimit.config.types import (
    FLAG,
    ConfigKey,
    choice,
    keys_of,
    list_of,
    oauth_text,
    or_null,
    scalar,
    seconds,
    section,
    setting,
    subsection,
    text,
    unique,
    whole,
)
from oauth_ratelimit.core.failed_auth import FailureLimits
from oauth_ratelimit.core.key import MIN_SECRET_BYTES, PseudonymKey, Pseudonyms
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import PolicySet, under

DEFAULT_DATABASE = "oauth_ratelimit"
HEADER_FAMILIES = ("ietf", "x-ratelimit")
MAX_KEPT_S = 366 * 86_400
MAX_KEYS = 10**9
MAX_NETWORK_LENGTH = 50
TOO_MANY_TOKENS = (
    "This client has requested too many access tokens. Reuse each token until it expires, and try again "
    "after the seconds given in Retry-After."
)
AUTO, OFF = "auto", "off"  # of host
HOST = rf"{AUTO}|{OFF}|/[!-.0-~]([!-~]*[!-.0-~])?"  # the path is ASCII without spaces, and no slash ends it
MAX_PATH_LENGTH = 1000
MAX_SECRET_BYTES = 4096


def read_pseudonym_key(*, env: str | None = None, file: str | None = None) -> PseudonymKey:
    """Return the key that an environment variable or a file holds.

    Raises ``ValueError`` if it cannot be used, with the place where it should be, and nothing of what is there.
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


SECRET_KEY = section(
    "A secret key",
    "The key of a hash, in the environment or in a file, never in the configuration itself.",
    (
        ConfigKey(
            "env",
            or_null(
                # In capitals, so that a key that is put here by mistake is hardly ever taken for a name and repeated.
                text(
                    "the name of an environment variable, in capitals, digits and underscores",
                    pattern=r"^[A-Z_][A-Z0-9_]*$",
                    longest=200,
                )
            ),
        ),
        ConfigKey("file", or_null(text("the absolute path of a file", pattern="^/", longest=4096))),
    ),
    build=read_pseudonym_key,
)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """User pseudonyms in MongoDB, logs, metrics, hooks, pages and reports."""

    user_names: str = setting(choice(("plain", "hashed")), default="plain")
    keys: tuple[PseudonymKey, ...] = setting(list_of(SECRET_KEY), default=[])

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

    def pseudonyms(self) -> Pseudonyms:
        return Pseudonyms(self.key, self.former_keys)


_URI = text("text that begins with mongodb:// or mongodb+srv://", pattern=r"^mongodb(\+srv)?://(?!.*\$\{).")
# So no part of a password that is not escaped is taken for a database.
_FORM = re.compile(r"mongodb(\+srv)?://([^@/?]*@)?[^@/?]+(/[^@/?]*)?(\?(\w+=[^&;]*([&;]|$))*)?")
UNESCAPED = "its parts cannot be told apart; in user and password @ is written %40, / %2F, : %3A, ? %3F and % %25"


def _connection_string(value: object, at: str, problems: Problems) -> str | None:
    """Return what the driver can parse. Asks no server and reads no file; only the DNS knows what ``+srv`` means."""
    from pymongo.errors import PyMongoError  # heavy, and needed by a configuration with an address only
    from pymongo.uri_parser import parse_uri

    uri: str | None = _URI.parse(value, at, problems)
    if uri is not None:
        try:
            if not uri.startswith("mongodb+srv:"):
                parse_uri(uri, validate=False)
            if not _FORM.fullmatch(uri):
                raise ValueError(UNESCAPED)
        except (ValueError, PyMongoError) as exc:
            problems.add(at, without_parts_of(uri, str(exc)))
            return None
    return uri


MONGO_URI = _URI._replace(parse=_connection_string)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The database that instances share counters through."""

    uri: str | None = setting(or_null(MONGO_URI), is_secret=True)
    collection: str = setting(
        text(
            "1 to 120 letters, digits, dots, hyphens and underscores, the first a letter or underscore",
            pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$",
            longest=120,
        ),
        default="ratelimits",
    )
    namespace: str | None = setting(or_null(NAME))
    timeout_s: float = setting(seconds(0.01, 60, "10 ms to 60 s"), default="2s")

    @property
    def database(self) -> str | None:
        """Name of the database, as the driver takes it from the connection string; None without one."""
        if self.uri is None:
            return None
        path = self.uri.partition("://")[2].partition("?")[0].partition("/")[2]
        return unquote_plus(path).partition(".")[0] or DEFAULT_DATABASE  # what follows a dot is a collection

    def has_same_collections(self, other: "StoreSettings") -> bool:
        """Return whether both name the same collections, however their server is reached."""
        return (self.database, self.collection, self.namespace) == (other.database, other.collection, other.namespace)


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Synchronisation of counters with the database."""

    interval_s: float = setting(seconds(0.01, 3600, "10 ms to 1 h"), default="1s")
    max_interval_s: float = setting(seconds(0.01, 3600, "10 ms to 1 h"), default="10s")
    preload_count: int = setting(whole(0, 10**6), default=1000)


_ADDRESS = text(
    "an http or https address in ASCII, up to 1000 characters", pattern=r"^https?://[!#-\[\]-~]+$", longest=1000
)


@dataclass(frozen=True, slots=True)
class DenialSettings:
    """The answer to a denied client."""

    error: str = setting(oauth_text(64), default="temporarily_unavailable")
    error_description: str = setting(oauth_text(500), default=TOO_MANY_TOKENS)
    error_uri: str | None = setting(or_null(_ADDRESS))
    headers: tuple[str, ...] = setting(list_of(choice(HEADER_FAMILIES), build=unique), default=list(HEADER_FAMILIES))
    expose_headers: bool = setting(FLAG, default=False)
    partition_key: PseudonymKey | None = setting(or_null(SECRET_KEY))


def _network(value: object) -> str:
    network = str(ip_network(value)) if isinstance(value, str) else ""
    if not 0 < len(network) <= MAX_NETWORK_LENGTH:  # an IPv6 zone may be text of any length
        raise ValueError
    return network


_NETWORK = scalar(
    _network,
    "an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, with no bits beyond its length",
    schema={"type": "string", "maxLength": MAX_NETWORK_LENGTH},
    words="an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32",
)


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Failed authentications, counted apart: against guessing of passwords and secrets."""

    mode: Mode = setting(MODE, default="off")
    limits: FailureLimits = setting(
        section(
            "Limits of the guard",
            "Allowed failures, by what they are counted by. All limits that apply must admit a request.",
            [limits_key(kind, prefix=f"failures-{kind}") for kind in FailureLimits._fields],
            build=FailureLimits,
        ),
        default={
            "user": [{"limit": 10, "window": "10m"}],
            "passed_on": [{"limit": 10, "window": "10m", "mode": "dry-run"}],
            "passed_on_total": [{"limit": 1000, "window": "10m"}],
            "client": [{"limit": 20, "window": "10m"}],
            "client_address": [{"limit": 100, "window": "10m"}],
            "address": [{"limit": 100, "window": "10m"}],
        },
    )
    trusted_addresses: tuple[str, ...] = setting(list_of(_NETWORK, build=unique), default=[])
    max_keys: int = setting(whole(1, MAX_KEYS), default=100_000)


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """Tokens that a process keeps in memory for limits with on_limit: reuse."""

    max_age_s: float = setting(seconds(1, 3600, "1 s to 1 h"), default="5m")
    max_bytes: int = setting(whole(0, 10**10), default=20_000_000)


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Log events and stored records of denials."""

    per_minute: int = setting(whole(1, 10**6), default=300)
    keep_denials_s: float = setting(seconds(0, MAX_KEPT_S, "0 to 366 days"), default="30d")
    request_id_header: str | None = setting(
        or_null(
            text(
                "the name of an HTTP header, such as X-Request-ID",
                pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
                longest=100,
            )
        ),
        default="X-Request-ID",
    )


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """Statistics of each client's minutes in MongoDB: charts, what-if and the report use them."""

    keep_s: float = setting(seconds(0, MAX_KEPT_S, "0 to 366 days"), default="30d")
    clients_per_minute: int = setting(whole(1, 100_000), default=1000)
    users_per_client: int = setting(whole(0, 1000), default=20)
    token_lifetime_s: float | None = setting(or_null(seconds(1, MAX_KEPT_S, "1 s to 366 days")))


def _host(value: object) -> str:
    if value is False:
        return OFF
    if not isinstance(value, str) or not re.fullmatch(HOST, value) or len(value) > MAX_PATH_LENGTH:
        raise ValueError
    value.encode()
    return value


_HOST = scalar(
    _host,
    "auto, off, or the absolute path of a file, without spaces, in a directory that other users cannot write to, such "
    "as /var/lib/myauth/ratelimit.db",
    schema={
        "anyOf": [
            {"const": False},
            {"type": "string", "pattern": rf"^({HOST})$", "maxLength": MAX_PATH_LENGTH},
        ]
    },
    words="`auto`, `off`, or an absolute path",
)


@dataclass(frozen=True)
class Settings:
    """The whole configuration: an attribute for each section, and the policies that the others make together."""

    policies: PolicySet = field(default_factory=PolicySet)
    store: StoreSettings = subsection(StoreSettings, "store")
    sync: SyncSettings = subsection(SyncSettings, "sync")
    denial: DenialSettings = subsection(DenialSettings, "denial")
    guard: GuardSettings = subsection(GuardSettings, "guard")
    reuse: ReuseSettings = subsection(ReuseSettings, "reuse")
    events: EventSettings = subsection(EventSettings, "events")
    statistics: StatisticsSettings = subsection(StatisticsSettings, "statistics")
    privacy: PrivacySettings = subsection(PrivacySettings, "privacy")
    host: str = setting(_HOST, default=AUTO)
    max_keys: int = setting(whole(1, MAX_KEYS), default=1_000_000)
    warnings: tuple[str, ...] = ()  # one line for each key that is ignored
    is_rejected: bool = False  # limits are off because the file is not valid; the guard goes on

    @property
    def host_path(self) -> str | None:
        """The file that ``host`` names, None if it names none."""
        return None if self.host in (AUTO, OFF) else self.host

    @property
    def service(self) -> tuple[str, ...]:
        """Identity of the counters in the store: processes that share them have the same. Empty without a store."""
        store = self.store
        if store.uri is None:
            return ()
        return f"{store.database}", store.collection, f"{store.namespace}", f"{self.privacy.key}"

    @cached_property
    def is_guarded(self) -> bool:
        return self.guard_mode is not Mode.OFF

    @property
    def guard_mode(self) -> Mode:
        """Mode that the guard has: an operator's dry run for everybody is one of the guard, too."""
        is_off = self.policies.mode is Mode.OFF and not self.is_rejected
        return Mode.OFF if is_off else under(self.policies.ceiling, self.guard.mode)

    def switched_off(self) -> "Settings":
        """Return these settings with ``mode: off``, which beats all else."""
        return replace(self, policies=self.policies._replace(mode=Mode.OFF), is_rejected=False)


def _settings(**values: Any) -> Settings:
    own = {each.name: values.pop(each.name) for each in keys_of(Settings)}
    return Settings(policies=build_policies(**values), **own)


FILE = section(
    "The file", "Configuration of oauth_ratelimit.", (*POLICY_KEYS, *keys_of(Settings)), build=switched(_settings)
)
