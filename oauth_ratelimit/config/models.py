"""The configuration file, key by key: types, bounds, defaults and what each key is for.

The JSON Schema and the documentation are made from these models, so every key has a description.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from oauth_ratelimit.config.guard import GuardModel
from oauth_ratelimit.config.limits import BUILT_IN_LIMITS, LimitsModel, built_in_limits
from oauth_ratelimit.config.privacy import PrivacyModel
from oauth_ratelimit.config.problems import expects, refused
from oauth_ratelimit.config.section import Section, Switch
from oauth_ratelimit.config.settings import DEFAULT_DESCRIPTION
from oauth_ratelimit.config.telling import EventsModel, StatisticsModel
from oauth_ratelimit.config.values import (
    ClientId,
    CollectionName,
    EndpointName,
    ErrorCode,
    ErrorDescription,
    GrantType,
    HttpMethod,
    InstanceName,
    ModeName,
    MongoUri,
    Name,
    Pattern,
    Seconds,
    WebAddress,
)


class PlaceModel(Switch):
    """Limits and mode at one place."""

    limits: LimitsModel | None = Field(
        default=None,
        description="Limits of its own, counted apart. Of a client or a plan they replace, kind by kind, those that "
        "the endpoint or grant type has for all.",
    )


# What people call the grant types whose real names are addresses.
GRANT_TYPES = {
    "device_code": "urn:ietf:params:oauth:grant-type:device_code",
    "jwt-bearer": "urn:ietf:params:oauth:grant-type:jwt-bearer",
    "saml2-bearer": "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "token-exchange": "urn:ietf:params:oauth:grant-type:token-exchange",
}


def _by_real_names(places: dict[str, PlaceModel]) -> dict[str, PlaceModel]:
    """Return what differs for grant types under their real names."""
    for short, real in GRANT_TYPES.items():
        if short in places and real in places:
            raise refused(f"{short} and {real} are the same grant type")
    return {GRANT_TYPES.get(name, name): place for name, place in places.items()}


GrantPlaces = Annotated[dict[GrantType, PlaceModel], AfterValidator(_by_real_names)]


class EndpointModel(PlaceModel):
    """Another OAuth endpoint, or any other endpoint of the application."""

    path: list[Pattern] = Field(
        default_factory=list,
        description="Patterns of the request path, such as /oauth/revoke*. Left out: the endpoint is found by its "
        "name, which is then what Authlib or Flask calls it.",
    )
    method: list[HttpMethod] = Field(default_factory=list, description="HTTP methods. Left out: all.")


class PlanModel(Switch):
    """A named set of rules that clients refer to."""

    limits: LimitsModel | None = Field(
        default=None,
        description="Limits at the token endpoint. Each kind named here replaces the default of that kind; [] is no "
        "limit of that kind.",
    )
    grants: GrantPlaces = Field(default_factory=dict, description="What differs for a grant type, by grant type.")
    endpoints: dict[Name, PlaceModel] = Field(
        default_factory=dict, description="What differs at another endpoint, by its name under endpoints."
    )


class ClientModel(PlanModel):
    """What differs for one client."""

    plan: Name | None = Field(
        default=None, description="Name of a plan under plans. What the client itself names comes before it."
    )


class CanaryModel(Section):
    """Where enforcing starts."""

    percent: Annotated[float, Field(ge=0, le=100), expects("a number from 0 to 100")] | None = Field(
        default=None, description="Share of clients that is enforced. Raising it only adds clients."
    )
    salt: str = Field(default="", description="Any text; another one makes other clients come first.")
    instances: Annotated[list[Pattern], Field(min_length=1)] | None = Field(
        default=None, description="Name patterns of the instances that enforce, such as node-1*."
    )

    @model_validator(mode="after")
    def _is_by_clients_or_by_instances(self) -> "CanaryModel":
        if (self.percent is None) == (self.instances is None):
            raise refused("needs either percent or instances")
        return self


class StoreModel(Section):
    """Where counters are shared."""

    uri: MongoUri | None = Field(
        default=None,
        description="MongoDB connection string; its database is used, else oauth_ratelimit. Left out: counters stay "
        "in this process.",
    )
    collection: CollectionName = Field(default="ratelimits", description="Name of the collection.")
    namespace: Name | None = Field(
        default=None, description="Keeps the counters of several issuers in one collection apart."
    )
    timeout: Annotated[float, Seconds(0.01, 60, "10 ms to 60 s")] = Field(
        default=2.0, description="How long one call to MongoDB may take, in the background."
    )


class SyncModel(Section):
    """When counters are shared."""

    interval: Annotated[float, Seconds(0.01, 3600, "10 ms to 1 h")] = Field(
        default=1.0, description="Time between two rounds of sending and fetching counts."
    )
    near_limit: Annotated[Literal["flush", "reserve"], expects("flush or reserve")] = Field(
        default="flush",
        description="What happens close to a limit: flush synchronises early, in the background; reserve asks MongoDB "
        "before the last requests of a quota are admitted, which makes those requests wait.",
    )
    deadline: Annotated[float, Seconds(0.001, 10, "1 ms to 10 s")] = Field(
        default=0.02, description="How long reserve may keep a request waiting; then it is decided on what is known."
    )
    preload: Annotated[int, Field(ge=0, le=10**6), expects("a whole number from 0 to 1000000")] = Field(
        default=1000,
        description="How many of the keys that were busy last a process learns when it starts; 0 for none.",
    )


class DenialModel(Section):
    """What a denied client is told."""

    error: ErrorCode = Field(
        default="temporarily_unavailable", description="OAuth error code. The device grant gets slow_down."
    )
    error_description: ErrorDescription = Field(
        default=DEFAULT_DESCRIPTION, description="The same text for every client."
    )
    error_uri: WebAddress | None = Field(default=None, description="Address of a page that explains how to do better.")
    headers: list[Annotated[Literal["ietf", "x-ratelimit"], expects("ietf or x-ratelimit")]] = Field(
        default=["ietf", "x-ratelimit"],
        description="Families of quota headers: RateLimit and RateLimit-Policy, X-RateLimit-*; [] sends none.",
    )


class FileModel(Section):
    """Configuration of oauth_ratelimit."""

    mode: ModeName = Field(
        default="dry-run",
        description="off admits without counting, dry-run counts and reports but never denies, enforce denies.",
    )
    enabled: bool = Field(default=True, description="false is the same as mode: off, and keeps what mode says.")
    instance: InstanceName | None = Field(
        default=None, description="Name of this instance, for a canary by instance. Left out: the host's name."
    )
    store: StoreModel = Field(default_factory=StoreModel, description="Where counters are shared.")
    sync: SyncModel = Field(default_factory=SyncModel, description="When counters are shared.")
    limits: LimitsModel = Field(
        default_factory=built_in_limits,
        description="Limits of every client at the token endpoint. A kind that is left out has no limit.",
        json_schema_extra={"default": BUILT_IN_LIMITS},
    )
    grants: GrantPlaces = Field(
        default_factory=dict,
        description="What differs for a grant type, such as refresh_token. With limits of its own it is counted apart.",
    )
    trusted_clients: list[Pattern] = Field(
        default_factory=list, description="Ids or patterns of clients that are never denied and never counted."
    )
    plans: dict[Name, PlanModel] = Field(default_factory=dict, description="Named rules that clients refer to.")
    clients: dict[ClientId, ClientModel] = Field(
        default_factory=dict, description="What differs for a client, by client id."
    )
    endpoints: dict[EndpointName, EndpointModel] = Field(
        default_factory=dict,
        description="Other endpoints, such as revocation, introspection, device_authorization, userinfo, registration, "
        "each with limits of its own.",
    )
    canary: CanaryModel | None = Field(
        default=None,
        description="Where mode enforce holds: for a stable share of clients, or on some instances; the rest stays in "
        "dry run. A client or plan with a mode of its own is not affected.",
    )
    denial: DenialModel = Field(default_factory=DenialModel, description="What a denied client is told.")
    guard: GuardModel = Field(
        default_factory=GuardModel, description="Failed authentications at the token endpoint, counted apart."
    )
    events: EventsModel = Field(
        default_factory=EventsModel, description="What the log and the database keep of denials."
    )
    statistics: StatisticsModel = Field(
        default_factory=StatisticsModel, description="What MongoDB keeps of each client's minutes."
    )
    privacy: PrivacyModel = Field(default_factory=PrivacyModel, description="How usernames are stored and shown.")
    max_keys: Annotated[int, Field(ge=1, le=10**9), expects("a whole number from 1 to 1000000000")] = Field(
        default=1_000_000, description="How many keys (client and user) an instance keeps in memory at most."
    )
