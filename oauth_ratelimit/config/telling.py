"""The sections about what operators and the owners of clients are told."""

from typing import Annotated

from pydantic import Field

from oauth_ratelimit.config.problems import expects
from oauth_ratelimit.config.section import Section
from oauth_ratelimit.config.values import Seconds

MAX_KEPT_S = 366 * 86_400

HeaderName = Annotated[
    str,
    Field(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"),
    expects("the name of an HTTP header, such as X-Request-ID"),
]


class EventsModel(Section):
    """What the log and the database keep of denials."""

    per_minute: Annotated[int, Field(ge=1, le=1_000_000), expects("a whole number from 1 to 1000000")] = Field(
        default=300,
        description="How many events about denials a process logs in a minute at most. A single client gets up to a "
        "quarter of it.",
    )
    keep_denials: Annotated[float, Seconds(0, MAX_KEPT_S, "0 to 366 days")] = Field(
        default=30 * 86_400.0,
        description="How long explain --id finds a denial: one small document per client, user and minute with "
        "denials; 0 keeps none.",
    )
    request_id_header: HeaderName | None = Field(
        default="X-Request-ID",
        description="The request header whose value becomes request_id in events about denials; null for none.",
    )


class StatisticsModel(Section):
    """What MongoDB keeps of each client's minutes: charts, what-if and the report work from it."""

    keep: Annotated[float, Seconds(0, MAX_KEPT_S, "0 to 366 days")] = Field(
        default=30 * 86_400.0,
        description="How long: one document per client and minute in which it asks; 0 keeps none.",
    )
    clients_per_minute: Annotated[int, Field(ge=1, le=100_000), expects("a whole number from 1 to 100000")] = Field(
        default=1000,
        description="How many clients a process tells apart in a minute at most; the rest are counted as one.",
    )
    users_per_client: Annotated[int, Field(ge=0, le=1000), expects("a whole number from 0 to 1000")] = Field(
        default=20,
        description="How many of a client's users a process tells of in a minute at most, the heaviest; 0 keeps no "
        "user names.",
    )
    token_lifetime: Annotated[float, Seconds(1, MAX_KEPT_S, "1 s to 366 days")] = Field(
        default=3600.0,
        description="How long a token can be used. The report compares what clients ask for with what they need.",
    )
