"""Any query and any change sent to the admin API is answered, whatever the database holds."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Int64
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.blueprint import PARTS, READ_CACHE
from oauth_ratelimit.admin.changes import CHANGES
from tests.admin.conftest import Page
from tests.support.apps import protected_app
from tests.support.bson_values import Content, bodies, put_alone, records, values

LIMITS = {"client": ["10/hour"], "user": ["5/hour"], "client_total": ["50/hour"]}
NOW = datetime.now(UTC)
HEARTBEAT = {"expire": NOW + timedelta(minutes=10), "beat_at_s": NOW.timestamp(), "started_at_s": 0, "interval_s": 1}

ids = st.sampled_from(["app", "<script>", "\u202e", "a" * 2000, "a\0b", "=1+1", "*", "[", ""]) | st.text(max_size=10)
numbers = (
    st.integers().map(str) | st.floats().map(str) | st.sampled_from(["1e400", "-0", "0", "-1", "9" * 400, "\u0663"])
)
questions = st.dictionaries(
    st.sampled_from(
        ["id", "user", "grant", "endpoint", "span", "kind", "limits", "limit", "window", "since", "until", "client_id"]
    )
    | st.text(max_size=5),
    ids | numbers | st.sampled_from(["password", "client", "user", "1h", "5/minute", "1/minute; 5/hour"]),
    max_size=6,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ids | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ids, inner, max_size=3),
    max_leaves=8,
)
limits = st.dictionaries(
    st.sampled_from(["user", "client", "client_total"]) | ids,
    st.lists(st.sampled_from(["5/minute", "0/second", "1/hour; 2/day", "9" * 30 + "/day"]) | ids, max_size=3)
    | json_values,
    max_size=3,
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["limit", "mode", "trusted"]) | json_values,
        "client_id": ids | st.none() | json_values,
        "mode": st.sampled_from(["off", "dry-run", "enforce"]) | json_values,
        "limit_kind": st.sampled_from(["user", "client"]) | json_values,
        "limits": limits | json_values,
        "reason": st.just("a reason") | json_values,
        "until": json_values | st.sampled_from(["2030-01-01T00:00", "0000-00-00", "1h", "9999999d"]),
        "for": json_values | st.sampled_from(["1h", "9999999d", "-1s"]),
        "duration": json_values | st.sampled_from(["1h", "1e9d"]),
    },
)
strange = st.lists(
    st.one_of(
        st.tuples(st.just("ratelimits"), st.just({"clientId": "app", "username": "<b>"}), bodies),
        st.tuples(st.just("ratelimit_overrides"), st.just({"kind": "mode", "clientId": "app"}), records),
        st.tuples(
            st.just("ratelimit_stats"), st.just({"clientId": "app", "minute": Int64(time.time() // 60 * 60)}), records
        ),
        st.tuples(st.just("ratelimit_stats"), st.fixed_dictionaries({"instance": values}), records),
    ),
    max_size=3,
)


@pytest.fixture
def app(mongo_uri: str) -> Any:
    """An application with the page. Errors in its views are raised here, too."""
    settings = {"mode": "enforce", "limits": LIMITS, "store": {"uri": mongo_uri}}
    with protected_app(clock=time.time, OAUTH_RATELIMIT_CONFIG=settings) as made:
        made.secret_key = "a secret"
        made.testing = True
        made.register_blueprint(admin_blueprint(lambda: "ann"))
        yield made


@pytest.mark.no_cover
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(content=strange, name=st.sampled_from(sorted(PARTS)), question=questions)
def test_any_query_is_answered_or_refused_with_a_reason(
    app: Flask, mongo_uri: str, content: Content, name: str, question: dict[str, str]
) -> None:
    """Documents in the database may be damaged."""
    with capture_logs():
        put_alone(mongo_uri, [(name, identity, HEARTBEAT | fields) for name, identity, fields in content])
        app.extensions.pop(READ_CACHE, None)
        response = Page(app).get(f"part/{name}", **question)

    assert 200 == response.status_code and f'data-part="{name}"' in response.text, response.text
    for text in re.findall(r"data-content='([^']*)'", response.text):
        json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(CHANGES)), change=changes | json_values.filter(lambda value: value is not None))
def test_any_change_is_applied_or_refused_with_a_reason(app: Flask, name: str, change: Any) -> None:
    page = Page(app)
    with capture_logs():
        response = page.send(name, change)
        after = page.get("part/overrides")

    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or response.json["problem"]["text"]
    assert 200 == after.status_code
