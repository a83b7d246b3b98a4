"""The section about failed authentications."""

from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from oauth_ratelimit.config.limits import Entry, named
from oauth_ratelimit.config.problems import expects, refused
from oauth_ratelimit.config.section import Section
from oauth_ratelimit.config.values import ModeName

BUILT_IN_FAILURE_LIMITS: dict[str, Any] = {
    "user": [{"limit": 10, "window": "10m"}],
    "passed_on": [{"limit": 10, "window": "10m", "mode": "dry-run"}],
    "client": [{"limit": 20, "window": "10m"}],
    "address": [{"limit": 100, "window": "10m"}],
}


def _network(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return str(ip_network(value))


Network = Annotated[
    str,
    Field(max_length=50),
    BeforeValidator(_network),
    expects("an address or a network, such as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, with no bits beyond its length"),
]


class GuardLimitsModel(Section):
    """How many failures are allowed, by what they are counted by. All limits that apply must admit a request."""

    user: list[Entry] = Field(
        default_factory=list,
        description="Wrong passwords through a client without a secret, per client, claimed name and address.",
    )
    passed_on: list[Entry] = Field(
        default_factory=list,
        description="Wrong passwords that a client with a secret has passed on, per client, claimed name and address. "
        "The address is that of the client's server: to enforce this lets whoever knows a name keep its owner out "
        "there.",
    )
    client: list[Entry] = Field(
        default_factory=list, description="Wrong client secrets and unknown clients, per claimed client and address."
    )
    address: list[Entry] = Field(
        default_factory=list,
        description="All but what was passed on, per address alone, whatever is claimed.",
    )

    @field_validator("user", "passed_on", "client", "address")
    @classmethod
    def _names_are_unique(cls, entries: list[Entry], info: ValidationInfo) -> list[Entry]:
        names = [name for name, _ in named(f"failures-{info.field_name}", entries)]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise refused(f"several limits have the name {', '.join(doubled)}; give each a name of its own")
        return entries


def built_in_failure_limits() -> GuardLimitsModel:
    """Return the limits that hold when the section has no limits key."""
    return GuardLimitsModel.model_validate(BUILT_IN_FAILURE_LIMITS)


class GuardModel(Section):
    """
    Failed authentications at the token endpoint, counted apart from tokens: against guessing of passwords and secrets.
    """

    mode: ModeName = Field(
        default="off",
        description="off counts nothing, dry-run counts and reports, enforce answers 429 before passwords are looked "
        "at. Not affected by a canary. The global mode off switches it off, too.",
    )
    limits: GuardLimitsModel = Field(
        default_factory=built_in_failure_limits,
        description="How many failures are allowed. A kind that is left out has no limit.",
        json_schema_extra={"default": BUILT_IN_FAILURE_LIMITS},
    )
    trusted_addresses: list[Network] = Field(
        default_factory=list,
        description="Addresses and networks that are never looked at, such as those of clients' own servers.",
    )
    max_keys: Annotated[int, Field(ge=1, le=10**9), expects("a whole number from 1 to 1000000000")] = Field(
        default=100_000, description="How many keys of failures an instance keeps in memory at most, besides max_keys."
    )
