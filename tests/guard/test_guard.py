"""The guard: which guesses are checked, counted and denied."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import guard as guard_module
from oauth_ratelimit import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.counters.guesses import Guesses
from oauth_ratelimit.counters.host_place import named_place
from oauth_ratelimit.counters.table import HostTable
from oauth_ratelimit.guard import Guard, Guess, Lockout
from oauth_ratelimit.process.yielding import Waiters
from testbed.clock import Clock
from tests.support.guarded import ADDRESS_LIMIT, CLIENT_LIMIT, LIMITS, USER_LIMIT, WINDOW_S, guard
from tests.support.guards import ELSEWHERE, HOME, Keys, a_guard, fail, guess, lockout_of, passed_on, password, secret
from tests.support.limiters import known_keys, locked
from tests.support.processes import CONTEXT

TOTAL_LIMIT, SECRETS_LIMIT = 5, 7
ALL_LIMITS = {
    **LIMITS,
    "passed_on_total": [{"limit": TOTAL_LIMIT, "window": WINDOW_S}],
    "client_address": [{"limit": SECRETS_LIMIT, "window": WINDOW_S}],
}


@pytest.fixture
def own(clock: Clock) -> Iterator[Guard]:
    """The guard of one process, with limits of every kind."""
    with a_guard(clock, **guard(limits=ALL_LIMITS)) as found:
        yield found


def checked(guard: Guard, keys: Callable[[int], Keys], count: int) -> int:
    """Guess wrong with numbered keys, and return how many guesses were checked before the first that was not."""
    found = [guess(guard, keys(number)) for number in range(count)]
    assert found == sorted(found, reverse=True)
    return sum(found)


@pytest.mark.parametrize(
    ("keys", "limit", "others"),
    [
        (lambda _: password(), USER_LIMIT, [password("bob"), password("alice", ELSEWHERE), passed_on(), secret()]),
        (lambda n: password(f"user-{n}"), ADDRESS_LIMIT, [password("bob", ELSEWHERE), passed_on(), secret()]),
        (lambda _: passed_on(), USER_LIMIT, [passed_on("bob"), passed_on("alice", ELSEWHERE), password(), secret()]),
        (
            lambda n: passed_on(f"user-{n}", f"192.0.2.{n}"),
            TOTAL_LIMIT,
            [passed_on(client_id="b"), password(), secret()],
        ),
        (
            lambda n: secret(f"client-{n}"),
            SECRETS_LIMIT,
            [secret(network=ELSEWHERE), password(), passed_on()],
        ),
        (lambda _: secret(), CLIENT_LIMIT, [secret("other"), secret(network=ELSEWHERE), password(), passed_on()]),
    ],
    ids=["one user", "one address", "user of a client with a secret", "all of that client", "all clients", "client"],
)
def test_guesses_are_denied_after_too_many_wrong_ones_and_others_are_not(
    own: Guard, keys: Callable[[int], Keys], limit: int, others: Sequence[Keys]
) -> None:
    assert limit == checked(own, keys, limit + 2)
    assert [None] * len(others) == [lockout_of(own, other) for other in others]


def test_guess_is_checked_again_at_retry_after_and_not_a_second_earlier(own: Guard, clock: Clock) -> None:
    """Denied attempts do not prolong it."""
    clock.advance(3.25)
    fail(own, password())
    clock.advance(100)
    fail(own, password(), 20)
    lockout = lockout_of(own, password())
    assert lockout is not None
    assert 0 < lockout.decision.retry_after_s <= WINDOW_S + WINDOW_S / 10

    clock.advance(lockout.decision.retry_after_s - 1)
    assert lockout_of(own, password()) is not None
    clock.advance(1)
    assert lockout_of(own, password()) is None


def test_network_of_48_bits_has_ten_times_the_limit(own: Guard) -> None:
    def from_a_new_one(number: int) -> Keys:
        return password("alice", f"2001:db8:1:{number:x}::/64", "2001:db8:1::/48")

    assert 10 * USER_LIMIT == checked(own, from_a_new_one, 10 * USER_LIMIT + 2)


@pytest.mark.parametrize("keys", [password(), passed_on()], ids=["public", "with a secret"])
def test_exempt_client_is_reported_and_never_denied(own: Guard, keys: Keys) -> None:
    with capture_logs() as logs:
        assert all(guess(own, keys, is_exempt=True) for _ in range(3 * ADDRESS_LIMIT))

    assert {("request_would_be_denied", "dry-run")} == {(line["event"], line["mode"]) for line in logs}


def test_right_guesses_and_denied_ones_leave_no_memory(own: Guard) -> None:
    """Only failures take room."""
    assert own.limiter is not None
    for number in range(20):
        assert guess(own, password(f"user-{number}"), is_right=True)
    assert [] == known_keys(own.limiter)
    for number in range(ADDRESS_LIMIT):
        fail(own, password(f"victim-{number}"), 1)
    found = set(known_keys(own.limiter))
    assert [False] * 20 == [guess(own, password(f"user-{number}")) for number in range(20)]
    assert found == set(known_keys(own.limiter))


# Modes.


@pytest.mark.parametrize(
    "trial", [found for size in (1, 2) for found in combinations(("user", "address"), size)], ids=str
)
@pytest.mark.parametrize("trial_limit", [1, 50], ids=["stricter", "wider"])
def test_limit_on_trial_leaves_enforced_limits_as_they_are(
    clock: Clock, trial: tuple[str, ...], trial_limit: int
) -> None:
    """Beside it in the same kind, and in the other kind of the same guess."""
    on_trial: dict[str, Any] = {"limit": trial_limit, "window": WINDOW_S, "mode": "dry-run", "name": "on trial"}
    limits = {kind: [*LIMITS[kind], on_trial] if kind in trial else LIMITS[kind] for kind in LIMITS}
    with a_guard(clock, **guard(limits=limits)) as own, capture_logs() as logs:
        assert USER_LIMIT == checked(own, lambda _: password(), USER_LIMIT + 2)

    assert (trial_limit == 1) is ("request_would_be_denied" in {line["event"] for line in logs})


def test_dry_run_reports_denies_nobody_and_counts_as_enforcing_would(clock: Clock) -> None:
    with a_guard(clock, **guard(mode="dry-run")) as own:
        with capture_logs() as logs:
            assert all(guess(own, passed_on()) for _ in range(3 * USER_LIMIT))
        own.reconfigure(load_config(guard(limits={"passed_on": [{"limit": USER_LIMIT + 1, "window": WINDOW_S}]})))
        assert 1 == checked(own, lambda _: passed_on(), 2)

    (event,) = logs
    assert (
        "request_would_be_denied",
        "web-shop",
        f"{HOME} alice",
        "failures:passed_on",
        "failures-passed_on",
    ) == tuple(event[name] for name in ("event", "client_id", "username", "scope", "policy"))


def test_defaults_enforce_a_ceiling_for_a_client_and_only_report_its_users(clock: Clock) -> None:
    """Otherwise a stranger could lock a user out of a client's login form."""
    with a_guard(clock, guard={"mode": "enforce"}) as own:
        assert 20 == checked(own, lambda _: passed_on(), 20)
        assert 10 == checked(own, lambda _: password(), 11)
        assert 980 == checked(own, lambda n: passed_on(f"user-{n}"), 981)


