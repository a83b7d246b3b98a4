"""Functions that read input from outside accept anything, and raise only what their callers expect."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.loader import parse_settings
from oauth_ratelimit.config.notation import parse_duration, parse_rates
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.core.failed_auth import folded, networks_of
from oauth_ratelimit.core.key import MAX_NAME_LENGTH, storable_name, visible_name
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.store.mongo import denials, heartbeats, overrides
from oauth_ratelimit.store.mongo.fields import MALFORMED
from oauth_ratelimit.store.mongo.statistics import parse_minute
from tests.support.bson_values import identities, records

FILE = (Path(__file__).parents[2] / "config/oauth_ratelimit.yaml").read_bytes()
lines = st.lists(st.sampled_from(FILE.splitlines()) | st.binary(max_size=6), max_size=60)
rates = st.sampled_from(["500ms", "1.5h", "5 per 10 second", "; 100/hour", "10/minute", "/", "per", "0", "-", "e9"])


@given(data=lines.map(b"\n".join) | lines.map(b"".join) | st.binary(max_size=60))
@example(data=FILE)
def test_any_file_is_settings_or_all_its_problems(data: bytes) -> None:
    """The error has one line for each problem."""
    try:
        assert isinstance(parse_settings(parse_yaml(data, source="file"), source="file"), Settings)
    except ConfigError as exc:
        assert exc.problems
        assert all(len(problem.splitlines()) == 1 for problem in exc.problems)


@given(text=st.text() | st.lists(rates | st.text(max_size=3), max_size=4).map("".join))
def test_any_text_is_a_duration_or_a_limit_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert parse_duration(text) >= 0
    with suppress(ValueError):
        assert all(type(limit) is int and type(window_s) is int for limit, window_s in parse_rates(text))


@given(identity=identities, record=records)
def test_any_record_is_read_or_reported_as_damaged(identity: Any, record: dict[str, Any]) -> None:
    """An override is usable, or damaged; of statistics the valid parts are read."""
    with suppress(*MALFORMED):
        override = overrides.parse_override({"_id": identity, **record})
        assert all(policy.limit >= 1 and policy.name.isascii() for policy in override.policies)
    with suppress(*MALFORMED):
        assert parse_minute({**record, "_id": identity}).burst >= 0
    for parse in (heartbeats.parse, denials.parse):
        with suppress(*MALFORMED):
            parse({**record, "_id": identity})


@given(name=st.text(st.characters()) | st.sampled_from(["\u202e\ufdfa", "\ud800", "2001:db8::1", "\0\r\n\x1b[2J"]))
@example(name="x" * 600)
def test_any_name_can_be_stored_sent_and_shown(name: str) -> None:
    kept = storable_name(name)
    assert len(kept.encode()) <= 4 * MAX_NAME_LENGTH
    assert f"{visible_name(name)}{visible_name(kept)}".isprintable()
    claim = folded(name)
    assert claim == folded(claim)
    networks_of(name)
    trace_of_request(name)
