"""Client ids and user names that want to be more than names."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.flask_authlib.responses import RateLimited, quota_headers
from testbed.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.hostile_names import NAMES
from tests.support.limiters import a_limiter, a_policy, limiter_of

each_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


@pytest.fixture
def limiters(mongo_uri: str, clock: Clock) -> Iterator[tuple[Limiter, Limiter]]:
    """Two instances with a limit of two an hour. Their clock is far ahead, so that MongoDB removes nothing."""
    rates = ["2/hour"]
    config = {"mode": "enforce", "store": {"uri": mongo_uri}, "limits": {"client": rates, "user": rates}}
    one, other = (Limiter(load_config(config), clock=clock, monotonic=clock) for _ in range(2))
    yield one, other
    one.close()
    other.close()


@each_name
def test_any_text_is_a_key_of_its_own(limiters: tuple[Limiter, Limiter], documents: Any, name: str) -> None:
    """As client, as user and as both. As an endpoint it is of no harm."""
    one, other = limiters
    keys = [(name, None), (name, name), ("app", name), (name, "user")]
    for key in keys:
        one.check(*key)
        one.check(*key)
    one.check("app", endpoint=name)
    assert None is one.sync().error
    for key in keys:
        other.peek(*key)
    assert None is other.sync().error

    for key in keys:
        assert not other.check(*key).allowed
    assert other.check("app", "user").allowed
    assert other.check(f"{name}'", name).allowed
    identities = [found["_id"] for found in documents.find()]
    stored = storable_name(name)
    expected = [(stored, None), (stored, stored), ("app", stored), (stored, "user")]
    assert sorted(map(repr, expected)) == sorted(repr((found["clientId"], found["username"])) for found in identities)


FORGED = ("a forged=x", 'a" forged="x', 'a\\" forged=x', "a\nforged=x", "a\tforged=x", "a' forged='x", "a\\nforged=x")


@pytest.mark.parametrize("name", (*NAMES.values(), *FORGED), ids=(*NAMES, *map(ascii, FORGED)))
def test_names_in_the_log_look_like_no_other_field_or_line(clock: Clock, name: str) -> None:
    """Nothing in them moves a cursor or turns text around, in a denial and in an error of the store."""
    store = FaultyStore()
    store.refused = frozenset([Key(storable_name(name), storable_name(name))])
    limiter = a_limiter(store, clock, a_policy(1))
    with capture_logs() as logs:
        for _ in range(2):
            limiter.check(name, name)
        limiter.sync()
    assert {"request_denied", "document_rejected"} == {entry["event"] for entry in logs}
    for entry in logs:
        for text in (entry["client_id"], entry["username"]):
            assert text.isprintable()
            assert set('"=').isdisjoint(text)
            assert len(text) < 10_000


@each_name
def test_answer_repeats_no_name(clock: Clock, name: str) -> None:
    """Headers and body are ASCII, each in one line."""
    limiter = limiter_of({"limits": {"user": ["1/hour"]}}, clock=clock)
    limiter.check(name, name)
    decision = limiter.check(name, name)
    status, body, headers = RateLimited(decision, limiter.settings.denial)()

    assert 429 == status
    said = [json.dumps(body), *(part for header in (*headers, *quota_headers(decision, ("ietf",))) for part in header)]
    assert all(text.isascii() and text.isprintable() for text in said)
    assert len(name) < 6 or all(name not in text for text in said)


@pytest.mark.parametrize("length", (512, 513, 1024), ids=str)
def test_configuration_of_a_long_client_id_applies_after_a_reload(clock: Clock, length: int) -> None:
    client_id = "x" * (length - 1) + "y"
    limits = {"limits": {"client": ["1/hour"]}}
    old = {"mode": "enforce", "trusted_clients": [client_id], "endpoints": {"revocation": limits}, **limits}
    new = {**old, "trusted_clients": [], "clients": {client_id: {"limits": {"client": ["7/hour"]}}}}
    with closing(Limiter(load_config(old), clock=clock, monotonic=clock)) as limiter:
        limiter.check(client_id)
        limiter.check(client_id, endpoint="revocation")

        limiter.reconfigure(load_config(old))
        trusted = [limiter.peek(client_id, endpoint=endpoint).trusted for endpoint in ("token", "revocation")]
        limiter.reconfigure(load_config(new))

        assert [True, True] == trusted
        assert 7 == limiter.peek(client_id).limit