@pytest.mark.parametrize(
    ("more", "is_on"),
    [
        ({}, True),
        ({"guard": {"mode": "off"}}, False),
        ({"mode": "off"}, False),
        ({"enabled": False}, False),
        ({"guard": {"mode": "dry-run"}, "mode": "dry-run"}, True),
    ],
    ids=str,
)
def test_guard_is_on_where_its_mode_says_so(clock: Clock, more: dict[str, Any], is_on: bool) -> None:
    """Unless everything is off; while it is off it counts nothing."""
    with a_guard(clock, **more) as own:
        with capture_logs() as logs:
            fail(own, password(), 100)
        assert is_on is own.is_on is own.is_watching(HOME) is bool(logs)


def test_trusted_address_is_not_watched(clock: Clock) -> None:
    with a_guard(clock, **guard(trusted_addresses=[f"{ELSEWHERE}/32", "10.0.0.0/8"])) as own:
        assert [True, False, False] == [own.is_watching(address) for address in (HOME, ELSEWHERE, "10.1.2.3")]


def test_dry_run_of_everything_denies_nobody(own: Guard) -> None:
    fail(own, password())
    found = load_config(guard())
    own.reconfigure(replace(found, policies=found.policies._replace(ceiling=Mode.DRY_RUN)))
    with capture_logs() as logs:
        assert lockout_of(own, password()) is None

    assert ["request_would_be_denied"] == [line["event"] for line in logs]


def test_reload_switches_the_guard_and_keeps_counts(clock: Clock) -> None:
    with a_guard(clock, guard={"mode": "off"}) as own:
        own.reconfigure(load_config(guard()))
        fail(own, password())
        own.reconfigure(load_config(guard(mode="off")))
        assert lockout_of(own, password()) is None
        own.reconfigure(load_config(guard()))
        assert lockout_of(own, password()) is not None
        own.reconfigure(load_config(guard(limits={"user": [{"limit": USER_LIMIT + 2, "window": WINDOW_S}]})))
        assert 2 == checked(own, lambda _: password(), 3)


