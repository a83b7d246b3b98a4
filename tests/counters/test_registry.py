"""One state for each document in a process, whichever grant type or endpoint a request comes with."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OwnLimits, Policy, Rules
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_policy, some_settings, stored_hits
from tests.sync.faulty_store import Fault, FaultyStore

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
    return replace(settings, policies=replace(settings.policies, clients=others))


def outcome(decision: Decision) -> tuple[bool, bool, Mode]:
    """Return what was decided, under which mode."""
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


def test_grants_that_share_a_limit_use_it_up_together(clock: Clock) -> None:
    """A request counts at once for every grant type that shares the limit."""
    limiter = Limiter(settings_with(a_policy(2)), None, clock=clock)
    admitted = [limiter.check(CLIENT, "kim", grant_type=grant).allowed for grant in (PASSWORD, REFRESH, None, PASSWORD)]
    assert [True, True, False, False] == admitted


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


def test_policy_on_trial_counts_in_one_series_for_every_grant(clock: Clock) -> None:
    """A grant type in dry run counts where the others do, although nothing is enforced beside the trial for it."""
    tiers = (a_policy(), replace(a_policy(name="trial"), mode=Mode.DRY_RUN))
    store = MemoryStore()
    limiter = Limiter(settings_with(*tiers, grants={PASSWORD: Rules(mode=Mode.DRY_RUN)}), store, clock=clock)
    for grant_type in (PASSWORD, REFRESH):
        limiter.check(CLIENT, "kim", grant_type=grant_type)
    limiter.sync()
    series = store.read([Key(CLIENT, "kim")])[Key(CLIENT, "kim")].hits
    assert {2} == {sum(frames.values()) for frames in series.values()}
    assert {Series(6), Series(6, on_trial=True)} == set(series)


@pytest.mark.parametrize("first", [PASSWORD, REFRESH])
def test_grant_that_is_on_where_the_client_is_off_is_limited(clock: Clock, first: str) -> None:
    """A mode of the client's grant type wins over the client's."""
    rules = Rules(mode=Mode.OFF, grants={PASSWORD: Rules(mode=Mode.ENFORCE)})
    limiter = Limiter(settings_with(a_policy(1), clients={CLIENT: rules}), None, clock=clock)
    limiter.check(CLIENT, "kim", grant_type=first)
    limiter.check(CLIENT, "kim", grant_type=PASSWORD)
    assert (False, True, Mode.ENFORCE) == outcome(limiter.check(CLIENT, "kim", grant_type=PASSWORD))
    assert (True, False, Mode.OFF) == outcome(limiter.check(CLIENT, "kim", grant_type=REFRESH))


def test_limits_of_a_grant_that_come_and_go_with_a_reload(clock: Clock) -> None:
    """Each request is stored once, in the document of the limits that applied, whatever replies were lost."""
    store = FaultyStore(MemoryStore())
    shared, apart = settings_with(a_policy(window_s=600)), settings_with(a_policy(window_s=600), grants={PASSWORD: OWN})
    limiter = Limiter(shared, store, clock=clock)
    for settings in (shared, apart) * 3:
        limiter.reconfigure(settings)
        limiter.check(CLIENT, "kim", grant_type=PASSWORD)
        store.faults.append(Fault.LOST_REPLY)
        limiter.sync()
    for _ in range(2):
        limiter.sync()
    assert [3, 3] == [stored_hits(store, Key(CLIENT, "kim", scope)) for scope in (None, "grant:password")]
    assert [0, 0] == [limiter.counts(CLIENT, "kim").in_flight_hits, limiter.sync().in_flight_hits]


def test_limits_of_a_grant_apply_to_known_clients_after_a_reload(clock: Clock) -> None:
    """The next request of a known client meets the new limit."""
    limiter = Limiter(settings_with(a_policy(1)), None, clock=clock)
    assert limiter.check(CLIENT, "kim", grant_type=PASSWORD).allowed
    limiter.reconfigure(settings_with(a_policy(1), grants={PASSWORD: Rules(limits=OwnLimits(user=(a_policy(2),)))}))
    admitted = [
        limiter.check(CLIENT, "kim", grant_type=grant_type).allowed for grant_type in [PASSWORD] * 3 + [REFRESH]
    ]
    assert [True, True, False, False] == admitted
