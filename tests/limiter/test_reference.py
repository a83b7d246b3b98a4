"""The limiter decides as the plain formula does, request by request, whatever it keeps to be fast."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Limits, OnLimit, Policy, PolicySet
from oauth_ratelimit.core.window import Estimator, Window
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.reference import ReferenceLimiter

WINDOWS = tuple(Window(length, count) for length in (1, 2, 3, 4, 6, 12) for count in (1, 2, 3) if length % count == 0)


@dataclass(frozen=True)
class Step:
    pause_s: float | None  # time since the request before; None comes back when that one was told to
    early_s: float  # so much earlier, where ``pause_s`` is None
    client_id: str
    username: str | None
    cost: int
    sync: bool  # whether a sync cycle runs before it


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def policies(name: str) -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        st.just(name),
        st.sampled_from((1, 2, 2, 3, 5, 8)),
        st.sampled_from(WINDOWS),
        st.sampled_from(Estimator),
        st.sampled_from((False, False, False, True)),
        st.sampled_from((None, None, None, Mode.DRY_RUN, Mode.ENFORCE)),
        st.just(OnLimit.DENY),
    )


def tiers(name: str, *, counts: Sequence[int]) -> st.SearchStrategy[tuple[Policy, ...]]:
    return st.sampled_from(counts).flatmap(
        lambda count: st.tuples(*(policies(f"{name}-{index}") for index in range(count)))
    )


# Of a named tuple ``builds`` would choose the other fields, too.
LIMITS = st.builds(  # mostly one policy and nothing else, which takes a short cut
    lambda *values: Limits(*values),
    tiers("client", counts=(1, 1, 1, 2, 3, 0)),
    tiers("user", counts=(1, 1, 1, 2, 3, 0)),
    tiers("total", counts=(0, 0, 0, 1, 2)),
    tiers("user_total", counts=(0, 0, 0, 1, 2)),
)
POLICY_SETS = st.builds(
    lambda **values: PolicySet(**values),
    mode=st.sampled_from((Mode.DRY_RUN, Mode.ENFORCE)),
    limits=LIMITS,
    trusted=st.sampled_from(((), ("b",))),
)
SHORT_PAUSES = (0.0, 0.0, 0.0, 0.0, 0.0, 1 / 64, 0.25, 1.0, 2.0, None)
STEPS = st.builds(
    Step,
    st.one_of(st.sampled_from(SHORT_PAUSES), st.floats(0.0, 4.0), st.floats(0.0, 30.0)),
    st.sampled_from((0.0, 0.003, 1.0)),
    st.sampled_from(("a", "a", "a", "a", "b")),
    st.sampled_from(("u", "u", "v", None)),
    st.sampled_from((1, 1, 1, 1, 1, 1, 2, 3, 6)),
    st.booleans(),
)
SEQUENCES = st.lists(STEPS, min_size=1, max_size=60)


def pass_time(clock: Clock, step: Step, last: Decision | None) -> None:
    if step.pause_s is not None:
        clock.advance(step.pause_s)
    elif last is not None and last.retry_after_s < 100:
        clock.advance(max(0.0, last.retry_after_s - step.early_s))


@pytest.mark.no_cover
@given(policy_set=POLICY_SETS, steps=SEQUENCES, shared=st.booleans())
def test_any_requests_are_decided_as_the_formula_says(policy_set: PolicySet, steps: list[Step], shared: bool) -> None:
    """Repeated denials and sync cycles change no decision: each says what the formula says."""
    config, clock = Settings(policies=policy_set), Clock()
    limiter = Limiter(config, MemoryStore() if shared else None, clock=clock, monotonic=clock)
    reference = ReferenceLimiter(config)
    last = None
    for step in steps:
        pass_time(clock, step, last)
        if step.sync:
            limiter.sync()
        expected = reference.check(step.client_id, step.username, now_s=clock.now_s, cost=step.cost)
        last = limiter.check(step.client_id, step.username, cost=step.cost)
        assert expected.agrees(last), expected
    limiter.close()


@pytest.mark.slow
@pytest.mark.no_cover
@given(policy_set=POLICY_SETS, steps=SEQUENCES, chosen=st.lists(st.integers(0, 2), min_size=60, max_size=60))
def test_instances_that_synchronise_around_each_request_decide_as_one(
    policy_set: PolicySet, steps: list[Step], chosen: list[int]
) -> None:
    config, clock, store = Settings(policies=policy_set), Clock(), MemoryStore()
    limiters = [Limiter(config, store, clock=clock, monotonic=clock) for _ in range(3)]
    reference = ReferenceLimiter(config)
    last = None
    for step, index in zip(steps, chosen, strict=False):
        pass_time(clock, step, last)
        limiter = limiters[index]
        limiter.peek(step.client_id, step.username)
        limiter.sync()
        expected = reference.check(step.client_id, step.username, now_s=clock.now_s, cost=step.cost)
        last = limiter.check(step.client_id, step.username, cost=step.cost)
        assert expected.agrees(last), expected
        limiter.sync()
    for limiter in limiters:
        limiter.close()