# Guesses at the same time.


def test_guess_that_comes_as_another_one_is_released_waits_although_its_first_key_has_no_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not held, so it must not be checked: a wrong one would count nowhere."""
    with a_guard(clock, **guard(limits={"user": [], "address": [{"limit": 1, "window": WINDOW_S}]})) as own:
        assert own.limiter is not None
        other = own.limiter.hold_guess(password())[1]
        denied = own.limiter.hold_guess(password())
        own.limiter.release(other)
        monkeypatch.setattr(own.limiter, "hold_guess", lambda _: denied)
        lockout = own._hold(Guess(password()), is_exempt=False)
        assert lockout is not None and lockout.is_busy


@pytest.mark.parametrize(
    ("keys", "limit"), [(password(), USER_LIMIT), (secret(), CLIENT_LIMIT)], ids=["password", "secret"]
)
def test_parallel_guesses_are_checked_no_more_often_than_the_limit(own: Guard, keys: Keys, limit: int) -> None:
    together = Barrier(16)
    with ThreadPoolExecutor(16) as pool:
        assert limit == sum(pool.map(lambda _: together.wait(60) >= 0 and guess(own, keys), range(16)))


@pytest.mark.parametrize(
    ("keys", "checked_count"), [(password(), 1), (secret(), CLIENT_LIMIT)], ids=["password", "secret"]
)
def test_one_of_eight_threads_waits_for_a_key_and_the_next_is_denied_for_a_second(
    own: Guard, monkeypatch: pytest.MonkeyPatch, keys: Keys, checked_count: int
) -> None:
    """A user who logs in rightly over many connections leaves the server's other threads to everybody else."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 60.0)
    monkeypatch.setattr("oauth_ratelimit.guard.BRIEF_WAIT_S", 0.01)
    checking = [own.reserve(keys) for _ in range(checked_count)]
    with ThreadPoolExecutor(7) as pool:
        start = Barrier(7)
        list(pool.map(lambda _: (start.wait(60), lockout_of(own, secret("other"))), range(7)))  # eight with this one
        attempts = [pool.submit(own.reserve, keys) for _ in range(7)]
        denied = [attempt.result() for attempt in islice(as_completed(attempts, 30), 6)]
        for guess in checking:
            assert isinstance(guess, Guess)
            own.settle(guess)
        accepted = [found for attempt in attempts if (found := attempt.result(60)) not in denied]

    assert [1.0] * 6 == [found.decision.retry_after_s for found in denied if isinstance(found, Lockout)]
    assert [Guess] == [type(found) for found in accepted]


def test_right_passwords_of_one_user_over_more_connections_than_may_wait_for_long_are_not_denied(own: Guard) -> None:
    """Each check is over soon."""
    start = Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: start.wait(60) >= 0 and guess(own, password(), is_right=True), range(80))
        assert [True] * 80 == list(found)


