"""Any configuration is either settings or one error with all problems."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.config import Settings, load_config
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


@given(values=st.dictionaries(keys, anything, max_size=5))
def test_any_mapping_is_settings_or_all_its_problems(values: dict[Any, Any]) -> None:
    """Each problem is one line with a path."""
    try:
        assert isinstance(load_config(values), Settings)
    except ConfigError as error:
        assert error.problems
        assert all(": " in problem and "\n" not in problem for problem in error.problems)
