"""Limits in the configuration file: a mapping with all options, or a shorthand."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo, field_validator

from oauth_ratelimit.config.notation import RATES_NOTATION, RATES_PATTERN, parse_rates
from oauth_ratelimit.config.problems import not_allowed, refused
from oauth_ratelimit.config.section import Section, Switch
from oauth_ratelimit.config.values import Amount, EstimatorName, FrameCount, PolicyName, WindowSeconds
from oauth_ratelimit.core.window import Estimator

BUILT_IN_LIMITS: dict[str, Any] = {
    "client": [{"limit": 9000, "window": "60s"}],
    "user": [{"limit": 10, "window": "1s"}, {"limit": 50, "window": "10s"}],
    "client_total": [],
}


class LimitModel(Switch):
    """At most so many requests in any window of time."""

    limit: Amount = Field(description="Requests per window.")
    window: WindowSeconds = Field(description="Length of the trailing window, in whole seconds.")
    name: PolicyName | None = Field(
        default=None,
        description="Stands in headers, logs and metrics. Left out: user, client or client_total if it is the only "
        "one in its list, else that and the window, as user-10s.",
    )
    frames: FrameCount | None = Field(
        default=None,
        description="Into how many frames the window is cut; each is whole seconds long. More are more accurate and "
        "make documents larger. Left out: the largest divisor of the window up to 10.",
    )
    estimator: EstimatorName = Field(
        default=Estimator.SLIDING,
        description="sliding counts the frames inside the window in full and the oldest by the share still inside; "
        "proportional weighs the current frame too, by the part of it that has passed.",
    )
    count_denied: bool = Field(
        default=False, description="Whether denied requests count too, so that hammering keeps a client out."
    )

    @field_validator("frames")
    @classmethod
    def _frames_divide_the_window(cls, frames: int | None, info: ValidationInfo) -> int | None:
        window_s = info.data.get("window")
        if frames is not None and window_s is not None and window_s % frames:
            raise not_allowed(f"a number that divides the window of {window_s} s into whole seconds")
        return frames


def _entry(value: object) -> tuple[LimitModel, ...]:
    """Return the limits that one item of a list names: a mapping names one, a shorthand one or more."""
    if not isinstance(value, str):
        if not isinstance(value, dict):
            raise not_allowed(f"a mapping with limit and window, or {RATES_NOTATION}")
        return (LimitModel.model_validate(value),)
    try:
        return tuple(LimitModel(limit=limit, window=window_s) for limit, window_s in parse_rates(value))
    except ValidationError:
        allowed = "1 to 2^53 requests per 1 second to 366 days"
    except ValueError as exc:
        allowed = str(exc)
    raise not_allowed(allowed)


Entry = Annotated[
    tuple[LimitModel, ...],
    PlainValidator(_entry, json_schema_input_type=LimitModel | Annotated[str, Field(pattern=RATES_PATTERN)]),
]


class LimitsModel(Section):
    """Limits by what they count. All limits that apply to a request must admit it."""

    client: list[Entry] = Field(
        default_factory=list, description="Per client, for grants without a user, such as client_credentials."
    )
    user: list[Entry] = Field(default_factory=list, description="Per client and user, for grants with a user.")
    client_total: list[Entry] = Field(
        default_factory=list, description="Per client, all its users and its grants without a user together."
    )

    @field_validator("client", "user", "client_total")
    @classmethod
    def _names_are_unique(cls, entries: list[Entry], info: ValidationInfo) -> list[Entry]:
        names = [name for name, _ in named(info.field_name or "", entries)]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise refused(f"several limits have the name {', '.join(doubled)}; give each a name of its own")
        return entries


def named(kind: str, entries: list[Entry]) -> list[tuple[str, LimitModel]]:
    """Return the limits of one list with their names."""
    models = [model for entry in entries for model in entry]
    if len(models) == 1:
        return [(models[0].name or kind, models[0])]
    return [(model.name or f"{kind}-{model.window}s", model) for model in models]


def built_in_limits() -> LimitsModel:
    """Return the limits that hold when the configuration has no limits key at all."""
    return LimitsModel.model_validate(BUILT_IN_LIMITS)
