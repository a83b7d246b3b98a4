"""What a configuration means, and warnings about it."""

from contextlib import closing, suppress
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.errors import ConfigError, StoreRejected
from oauth_ratelimit.operations.format import number, percent_text, store_text, summary_data, typed_name, warnings_of
from oauth_ratelimit.store.mongo.client import Connection
from tests.operations.conftest import LIMITS


@pytest.mark.parametrize(
    ("name", "typed"),
    [("app", "app"), ("$(id)", "'$(id)'"), ("--help", "--client=--help"), ("-x y", "--client='-x y'"), ("*", "'*'")],
)
def test_name_that_anybody_can_make_up_is_an_argument_of_the_command(name: str, typed: str) -> None:
    assert typed == typed_name(name)


@pytest.mark.parametrize(
    ("guard", "is_warned"),
    [
        ({"mode": "enforce", "limits": {"client": ["20/minute"]}}, True),
        ({"mode": "dry-run", "limits": {"passed_on_total": []}}, True),
        ({"mode": "enforce"}, False),
        ({"mode": "enforce", "limits": {"passed_on_total": ["1000/hour"]}}, False),
        ({"mode": "off", "limits": {"client": ["20/minute"]}}, False),
    ],
)
def test_guard_without_a_ceiling_for_a_stolen_secret_is_a_warning(guard: dict[str, Any], is_warned: bool) -> None:
    settings = load_config({"store": {"uri": "mongodb://localhost/oauth"}, "guard": guard})

    assert ["guard_without_ceiling"] * is_warned == [event for event, _ in warnings_of(settings)]


TRIAL = {"limit": 5, "window": 60, "mode": "dry-run"}


@pytest.mark.parametrize(
    ("config", "is_warned"),
    [
        ({"mode": "enforce"}, True),
        ({"mode": "enforce", "host": "auto"}, False),
        ({"mode": "enforce", "host": "/run/ratelimit.db"}, False),
        ({"mode": "dry-run"}, False),
        ({"mode": "enforce", "store": {"uri": "mongodb://localhost/oauth"}}, False),
        ({"mode": "dry-run", "clients": {"app": {"mode": "enforce"}}}, True),
        ({"mode": "dry-run", "clients": {"app": {"grants": {"password": {"mode": "enforce"}}}}}, True),
        ({"mode": "dry-run", "endpoints": {"revocation": {"limits": {"client": ["1/s"]}, "mode": "enforce"}}}, True),
        ({"mode": "dry-run", "limits": {"client": [{**TRIAL, "mode": "enforce"}]}}, True),
        ({"mode": "dry-run", "plans": {"gold": {"limits": {"user": [TRIAL]}}}}, False),
        ({"mode": "off", "clients": {"app": {"mode": "enforce"}}}, False),
    ],
)
def test_enforcing_without_a_shared_store_is_a_warning(config: dict[str, Any], is_warned: bool) -> None:
    assert ["counters_not_shared"] * is_warned == [
        event for event, _ in warnings_of(load_config({"host": "off", **config}))
    ]


def test_summary_says_which_limits_reuse() -> None:
    tiers = [{"limit": 5, "window": 60, "on_limit": "reuse"}, {"limit": 50, "window": 3600}]
    data = summary_data(load_config({"limits": {"client": tiers}}))

    assert "5/minute (on_limit: reuse), 50/hour" == data["limits"]["client"]


def test_summary_names_what_applies_without_secrets() -> None:
    uri = "mongodb://ann:secret@db.example/oauth?replicaSet=rs0"
    data = summary_data(load_config({**LIMITS, "store": {"uri": uri, "namespace": "shop"}}))

    limits = {"client": "10/hour", "user": "5/hour", "client_total": "50/hour", "user_total": "no limit"}
    assert limits == data["limits"]
    assert "db.example/oauth, collection shop_ratelimits" == data["store"]
    assert (["mobile-*"], ["partner"], ["refresh_token"]) == tuple(
        data[name] for name in ("trusted_clients", "clients", "grants")
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("mongodb://h:27017,[::1]:27018", "h:27017,[::1]:27018/oauth_ratelimit"),
        ("mongodb://h/oa%75th.coll?appname=x", "h/oauth"),
    ],
)
def test_store_is_named_by_the_database_that_the_driver_uses_or_not_at_all(uri: str, expected: str) -> None:
    settings = load_config({"store": {"uri": uri}})

    assert f"{expected}, collection ratelimits" == store_text(settings.store)
    with suppress(StoreRejected), closing(Connection(uri)) as connection:
        assert settings.store.database == connection.database.name


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb+srv://ann:47/secret@h/oauth",
        "mongodb+srv://ann:47/sec?ret@h/oauth",
        "mongodb+srv://ann:47?secret@h/oauth",
        "mongodb+srv://ann:47@/secret@h/oauth",
    ],
)
def test_address_with_a_password_that_is_not_escaped_is_refused_without_it(uri: str) -> None:
    """A part of it would be shown as the database."""
    with pytest.raises(ConfigError) as caught:
        load_config({"store": {"uri": uri}})
    assert "%2F" in str(caught.value)
    assert not any(part in str(caught.value) for part in ("47", "sec", "ret"))


def test_number_below_ten_has_one_digit_unless_it_is_as_good_as_whole() -> None:
    assert ["0", "2.1", "3", "3", "10", "1,235"] == list(map(number, (0, 2.1, 2.98, 3, 9.96, 1234.6)))


def test_share_is_never_rounded_to_nothing_or_to_all() -> None:
    texts = map(percent_text, (0, 0.004, 0.5, 0.996, 1, 1.004, 2))
    assert ["0 %", "< 1 %", "50 %", "> 99 %", "100 %", "> 100 %", "200 %"] == list(texts)
