"""The configuration as the rest of the package sees it: checked, complete, never changed in place."""

from dataclasses import dataclass, field
from typing import Literal

from oauth_ratelimit.core.failed_auth import FailureLimits
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.pseudonyms import PseudonymKey, Pseudonyms

NearLimit = Literal["flush", "reserve"]
HeaderFamily = Literal["ietf", "x-ratelimit"]

DEFAULT_DESCRIPTION = (
    "This client has requested too many access tokens. Reuse each token until it expires, "
    "and try again after the seconds given in Retry-After."
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where counters are shared.

    Args:
        uri: MongoDB connection string, None for this process only. Not in the repr, because it may hold a password.
        collection: Name of the collection.
        namespace: Keeps several issuers apart in one collection; None if there is one.
        timeout_s: How long one call to MongoDB may take.
    """

    uri: str | None = field(default=None, repr=False)
    collection: str = "ratelimits"
    namespace: str | None = None
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """When counters are shared.

    Args:
        interval_s: Time between two sync cycles.
        near_limit: ``flush`` synchronises early in the background, ``reserve`` asks MongoDB before the last requests.
        deadline_s: How long ``reserve`` may keep a request waiting.
        preload_count: How many keys a process learns when it starts.
    """

    interval_s: float = 1.0
    near_limit: NearLimit = "flush"
    deadline_s: float = 0.02
    preload_count: int = 1000


@dataclass(frozen=True, slots=True)
class DenialSettings:
    """What a denied client is told.

    Args:
        error: OAuth error code.
        error_description: Fixed ASCII text.
        error_uri: Address of a page that explains, None for none.
        headers: Which families of quota headers are sent.
    """

    error: str = "temporarily_unavailable"
    error_description: str = DEFAULT_DESCRIPTION
    error_uri: str | None = None
    headers: tuple[HeaderFamily, ...] = ("ietf", "x-ratelimit")


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Failed authentications.

    Args:
        mode: What is done about too many.
        limits: How many are allowed.
        trusted_addresses: Addresses and networks that are not looked at.
        max_keys: How many keys an instance keeps in memory at most.
    """

    mode: Mode = Mode.OFF
    limits: FailureLimits = field(default_factory=FailureLimits)
    trusted_addresses: tuple[str, ...] = ()
    max_keys: int = 100_000


@dataclass(frozen=True, slots=True)
class EventSettings:
    """What the log and the database keep of denials.

    Args:
        per_minute: How many events about denials a process logs in a minute at most.
        keep_denials_s: How long ``explain --id`` finds a denial; 0 keeps none.
        request_id_header: The request header that becomes ``request_id``, None for none.
    """

    per_minute: int = 300
    keep_denials_s: float = 30 * 86_400.0
    request_id_header: str | None = "X-Request-ID"


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """What is kept of each client's minutes.

    Args:
        keep_s: How long; 0 keeps none.
        clients_per_minute: How many clients a process tells apart in a minute; the rest are one.
        users_per_client: How many of a client's users a process tells of in a minute, the heaviest.
        token_lifetime_s: How long a token can be used; the report goes by it.
    """

    keep_s: float = 30 * 86_400.0
    clients_per_minute: int = 1000
    users_per_client: int = 20
    token_lifetime_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """How usernames are stored and shown.

    Args:
        user_names: ``plain`` or ``hashed``.
        keys: Keys of the hashes. The first one hashes the names if they are hashed; the others are former keys.
    """

    user_names: str = "plain"
    keys: tuple[PseudonymKey, ...] = ()

    @property
    def key(self) -> PseudonymKey | None:
        """The key that hashes usernames; None if they stay plain."""
        return self.keys[0] if self.user_names == "hashed" else None

    @property
    def former_keys(self) -> tuple[PseudonymKey, ...]:
        """The keys that only ``erase`` uses."""
        return self.keys[1:] if self.user_names == "hashed" else self.keys

    def names(self) -> Pseudonyms:
        """Return what turns usernames into pseudonyms."""
        return Pseudonyms(self.key, self.former_keys)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the configuration says.

    Args:
        policies: Who is limited, and how.
        store: Where counters are shared.
        sync: When counters are shared.
        denial: What a denied client is told.
        guard: Failed authentications.
        events: What the log and the database keep of denials.
        statistics: What is kept of each client's minutes.
        privacy: How usernames are stored and shown.
        max_keys: How many keys an instance keeps in memory at most.
    """

    policies: PolicySet = field(default_factory=PolicySet)
    store: StoreSettings = field(default_factory=StoreSettings)
    sync: SyncSettings = field(default_factory=SyncSettings)
    denial: DenialSettings = field(default_factory=DenialSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    events: EventSettings = field(default_factory=EventSettings)
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    max_keys: int = 1_000_000

    @property
    def is_guarded(self) -> bool:
        """Whether failed authentications are counted."""
        return self.guard.mode is not Mode.OFF and self.policies.mode is not Mode.OFF
