"""Sums over minutes, and the number of users."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.hyperloglog import REGISTER_COUNT, estimate_distinct, merged, register_of
from oauth_ratelimit.core.statistics import (
    ClientMinute,
    ClientSum,
    Peak,
    Source,
    Tally,
    UserLoad,
)

PASSWORD, REFRESH, BATCH = Source("user", "password"), Source("user", "refresh_token"), Source("client", "none")


def registers(names: list[str]) -> dict[int, int]:
    """Return the registers that have seen names."""
    return merged(dict([register_of(name)]) for name in names)


def test_tally() -> None:
    """What was offered was issued or denied; a dry run issues what is over the limit."""
    tally = Tally(allowed=10, denied=3, would_deny=2, trusted=1, retries=2)

    assert (16, 13, 5) == (tally.offered, tally.issued, tally.over)
    assert Tally(20, 6, 4, 2, 4) == tally + tally


def test_sums() -> None:
    """The minutes of a client add up; peaks and bursts are the highest, users are the same in all minutes."""
    first = ClientMinute(
        "shop",
        60,
        {PASSWORD: Tally(5), BATCH: Tally(1)},
        {"user": Peak(0.5, 5.0, 10, 60)},
        (UserLoad("alice", 3), UserLoad("bob", 2)),
        registers(["alice", "bob"]),
        burst=4,
    )
    second = ClientMinute(
        "shop",
        120,
        {PASSWORD: Tally(1), REFRESH: Tally(8, denied=2)},
        {"user": Peak(0.9, 4.5, 5, 60), "client": Peak(0.1, 1.0, 10, 60)},
        (UserLoad("alice", 10, denied=2),),
        registers(["alice"]),
        burst=2,
    )
    shop = ClientSum("shop")
    shop.add(first)
    shop.add(second)

    assert {PASSWORD: Tally(6), BATCH: Tally(1), REFRESH: Tally(8, denied=2)} == shop.tallies
    assert (Tally(15, denied=2), Tally(14, denied=2)) == (shop.tally(), shop.tally("user"))
    assert {"user": Peak(0.9, 4.5, 5, 60), "client": Peak(0.1, 1.0, 10, 60)} == shop.peaks
    assert [UserLoad("alice", 13, denied=2)] == shop.heaviest(1)
    assert (2, 4, (11, 120)) == (shop.minute_count, shop.burst, shop.busiest)
    assert 2 == round(shop.user_count)


def test_nothing() -> None:
    """Without requests there are no users."""
    assert 0.0 == ClientMinute("shop", 60).user_count
    assert 0.0 == ClientSum("shop").user_count


@pytest.mark.parametrize("count", (1, 10, 100, 700, 5_000, 20_000))
def test_number_of_users(count: int) -> None:
    """The number of users is right to 6.5 % of standard error, over some sets of users to three of that."""
    errors = []
    for salt in range(5):
        estimate = estimate_distinct(registers([f"user {salt} {number}" for number in range(count)]))
        errors.append(estimate / count - 1)

    assert max(map(abs, errors)) < 3.5 * 0.065
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.1


@given(st.lists(st.text(), max_size=30), st.randoms(use_true_random=False))
def test_order_of_merges(names: list[str], rng: random.Random) -> None:
    """Names that come twice, in any order and from any number of processes, give the same registers."""
    shuffled = [*names, *names]
    rng.shuffle(shuffled)
    cut = rng.randrange(len(shuffled) + 1)

    assert registers(names) == merged([registers(shuffled[cut:]), registers(shuffled[:cut])])
    assert all(0 <= register < REGISTER_COUNT for register in registers(names))


def test_registers_of_other_processes() -> None:
    """A name has the same register and rank in every process and release: documents outlive both."""
    assert {"alice": (77, 1), "bob": (116, 1)} == {name: register_of(name) for name in ("alice", "bob")}
