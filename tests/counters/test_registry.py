"""One state for each document in a process, whichever grant type or endpoint a request comes with."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OwnLimits, Policy, Rules
from oauth_ratelimit.store.memory import MemoryStore
from testbed.clock import Clock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import CLIENT, a_policy, some_settings, stored_hits

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
    settings = some_settings(
        *policies, mode=mode, total=total, grants={PASSWORD: Rules(), REFRESH: Rules(), **(grants or {})}
    )
    others = {"other": Rules(grants={PASSWORD: OWN, REFRESH: OWN}), **(clients or {})}
    return replace(settings, policies=settings.policies._replace(clients=others))


def outcome(decision: Decision) -> tuple[bool, bool, Mode]:
    return decision.allowed, decision.would_deny, decision.mode


@pytest.mark.parametrize(
    "grants",
    [{}, {PASSWORD: Rules(mode=Mode.DRY_RUN)}, {PASSWORD: Rules(mode=Mode.DRY_RUN), REFRESH: Rules(mode=Mode.OFF)}],
    ids=["no rules", "one mode", "two modes"],
)
def test_grants_without_limits_of_their_own_share_one_state(clock: Clock, grants: dict[str, Rules]) -> None:
    """Every first write of a round is a lost reply; each request is stored once all the same."""
    store = FaultyStore(MemoryStore())
    limiter = Limiter(settings_with(a_policy(window_s=600), grants=grants), store, clock=clock)
    for _ in range(20):
        for grant_type in (PASSWORD, REFRESH):
            limiter.check(CLIENT, "kim", grant_type=grant_type)
        store.faults.append(Fault.LOST_REPLY)
        limiter.sync()
    for _ in range(2):
        limiter.sync()
    assert (20 if REFRESH in grants else 40) == stored_hits(store, Key(CLIENT, "kim"))
    assert 1 == limiter.sync().key_count
    assert [] == [key for key in store.inner.latest(10) if key.scope is not None]


def test_grant_with_a_mode_of_its_own_decides_by_the_shared_counts(clock: Clock) -> None:
    """The counts are those of all grants; the mode alone differs, and a repeated denial is not mixed up."""
    limiter = Limiter(settings_with(a_policy(2), grants={PASSWORD: Rules(mode=Mode.DRY_RUN)}), None, clock=clock)
    assert [1, 0] == [limiter.check(CLIENT, "kim", grant_type=grant).remaining for grant in (PASSWORD, REFRESH)]
    denied, would_deny = (False, True, Mode.ENFORCE), (True, True, Mode.DRY_RUN)
    for grant_type in (REFRESH, PASSWORD) * 3:
        expected = would_deny if grant_type == PASSWORD else denied
        assert expected == outcome(limiter.check(CLIENT, "kim", grant_type=grant_type))
        assert expected == outcome(limiter.peek(CLIENT, "kim", grant_type=grant_type))
    clock.advance(120)
    admission = limiter.check(CLIENT, "kim", grant_type=PASSWORD)
    assert ((True, False, Mode.DRY_RUN), 1) == (outcome(admission), admission.remaining)


def test_mode_of_a_grant_applies_to_the_total_of_the_client(clock: Clock) -> None:
    """A total that is used up denies one grant type and would deny the other."""
    settings = settings_with(
        a_policy(), total=(a_policy(1, name="total"),), grants={PASSWORD: Rules(mode=Mode.DRY_RUN)}
    )
    limiter = Limiter(settings, None, clock=clock)
    assert limiter.check(CLIENT, "kim", grant_type=PASSWORD).allowed
    assert (True, True, Mode.DRY_RUN) == outcome(limiter.check(CLIENT, "lee", grant_type=PASSWORD))
    assert (False, True, Mode.ENFORCE) == outcome(limiter.check(CLIENT, "lee"))


def test_request_that_was_admitted_before_counts_in_all_dry_runs_or_in_none(clock: Clock) -> None:
    """They share a series, and one of them sends its hits. The guard counts this way."""
    enforced, wide, narrow = a_policy(), a_policy(50, name="wide"), a_policy(10, name="narrow")
    wide, narrow = (policy._replace(mode=Mode.DRY_RUN) for policy in (wide, narrow))
    limiter = Limiter(some_settings(enforced, wide, narrow), None, clock=clock)
    for _ in range(60):
        limiter.count(CLIENT)
    limiter.reconfigure(some_settings(enforced, wide))
    assert 40 == limiter.peek(CLIENT).remaining


@pytest.mark.parametrize("first", [PASSWORD, REFRESH])
def test_grant_that_is_on_where_the_client_is_off_is_limited(clock: Clock, first: str) -> None:
    """A mode of the client's grant type wins over the client's."""
    rules = Rules(mode=Mode.OFF, grants={PASSWORD: Rules(mode=Mode.ENFORCE)})
    limiter = Limiter(settings_with(a_policy(1), clients={CLIENT: rules}), None, clock=clock)
    limiter.check(CLIENT, "kim", grant_type=first)
    limiter.check(CLIENT, "kim", grant_type=PASSWORD)
    assert (False, True, Mode.ENFORCE) == outcome(limiter.check(CLIENT, "kim", grant_type=PASSWORD))
    assert (True, False, Mode.OFF) == outcome(limiter.check(CLIENT, "kim", grant_type=REFRESH))
