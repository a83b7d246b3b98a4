"""What all mappings of the configuration file have in common."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from oauth_ratelimit.config.problems import unknown_key
from oauth_ratelimit.config.values import ModeName


class Section(BaseModel):
    """A mapping of the file: no unknown keys, no conversions between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_allowed_keys(cls, value: Any, handler: Callable[[Any], "Section"]) -> "Section":
        """Restate the errors found below: an unknown key with the keys that are allowed here."""
        try:
            return handler(value)
        except ValidationError as exc:
            found = exc.errors(include_url=False)
        raise ValidationError.from_exception_data(cls.__name__, [cls._restate(error) for error in found])

    @classmethod
    def _restate(cls, error: Any) -> InitErrorDetails:
        kind = error["type"]
        text: str | PydanticCustomError = kind
        if kind == "extra_forbidden" and len(error["loc"]) == 1:
            text = unknown_key(cls.model_fields)
        elif kind in ("not_allowed", "refused", "unknown_key"):
            text = PydanticCustomError(kind, "{text}", {"text": error["msg"]})
        return InitErrorDetails(type=text, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))


class Switch(Section):
    """What can be switched on and off."""

    mode: ModeName | None = Field(
        default=None,
        description="off admits without counting, dry-run counts and reports but never denies, enforce denies. "
        "Left out: the mode above.",
    )
    enabled: bool = Field(default=True, description="false is the same as mode: off, and keeps what mode says.")
