"""Canary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.mode import Canary

CLIENTS = [f"client-{number}" for number in range(2000)]


def chosen(canary: Canary) -> set[str]:
    return {client_id for client_id in CLIENTS if canary.has_client(client_id, instance="node-1")}


@pytest.mark.parametrize(("percent", "error"), ((0, 0), (1, 0.03), (10, 0.03), (50, 0.03), (99.5, 0.03), (100, 0)))
def test_canary_takes_its_share_of_clients(percent: float, error: float) -> None:
    assert abs(len(chosen(Canary(percent=percent))) / len(CLIENTS) - percent / 100) <= error


@given(client_id=st.text(), salt=st.text(), low=st.floats(0, 100), high=st.floats(0, 100))
def test_raised_percentage_only_adds_clients(client_id: str, salt: str, low: float, high: float) -> None:
    low, high = sorted((low, high))
    if Canary(low, salt).has_client(client_id, instance=""):
        assert Canary(high, salt).has_client(client_id, instance="")


def test_another_salt_chooses_other_clients() -> None:
    first, second = chosen(Canary(10, "a")), chosen(Canary(10, "b"))
    assert 0 < len(first & second) < 0.3 * len(first)


def test_every_process_chooses_the_same_clients() -> None:
    found = [number for number in range(16) if Canary(50, "s").has_client(f"client-{number}", instance="")]
    assert [2, 4, 5, 6, 8, 9, 10, 14, 15] == found
