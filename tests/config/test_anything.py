"""Any configuration is either settings or one error with all problems."""

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.notation import parse_duration, parse_rates
from oauth_ratelimit.config.reference import config_schema
from oauth_ratelimit.errors import ConfigError

SCHEMA = config_schema()
KEYS = sorted({key for part in (SCHEMA, *SCHEMA["$defs"].values()) for key in part["properties"]})
WORDS = ["enforce", "off", "1/second", "5 per 10 minute;1/day", "10s", "1.5ms", "mongodb://u:p@h", "gold", "*"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.sampled_from(WORDS)
)
keys = st.sampled_from(KEYS) | st.sampled_from(["gold", "app", "refresh_token"]) | st.text() | st.integers()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=25
)


@settings(max_examples=120, deadline=None)
@given(values=st.dictionaries(keys, anything, max_size=5))
def test_any_mapping_is_settings_or_all_its_problems(values: dict[Any, Any]) -> None:
    """Each problem is one line with a path."""
    try:
        assert isinstance(load_config(values), Settings)
    except ConfigError as error:
        assert error.problems
        assert all(": " in problem and "\n" not in problem for problem in error.problems)


@settings(max_examples=120, deadline=None)
@given(content=st.binary() | st.text(alphabet="ab:-[]{}&*!|>'\"%@#?, \n\t0.9é\x00~<=", max_size=60).map(str.encode))
def test_any_bytes_are_a_mapping_or_one_problem(content: bytes) -> None:
    """Reading does not go further than the first problem."""
    try:
        assert isinstance(parse_yaml(content, source="file"), dict)
    except ConfigError as error:
        assert 1 == len(error.problems)


@given(text=st.text() | st.text(alphabet="0123456789.msh/per ;|day", max_size=30))
def test_any_text_is_a_duration_or_limit_of_at_least_zero_or_refused(text: str) -> None:
    """The notation has no negative numbers."""
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(text)
    with contextlib.suppress(ValueError):
        assert all(limit >= 0 and window_s >= 0 for limit, window_s in parse_rates(text))
