"""
The values that stand in the configuration file: numbers, durations, names, each with what is allowed in words.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from oauth_ratelimit.config.notation import DURATION_NOTATION, DURATION_PATTERN, parse_duration
from oauth_ratelimit.config.problems import expects, not_allowed
from oauth_ratelimit.core.policy import MAX_LIMIT, TOKEN_ENDPOINT

MAX_WINDOW_S = 366 * 86_400

RESERVED_ENDPOINTS = (TOKEN_ENDPOINT, "client_total")  # they name counters of their own

DURATION_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]}
)


def seconds_between(low_s: float, high_s: float, allowed: str) -> PlainValidator:
    """
    Return the validator of a duration within bounds; ``allowed`` says them in words.
    """

    def validate(value: object) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError:
            seconds = -1.0
        if not low_s <= seconds <= high_s:
            raise not_allowed(f"{allowed} ({DURATION_NOTATION})")
        return seconds

    return PlainValidator(validate)


def _whole_seconds(value: object) -> int:
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= MAX_WINDOW_S or seconds != int(seconds):
        raise not_allowed(f"whole seconds from 1 s to 366 days ({DURATION_NOTATION})")
    return int(seconds)


WindowSeconds = Annotated[int, PlainValidator(_whole_seconds), DURATION_SCHEMA]

Amount = Annotated[int, Field(ge=1, le=MAX_LIMIT), expects(f"a whole number from 1 to 2^53 ({MAX_LIMIT})")]

ModeName = Annotated[
    Literal["off", "dry-run", "enforce"],
    # YAML 1.1 reads a bare off as false.
    BeforeValidator(lambda value: "off" if value is False else value),
    expects("off, dry-run or enforce"),
]

EstimatorName = Annotated[Literal["sliding", "proportional"], expects("sliding or proportional")]

# What a structured-field string (RFC 9651) carries without escapes, and a metric label too.
PolicyName = Annotated[
    str,
    Field(max_length=64, pattern=r"^[!#-\[\]-~]([ !#-\[\]-~]*[!#-\[\]-~])?$"),
    expects("1 to 64 printable ASCII characters other than quotation mark and backslash, no space at the ends"),
]

ClientId = Annotated[
    str, Field(min_length=1, max_length=1024), expects("text of 1 to 1024 characters; a number needs quotes")
]

Pattern = Annotated[
    str, Field(min_length=1, max_length=1024), expects("text of 1 to 1024 characters, with * ? [] as in a shell")
]

Name = Annotated[
    str,
    Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    expects("1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit"),
]

EndpointName = Annotated[
    Name,
    BeforeValidator(lambda name: None if name in RESERVED_ENDPOINTS else name),
    expects(
        "1 to 64 letters, digits, dots, hyphens and underscores, but neither "
        f"{' nor '.join(RESERVED_ENDPOINTS)} (limits of the token endpoint stand under limits)"
    ),
]

GrantType = Annotated[str, Field(max_length=255, pattern=r"^[!-~]+$"), expects("a grant type, such as refresh_token")]

HttpMethod = Annotated[
    str, Field(max_length=20, pattern=r"^[A-Z]+$"), expects("an HTTP method in capitals, such as POST")
]

_OAUTH_TEXT = r"^[ !#-\[\]-~]+$"  # RFC 6749, section 5.2; anything else makes Authlib answer 500

ErrorCode = Annotated[
    str,
    Field(max_length=64, pattern=_OAUTH_TEXT),
    expects("1 to 64 printable ASCII characters other than quotation mark and backslash"),
]

ErrorDescription = Annotated[
    str,
    Field(max_length=500, pattern=_OAUTH_TEXT),
    expects("1 to 500 printable ASCII characters other than quotation mark and backslash"),
]

WebAddress = Annotated[
    str,
    Field(max_length=1000, pattern=r"^https?://[!#-\[\]-~]+$"),
    expects("an http or https address in ASCII, up to 1000 characters"),
]

MongoUri = Annotated[
    str, Field(pattern=r"^mongodb(\+srv)?://."), expects("text that begins with mongodb:// or mongodb+srv://")
]

CollectionName = Annotated[
    str,
    Field(max_length=120, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$"),
    expects("1 to 120 letters, digits, dots, hyphens and underscores, the first a letter or underscore"),
]

InstanceName = Annotated[str, Field(min_length=1, max_length=255), expects("text of 1 to 255 characters")]
