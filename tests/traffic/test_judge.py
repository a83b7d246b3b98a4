"""Estimated denials, beside those of real limiters."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.core.tier import tiers_of
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.traffic.judge import MAX_SLOTS, Judged, Line, OpenWindow, judge, judge_subjects
from oauth_ratelimit.traffic.minutes import MinuteLoad, Subject, quiet_limiter
from testbed.clock import Clock
from testbed.trace import hits

BEGIN_S = 2_000_000_040  # a minute
LENGTH = 30  # minutes
TOLERANCE = 0.03  # of the requests

Times = Sequence[float]
Limits = Sequence[Mapping[str, Any]]


def minutes_of(times: Iterable[float], *, has_seconds: bool = True) -> dict[int, MinuteLoad]:
    """Return requests as the statistics have them."""
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 60)
    for at_s in times:
        counts[int(at_s // 60) * 60][int(at_s % 60)] += 1
    return {minute_s: MinuteLoad(sum(count), count if has_seconds else ()) for minute_s, count in counts.items()}


def windows_of(kind: str, limits: Limits) -> list[OpenWindow]:
    settings = load_config({"mode": "enforce", "limits": {"client": [], "user": [], kind: limits}})
    tiers = tiers_of(getattr(settings.policies.limits, kind), Mode.ENFORCE, is_total=kind == "client_total")
    return [OpenWindow(tier) for tier in tiers]


def judged(times: Times, limits: Limits, *, has_seconds: bool = True, max_slots: int = MAX_SLOTS) -> Judged:
    lines = [Line(windows_of("client", limits), minutes_of(times, has_seconds=has_seconds))]
    return judge(lines, max_slots=max_slots)


def denied(requests: Iterable[tuple[float, str | None]], **limits: Limits) -> int:
    """Return the number of requests, with their users, that a limiter denies."""
    clock = Clock()
    settings = load_config({"mode": "enforce", "limits": {"client": [], "user": [], **limits}})
    count = 0
    with closing(quiet_limiter(settings, None, clock)) as limiter:
        for clock.now_s, username in requests:
            grant = "client_credentials" if username is None else "password"
            count += not limiter.check("app", username, grant_type=grant).allowed
    return count


def denied_of(times: Times, limits: Limits) -> int:
    return denied(((at_s, None) for at_s in times), client=limits)


def even(rate: float) -> Times:
    return [BEGIN_S + number * 60 / rate for number in range(int(rate * LENGTH))]


def at_random(rate: float, size: int = 1, width_s: float = 0.0) -> Times:
    """Return requests in clumps of this size that begin at random."""
    rng = random.Random(1)
    starts = (BEGIN_S + rng.uniform(0, 60 * LENGTH - width_s) for _ in range(int(rate * LENGTH / size)))
    return sorted(start + rng.uniform(0, width_s) for start in starts for _ in range(size))


def bursts(count: int, *, every_s: int = 60, at_s: float = 0.0, width_s: float = 2.0, jitter_s: float = 0.0) -> Times:
    rng = random.Random(1)
    starts = (BEGIN_S + start + at_s + rng.uniform(0, jitter_s) for start in range(0, 60 * LENGTH, every_s))
    return sorted(start + width_s * number / count for start in starts for number in range(count))


def of_busiest_host(rank: int) -> Times:
    """Return the recorded requests of a host."""
    by_host: defaultdict[int, list[float]] = defaultdict(list)
    for hit in hits():
        by_host[hit.host].append(hit.at_s)
    return sorted(by_host.values(), key=len)[-rank]


LOADS: dict[str, Callable[[], Times]] = {
    "steady": lambda: even(100),
    "steady, just over": lambda: even(67),
    "at random": lambda: at_random(62),
    "clumps at random": lambda: at_random(80, size=20, width_s=5.0),
    "each minute in two seconds": lambda: bursts(100),
    "each minute in ten seconds": lambda: bursts(100, at_s=30, width_s=10.0),
    "each minute at any second": lambda: bursts(100, width_s=1.0, jitter_s=58.0),
    "every twenty seconds": lambda: bursts(30, every_s=20, at_s=7, width_s=1.0),
    "every five minutes": lambda: bursts(300, every_s=300, at_s=50, width_s=20.0),
    "every ninety seconds": lambda: bursts(80, every_s=90, width_s=3.0),
    "rising": lambda: [BEGIN_S + 60 * LENGTH * (number / 3000) ** 0.5 for number in range(3000)],
    "on and off": lambda: [at_s for at_s in even(150) if (at_s - BEGIN_S) // 300 % 2],
    "recorded, busiest host": lambda: of_busiest_host(1),
    "recorded, second host": lambda: of_busiest_host(2),
}
LIMITS: Sequence[Limits] = (
    [{"limit": 60, "window": 60}],
    [{"limit": 10, "window": 60}],
    [{"limit": 60, "window": 60}, {"limit": 450, "window": 600}],
    [{"limit": 200, "window": 300}],
    [{"limit": 1500, "window": 3600}],
)


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_estimate_is_within_three_points_and_the_bounds_hold(load: Callable[[], Times]) -> None:
    times = load()
    for limits in LIMITS:
        count, with_seconds = denied_of(times, limits), judged(times, limits)

        assert TOLERANCE * len(times) >= abs(with_seconds.denied - count), limits
        for found in (with_seconds, judged(times, limits, has_seconds=False)):
            assert found.at_least <= count <= found.at_most, limits
            assert found.at_least <= found.denied <= found.at_most


@pytest.mark.slow
@pytest.mark.parametrize(("window_s", "limit", "error_ratio"), ((60, 10, 0.0004), (300, 20, 0.0002), (600, 20, 0.0003)))
def test_errors_on_recorded_traffic_are_as_documented(window_s: int, limit: int, error_ratio: float) -> None:
    by_host: defaultdict[str, list[float]] = defaultdict(list)
    for hit in hits():
        by_host[str(hit.host)].append(hit.at_s)
    policy = Policy("client", limit, Window.of(window_s))
    listed = judge_subjects({Subject(host, None): minutes_of(times) for host, times in by_host.items()}, policy)
    counts = {host: denied_of(times, [{"limit": limit, "window": window_s}]) for host, times in by_host.items()}

    assert 0.005 < sum(counts.values()) / sum(map(len, by_host.values()))
    errors = [abs(found.denied - counts[subject.client_id]) for subject, found in listed]
    assert sum(errors) < error_ratio * sum(map(len, by_host.values()))
    assert all(found.at_least <= counts[subject.client_id] <= found.at_most for subject, found in listed)


class Form(NamedTuple):
    limit: int
    window: int
    frames: int
    estimator: str
    count_denied: bool


forms = st.builds(
    lambda limit, frames, frame_s, estimator, count_denied: Form(
        limit, frames * frame_s, frames, estimator.value, count_denied
    ),
    *(st.integers(1, 30), st.integers(1, 10), st.sampled_from([1, 2, 6, 7, 15, 60, 90])),
    *(st.sampled_from(Estimator), st.booleans()),
)


@given(
    times=st.lists(st.integers(0, 4 * 600), min_size=1, max_size=150),
    limits=st.lists(forms, min_size=1, max_size=2),
    max_slots=st.integers(1, 600),
)
def test_bounds_hold_for_any_load_and_window(times: list[int], limits: list[Form], max_slots: int) -> None:
    moments = sorted(BEGIN_S + at / 4 for at in times)
    tiers = [{**form._asdict(), "name": f"limit-{number}"} for number, form in enumerate(limits)]
    count = denied_of(moments, tiers)

    for found in (judged(moments, tiers, max_slots=max_slots), judged(moments, tiers, has_seconds=False)):
        assert found.at_least <= count <= found.at_most


def user_requests() -> Iterator[tuple[float, str | None]]:
    rng = random.Random(3)
    times = sorted(BEGIN_S + rng.uniform(0, 60 * LENGTH) for _ in range(96 * LENGTH))
    return ((at_s, f"user-{rng.randrange(8)}") for at_s in times)


def test_users_share_the_limit_of_their_client() -> None:
    own, total = [{"limit": 10, "window": 60}], [{"limit": 60, "window": 60}]
    requests = list(user_requests())
    seconds = minutes_of(at_s for at_s, _ in requests)
    shared, lines = windows_of("client_total", total), []
    for user in sorted({str(user) for _, user in requests}):
        load = minutes_of(at_s for at_s, name in requests if name == user)
        spread = {minute_s: MinuteLoad(each.offered, seconds[minute_s].seconds) for minute_s, each in load.items()}
        lines.append(Line([*windows_of("user", own), *shared], spread))

    count, found = denied(requests, user=own, client_total=total), judge(lines)
    assert TOLERANCE * len(requests) >= abs(found.denied - count)
    assert found.at_least <= count <= found.at_most
    assert ["client_total", "user"] == sorted(found.by_policy)
    assert found.denied == pytest.approx(sum(found.by_policy.values()), rel=0.05)


@pytest.mark.parametrize(
    "more", ({"mode": "dry-run"}, {"count_denied": True}, {"mode": "dry-run", "count_denied": True})
)
def test_limits_in_a_dry_run_and_those_that_count_denials_are_as_in_a_limiter(more: Mapping[str, Any]) -> None:
    limits = [{"limit": 20, "window": 60}, {"limit": 60, "window": 300, **more}]
    times = at_random(30)
    count, found = denied_of(times, limits), judged(times, limits)

    assert TOLERANCE * len(times) >= abs(found.denied - count)
    assert found.at_least <= count <= found.at_most


def test_burst_over_a_dry_run_fills_the_enforced_limit_to_its_amount() -> None:
    limits = [{"limit": 20, "window": 60, "mode": "dry-run"}, {"limit": 60, "window": 300}]
    found = judged([BEGIN_S + number / 400 for number in range(400)], limits)

    assert {"client-300s": 340} == found.by_policy


def test_hits_that_are_there_before_count() -> None:
    """The windows that are given are not changed."""
    (window,) = windows_of("client", [{"limit": 60, "window": 600}])
    window.hits[BEGIN_S - 60] = 55
    times = [BEGIN_S + 10.0 * number for number in range(12)]
    first, again = (judge([Line([window], minutes_of(times))]) for _ in range(2))

    assert first == again
    assert (12, 7, 7, 7) == first[:4]
    assert ({"client": 7}, BEGIN_S + 55.0, 6) == (first.by_policy, *first.first_s.values(), first.peak)


@pytest.mark.parametrize(
    ("window_s", "has_seconds", "expected"),
    ((30, True, False), (60, True, True), (1800, False, False), (3600, False, True)),
)
def test_windows_shorter_than_what_is_recorded_say_so(window_s: int, has_seconds: bool, expected: bool) -> None:
    limits = [{"limit": 10, "window": window_s}]

    assert expected == judged(at_random(30), limits, has_seconds=has_seconds).is_known
    limits = [{"limit": 100, "window": window_s}]
    assert judged(even(2), limits, has_seconds=has_seconds).is_known, "nothing is denied in any case"


def test_requests_before_the_time_only_fill_its_first_windows() -> None:
    times = [*(BEGIN_S + number for number in range(40)), *(BEGIN_S + 60 + number for number in range(40))]
    (window,) = windows_of("client", [{"limit": 50, "window": 3600}])
    found = judge([Line([window], minutes_of(times))], since_s=BEGIN_S + 60)

    assert (40, 30, 30, 30) == found[:4]


def test_subjects_begin_with_the_most_denied() -> None:
    """Those without a request in the time are left out, and clients that were counted together."""
    counts = {"a": (300, 9), "b": (300, 20), "c": (60, 99), "d": (300, 10), OTHER_CLIENTS: (300, 99)}
    found = {Subject(name, None): {start_s: MinuteLoad(count)} for name, (start_s, count) in counts.items()}
    listed = judge_subjects(found, Policy("client", 9, Window.of(600)), since_s=300)

    assert [("b", 11), ("d", 1), ("a", 0)] == [(subject.client_id, each.denied) for subject, each in listed]
