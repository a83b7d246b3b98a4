"""Canary and patterns."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Canary

CLIENTS = [f"client-{number}" for number in range(2000)]


def chosen(canary: Canary) -> set[str]:
    """Return the clients that a canary enforces."""
    return {client_id for client_id in CLIENTS if canary.has_client(client_id, instance="node-1")}


def test_share_of_clients() -> None:
    """About as many clients are chosen as the percentage says."""
    shares = [len(chosen(Canary(percent=percent))) / len(CLIENTS) for percent in (1, 10, 50, 99.5)]
    assert all(abs(share - percent) < 0.03 for share, percent in zip(shares, (0.01, 0.1, 0.5, 0.995), strict=True))


def test_nobody_and_everybody() -> None:
    """Zero percent is nobody, a hundred is everybody."""
    assert (set(), set(CLIENTS)) == (chosen(Canary(percent=0)), chosen(Canary(percent=100)))


@given(client_id=st.text(), salt=st.text(), low=st.floats(0, 100), high=st.floats(0, 100))
def test_raised_percentage(client_id: str, salt: str, low: float, high: float) -> None:
    """Raising the percentage only adds clients, whatever their names."""
    low, high = sorted((low, high))
    if Canary(low, salt).has_client(client_id, instance=""):
        assert Canary(high, salt).has_client(client_id, instance="")


def test_salt() -> None:
    """Another salt chooses other clients."""
    first, second = chosen(Canary(10, "a")), chosen(Canary(10, "b"))
    assert 0 < len(first & second) < 0.3 * len(first)


def test_same_clients_in_every_process() -> None:
    """The choice does not depend on the process, as Python's own hash does."""
    code = (
        "from oauth_ratelimit.core.mode import Canary\n"
        "print(sum(2**n for n in range(64) if Canary(50, 's').has_client(f'client-{n}', instance='')))"
    )
    here = sum(2**number for number in range(64) if Canary(50, "s").has_client(f"client-{number}", instance=""))
    there = [
        int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout)
        for _ in range(2)
    ]
    assert [here, here] == there


def test_names_like_patterns() -> None:
    """
    A name that looks like a pattern matches itself; patterns see case and cover the whole name, newlines included.
    """
    assert matches_any(("app[1]",), "app[1]")
    assert matches_any(("app[12]",), "app1")
    assert matches_any(("*",), "two\nlines")
    assert not matches_any(("app",), "my-app-2")
    assert not matches_any(("App*",), "app")
    assert not matches_any((), "app")
