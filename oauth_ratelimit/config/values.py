"""The values that stand in the configuration file: numbers, durations, names, each with what is allowed in words."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import core_schema

from oauth_ratelimit.config.notation import DURATION_NOTATION, DURATION_PATTERN, parse_duration
from oauth_ratelimit.config.problems import expects, not_allowed
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICY_NAME_LENGTH, POLICY_NAME_PATTERN, TOKEN_ENDPOINT
from oauth_ratelimit.core.window import MAX_FRAMES, MAX_WINDOW_S, Estimator

RESERVED_ENDPOINTS = (TOKEN_ENDPOINT, "client_total")  # they name counters of their own


@dataclass(frozen=True, slots=True)
class Seconds:
    """The annotation of a duration within bounds.

    Args:
        low_s: The shortest that is allowed.
        high_s: The longest that is allowed.
        allowed: The bounds in words.
        is_whole: Whether only whole seconds are allowed.
    """

    low_s: float
    high_s: float
    allowed: str
    is_whole: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"type": "integer" if self.is_whole else "number", "minimum": self.low_s, "maximum": self.high_s}
        return {"anyOf": [number, {"type": "string", "pattern": DURATION_PATTERN}]}

    def validate(self, value: object) -> float:
        """Return the duration in seconds, an int if it has to be whole."""
        try:
            seconds = parse_duration(value)
        except ValueError:
            seconds = -1.0
        if not self.low_s <= seconds <= self.high_s or (self.is_whole and not seconds.is_integer()):
            raise not_allowed(f"{self.allowed} ({DURATION_NOTATION})")
        return int(seconds) if self.is_whole else seconds


WindowSeconds = Annotated[int, Seconds(1, MAX_WINDOW_S, "whole seconds from 1 s to 366 days", is_whole=True)]

Amount = Annotated[int, Field(ge=1, le=MAX_LIMIT), expects(f"a whole number from 1 to 2^53 ({MAX_LIMIT})")]

FrameCount = Annotated[
    int, Field(ge=1, le=MAX_FRAMES), expects(f"a whole number from 1 to {MAX_FRAMES} that divides the window")
]

ModeName = Annotated[
    Literal["off", "dry-run", "enforce"],
    # YAML 1.1 reads a bare off as false.
    BeforeValidator(lambda value: "off" if value is False else value),
    expects("off, dry-run or enforce"),
]

EstimatorName = Annotated[
    Estimator,
    Field(strict=False),  # takes the name, which is text
    expects(" or ".join(Estimator)),
    WithJsonSchema({"enum": list(Estimator), "type": "string"}),
]

PolicyName = Annotated[
    str,
    Field(max_length=MAX_POLICY_NAME_LENGTH, pattern=POLICY_NAME_PATTERN),
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
    Field(json_schema_extra={"not": {"enum": list(RESERVED_ENDPOINTS)}}),
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
