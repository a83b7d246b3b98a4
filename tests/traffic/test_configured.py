"""Recorded traffic under a configuration."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.traffic import configured
from oauth_ratelimit.traffic.configured import Outcomes
from oauth_ratelimit.traffic.formats import Row
from oauth_ratelimit.traffic.rows import Recording
from testbed.trace import SHIPPED

SECOND = 1_000_000


def replay(
    config: Mapping[str, Any], rows: Sequence[Row], *, instance_count: int = 1, clients: Collection[str] | None = None
) -> Outcomes:
    return configured.replay(load_config(config), [rows], instance_count=instance_count, clients=clients)


def burst(client: str, user: str | None = None, *, count: int = 10, grant: str | None = None) -> list[Row]:
    return [Row(1_700_000_000 * SECOND + n, client, user, grant) for n in range(count)]


def test_own_limits_plans_grants_and_trust_of_the_configuration_apply() -> None:
    config = {
        "mode": "enforce",
        "limits": {"client": ["2/minute"], "user": ["3/minute"], "client_total": ["6/minute"]},
        "plans": {"gold": {"limits": {"client": ["5/minute"]}}},
        "clients": {"own": {"limits": {"client": ["4/minute"]}}, "partner": {"plan": "gold"}},
        "grants": {"refresh_token": {"limits": {"user": ["8/minute"], "client_total": []}}},
        "trusted_clients": ["mobile-*"],
    }
    rows = [
        *burst("plain"), *burst("own"), *burst("partner"), *burst("mobile-1"),
        *burst("shop", "ann", count=5), *burst("shop", "bob", count=5), *burst("shop", "ann", grant="refresh_token"),
    ]  # fmt: skip
    found = replay(config, rows)
    assert {"plain": 8, "own": 6, "partner": 5, "shop": 2 + 2 + 2} == found.over_clients
    assert {("shop", "ann"): 4, ("shop", "bob"): 2} == found.over_users
    assert (10, 0, found.over_count) == (found.trusted, found.unlimited, found.denied)


def test_dry_run_and_canary_are_told_from_what_is_denied() -> None:
    config = {"mode": "dry-run", "limits": {"client": ["2/minute"]}, "clients": {"first": {"mode": "enforce"}}}
    found = replay(config, [*burst("first"), *burst("other")])
    assert (16, 8) == (found.over_count, found.denied)


def test_pseudonyms_replace_user_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 64)
    privacy = {"user_names": "hashed", "keys": [{"file": str(tmp_path / "key")}]}
    found = replay({"limits": {"user": ["2/minute"]}, "privacy": privacy}, burst("shop", "ann"))
    ((_, user),) = found.over_users
    assert user not in ("ann", None)


@pytest.mark.slow
def test_clients_that_one_instance_never_denies_are_never_denied_by_three() -> None:
    config = {"mode": "enforce", "limits": {"client": ["5/minute"]}}
    with Recording(str(SHIPPED)).opened() as (_, recorded):
        rows = list(islice((row for batch in recorded.batches() for row in batch), 1000))
    alone = replay(config, rows)
    fleet = replay(config, rows, instance_count=3)
    assert 0 < alone.over_count < len(rows)
    assert set(fleet.over_clients) <= set(alone.over_clients)
    fewer = replay(config, rows, instance_count=3, clients=alone.over_clients)
    assert len(rows) == fewer.requests
    for several in (fleet, fewer):  # instances are drawn anew, so the two differ a little
        assert 0.85 * alone.over_count <= several.over_count <= 1.05 * alone.over_count
