"""One state for each document in a process, whichever grant type or endpoint a request comes with."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OwnLimits, Policy, Rules
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import CLIENT, KEY, a_policy, some_settings, stored_hits

PASSWORD, REFRESH = "password", "refresh_token"
OWN = Rules(limits=OwnLimits(user=(a_policy(name="own"),)))


def settings_with(
    *policies: Policy,
    mode: Mode = Mode.ENFORCE,
    grants: Mapping[str, Rules] | None = None,
    clients: Mapping[str, Rules] | None = None,
    total: tuple[Policy, ...] = (),
) -> Settings:
    """Return settings in which the client ``other`` has limits of its own for two grant types."""
    settings = some_settings(*policies, mode=mode, total=total, grants=grants)
    others = {"other": Rules(grants={PASSWORD: OWN, REFRESH: OWN}), **(clients or {})}
    return replace(settings, policies=settings.policies._replace(clients=others))


def outcome(decision: Decision) -> tuple[bool, bool, Mode]:
    return decision.allowed, decision.would_deny, decision.mode


def test_grant_types_that_nobody_names_share_one_state(clock: Clock) -> None:
    """Every first write of a round is a lost reply; each request is stored once all the same."""
    store = FaultyStore(MemoryStore())
    limiter = Limiter(settings_with(a_policy(window_s=600)), store, clock=clock, monotonic=clock)
    for _ in range(20):
        for grant_type in (PASSWORD, REFRESH):
            limiter.check(CLIENT, "kim", grant_type=grant_type)
        store.faults.append(Fault.LOST_REPLY)
        limiter.sync()
    for _ in range(2):
        limiter.sync()
    assert 40 == stored_hits(store, Key(CLIENT, "kim"))
    assert 1 == limiter.sync().key_count
    assert [] == [key for key in store.inner.latest(10) if key.scope is not None]


def test_grant_type_with_a_mode_only_is_counted_apart(clock: Clock) -> None:
    """It inherits the limits, and has counts and denials of its own, of the client's total, too."""
    store = MemoryStore()
    total = (a_policy(3, name="total"),)
    settings = settings_with(a_policy(2), total=total, grants={PASSWORD: Rules(mode=Mode.DRY_RUN)})
    limiter = Limiter(settings, store, clock=clock, monotonic=clock)
    denied, would_deny = (False, True, Mode.ENFORCE), (True, True, Mode.DRY_RUN)
    for grant_type, expected in ((REFRESH, denied), (PASSWORD, would_deny)):
        left = [limiter.check(CLIENT, "kim", grant_type=grant_type).remaining for _ in range(2)]
        assert ([1, 0], expected) == (left, outcome(limiter.check(CLIENT, "kim", grant_type=grant_type)))
        assert expected == outcome(limiter.check(CLIENT, "kim", grant_type=grant_type))
        assert expected == outcome(limiter.peek(CLIENT, "kim", grant_type=grant_type))
        assert limiter.check(CLIENT, "lee", grant_type=grant_type).remaining == 0, "the total has no more"
        assert expected == outcome(limiter.check(CLIENT, "lee", grant_type=grant_type))
    limiter.close()

    keys = [(name, scope) for scope in (None, "grant:password") for name in ("kim", "lee")]
    assert [2, 1, 2, 1] == [stored_hits(store, Key(CLIENT, *key)) for key in keys]
    assert [3, 3] == [stored_hits(store, Key(CLIENT, None, f"{at}client_total")) for at in ("", "grant:password/")]


def test_counts_of_a_grant_type_are_found_again_when_it_is_named_again(clock: Clock) -> None:
    """Without a section it counts with the others. Unsent hits reach the document that they were counted for."""
    store, plain = MemoryStore(), some_settings(a_policy(10, window_s=600))
    named = some_settings(a_policy(10, window_s=600), grants={PASSWORD: Rules()})
    limiter = Limiter(named, store, clock=clock, monotonic=clock)

    def check(count: int) -> list[int]:
        return [limiter.check(CLIENT, "kim", grant_type=PASSWORD).remaining for _ in range(count)]

    assert [9, 8, 7] == check(3)
    limiter.reconfigure(plain)
    assert [9, 8] == check(2)
    limiter.sync()
    assert [2, 3] == [stored_hits(store, Key(CLIENT, "kim", scope)) for scope in (None, "grant:password")]
    limiter.reconfigure(named)
    assert [6] == check(1)
    limiter.reconfigure(plain)
    assert [7] == check(1)
    limiter.close()
    assert [3, 4] == [stored_hits(store, Key(CLIENT, "kim", scope)) for scope in (None, "grant:password")]


def test_guess_counts_in_all_dry_runs_or_in_none(clock: Clock) -> None:
    """They share a series, and one of them sends its hits."""
    enforced, wide, narrow = a_policy(), a_policy(50, name="wide"), a_policy(10, name="narrow")
    wide, narrow = (policy._replace(mode=Mode.DRY_RUN) for policy in (wide, narrow))
    limiter = Limiter(some_settings(enforced, wide, narrow), None, clock=clock, monotonic=clock, keeps_held=True)
    for _ in range(60):
        limiter.confirm(limiter.hold_guess([KEY])[1])
    limiter.reconfigure(some_settings(enforced, wide))
    assert 40 == limiter.peek(CLIENT).remaining


@pytest.mark.parametrize("first", [PASSWORD, REFRESH])
def test_grant_that_is_on_where_the_client_is_off_is_limited(clock: Clock, first: str) -> None:
    """A mode of the client's grant type wins over the client's."""
    rules = Rules(mode=Mode.OFF, grants={PASSWORD: Rules(mode=Mode.ENFORCE)})
    limiter = Limiter(settings_with(a_policy(1), clients={CLIENT: rules}), None, clock=clock, monotonic=clock)
    limiter.check(CLIENT, "kim", grant_type=first)
    limiter.check(CLIENT, "kim", grant_type=PASSWORD)
    assert (False, True, Mode.ENFORCE) == outcome(limiter.check(CLIENT, "kim", grant_type=PASSWORD))
    assert (True, False, Mode.OFF) == outcome(limiter.check(CLIENT, "kim", grant_type=REFRESH))