def test_passwords_of_one_user_are_checked_one_at_a_time_and_secrets_are_not(
    own: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else several processes would check as many each before they learn of a wrong one."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 600.0)
    first = own.reserve(password())
    assert isinstance(first, Guess)
    assert [Guess] * (CLIENT_LIMIT + 1) == [type(own.reserve(keys)) for keys in (password("bob"), *[secret()] * 4)]

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(own.reserve, password())
        with pytest.raises(TimeoutError):
            second.result(0.05)
        own.settle(first)
        assert isinstance(second.result(60), Guess)


def test_password_does_not_wait_for_another_one_for_ever(own: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that takes long denies nobody up to the limit. One that was lost is released by a later cycle."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.01)
    found = [own.reserve(password()) for _ in range(USER_LIMIT + 1)]
    assert [Guess] * USER_LIMIT + [Lockout] == [type(each) for each in found]

    own.run()
    assert lockout_of(own, password()) is not None
    monkeypatch.setattr("oauth_ratelimit.guard.CHECK_S", 0.0)
    own.run()
    assert lockout_of(own, password()) is None


def test_guesses_at_the_same_time_wait_together_for_the_lock_of_the_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after another: nobody waits for longer than one request may."""
    count, wait_s = 8, 0.4
    monkeypatch.setattr("oauth_ratelimit.counters.host.LOCK_WAIT_S", wait_s)
    path = tmp_path / "ratelimit.db"
    with a_guard(clock, place=named_place(str(path), []), **guard()) as own, ThreadPoolExecutor(count) as pool:
        assert guess(own, secret(), is_right=True)  # which opens the file
        with locked(tmp_path / "ratelimit.db-guard"):
            begun_s = time.monotonic()
            assert all(
                pool.map(lambda number: guess(own, password(f"user-{number}", f"192.0.2.{number}")), range(count))
            )
            assert wait_s <= time.monotonic() - begun_s < 3 * wait_s


@pytest.mark.parametrize("is_locked_out", [False, True])
def test_attempt_without_a_place_to_wait_is_denied_for_a_second_unless_wrong_guesses_deny_it(
    own: Guard, monkeypatch: pytest.MonkeyPatch, is_locked_out: bool
) -> None:
    """While another one of the same user is being counted."""
    assert own.limiter is not None
    fail(own, password(), USER_LIMIT if is_locked_out else 1)
    hold, is_counting, may_go_on = own.limiter.hold_guess, Event(), Event()

    def hold_slowly(keys: Any) -> Any:
        is_counting.set()
        may_go_on.wait(60)
        return hold(keys)

    monkeypatch.setattr(own.limiter, "hold_guess", hold_slowly)
    monkeypatch.setattr(Waiters, "has_place_for", lambda *_: False)
    monkeypatch.setattr("oauth_ratelimit.guard.BRIEF_WAIT_S", 0.01)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(own.reserve, password())
        assert is_counting.wait(60)
        monkeypatch.setattr(own.limiter, "hold_guess", hold)
        second = own.reserve(password())
        may_go_on.set()
        assert is_locked_out is isinstance(first.result(60), Lockout)
    assert isinstance(second, Lockout)
    assert (not is_locked_out, is_locked_out) == (second.is_busy, second.decision.retry_after_s > 1)


@pytest.mark.parametrize("step", ["hold_guess", "release"])
def test_error_while_a_guess_is_counted_stops_no_other_guess(
    own: Guard, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 60.0)
    assert own.limiter is not None
    step_of, is_counting, may_go_on = getattr(own.limiter, step), Event(), Event()

    def fail_slowly(_: Any) -> Any:
        monkeypatch.setattr(own.limiter, step, step_of)
        is_counting.set()
        may_go_on.wait(60)
        raise MemoryError

    monkeypatch.setattr(own.limiter, step, fail_slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(guess, own, password(), is_right=True)
        assert is_counting.wait(60)
        second = pool.submit(own.reserve, password())
        with pytest.raises(TimeoutError):
            second.result(0.05)
        may_go_on.set()
        with pytest.raises(MemoryError):
            first.result(60)
        assert isinstance(second.result(30), Guess)


def _check_for_ever(path: str, clock_s: float, is_checking: Any) -> None:
    """Check as many passwords at the same time as the limit allows, without an end."""
    guard_module.WAIT_S = 0.0
    with a_guard(Clock(clock_s), place=named_place(path, []), **guard()) as own:
        is_checking.put([type(own.reserve(password())) is Guess for _ in range(USER_LIMIT)])
        Event().wait()


@pytest.mark.slow
def test_guesses_of_killed_processes_are_released_but_no_more_than_the_limit_in_a_window(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lock nobody out, and whoever can cause kills does not guess for ever."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    path = str(tmp_path / "ratelimit.db")
    with a_guard(clock, place=named_place(path, []), **guard()) as own:
        for may_go_on in (True, False):
            is_checking = CONTEXT.Queue()
            process = CONTEXT.Process(target=_check_for_ever, args=(path, clock(), is_checking))
            process.start()
            assert [True] * USER_LIMIT == is_checking.get(timeout=60)
            own.run()
            found = lockout_of(own, password())
            assert found is not None and found.is_busy
            process.kill()
            process.join()
            own.run()
            found = lockout_of(own, password())
            assert (None if may_go_on else False) is (found and found.is_busy)


def _end_within(path: str, clock_s: float, number: int) -> None:
    """Check a right password, and be killed before a statement that changes something of it."""
    left = list(range(number))

    def counting(statement: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left.pop()
            return statement(*args, **options)

        return run

    for owner, names in ((HostTable, ("write", "delete_unused")), (Guesses, ("note", "forget"))):
        for name in names:
            setattr(owner, name, counting(getattr(owner, name)))
    with a_guard(Clock(clock_s), place=named_place(path, []), **guard()) as own:
        found = own.reserve(password())
        assert type(found) is Guess
        own.settle(found)


@pytest.mark.parametrize("number", range(4))
def test_process_that_is_killed_within_a_step_of_a_guess_leaves_none_behind(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    path = str(tmp_path / "ratelimit.db")
    with a_guard(clock, place=named_place(path, []), **guard()) as own:
        for _ in range(USER_LIMIT):
            process = CONTEXT.Process(target=_end_within, args=(path, clock(), number))
            process.start()
            process.join(60)
            assert -signal.SIGKILL == process.exitcode
            own.run()
        checked = [own.reserve(password()) for _ in range(USER_LIMIT)]
        assert [Guess] * USER_LIMIT == list(map(type, checked))
