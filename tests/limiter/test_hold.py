"""Requests that are held until their response is known: confirmed or taken back."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.counters.guesses import CHECK_S
from oauth_ratelimit.counters.steps import OpenRequest
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import (
    CLIENT,
    KEY,
    a_limiter,
    a_policy,
    in_flight_hits,
    known_keys,
    limiter_of,
    locked,
    some_settings,
    stored_hits,
    used_hits,
)

TRIPLE = a_policy(3, 60)
USER_KEY, TOTAL_KEY = Key(CLIENT, "alice"), Key(CLIENT, None, "client_total")


def held_by(limiter: Limiter, count: int = 1, username: str | None = None) -> Sequence[OpenRequest | None]:
    """Return requests that are held, each of which was admitted."""
    answers = [limiter.hold(CLIENT, username) for _ in range(count)]
    assert {True} == {decision.allowed for decision, _ in answers}
    return [held for _, held in answers]


def test_held_request_uses_up_the_limit_and_is_not_sent_before_it_is_confirmed(clock: Clock) -> None:
    store = MemoryStore(clock)
    limiter = a_limiter(store, clock, TRIPLE)
    held = held_by(limiter, 3)
    assert not limiter.check(CLIENT).allowed
    assert 0 == in_flight_hits(limiter)
    for each in held[:2]:
        limiter.confirm(each)
    assert 2 == in_flight_hits(limiter)
    limiter.sync()
    assert (2, 0) == (stored_hits(store), in_flight_hits(limiter))


def test_request_that_is_taken_back_leaves_room_for_another(clock: Clock) -> None:
    limiter = a_limiter(None, clock, TRIPLE)
    (held,) = held_by(limiter)
    held_by(limiter, 2)
    assert not limiter.check(CLIENT).allowed
    assert limiter.take_back(held)
    assert [True, False] == [limiter.check(CLIENT).allowed for _ in range(2)]


def test_no_more_requests_than_the_limit_are_taken_back_in_a_window(clock: Clock) -> None:
    limiter = a_limiter(MemoryStore(clock), clock, TRIPLE)
    for _ in range(2):
        results = []
        for _ in range(5):
            (held,) = held_by(limiter)
            results.append(limiter.take_back(held))
        assert [True] * 3 + [False] * 2 == results
        assert 2 == used_hits(limiter)
        clock.advance(120)


def test_each_user_and_all_together_have_a_request_taken_back(clock: Clock) -> None:
    """Where one limit has no room to take it back, it stays in all of them."""
    settings = some_settings(user=(a_policy(9, name="user"),), total=(a_policy(2, name="total"),))
    limiter = Limiter(settings, clock=clock, monotonic=clock)
    held = [limiter.hold(CLIENT, name)[1] for name in ("alice", "bob")]
    assert [2, 2] == [each and len(each.rows) for each in held]
    assert 0 == limiter.peek(CLIENT, "carol").remaining
    assert [True, True] == list(map(limiter.take_back, held))
    assert 2 == limiter.peek(CLIENT, "carol").remaining
    assert not limiter.take_back(limiter.hold(CLIENT, "carol")[1])
    assert 1 == limiter.peek(CLIENT, "carol").remaining


def test_request_leaves_each_of_its_windows(clock: Clock) -> None:
    limiter = a_limiter(None, clock, a_policy(2, 60, name="minute"), a_policy(3, 3600, name="hour"))
    for _ in range(2):
        assert limiter.take_back(held_by(limiter)[0])
    clock.advance(120)
    assert [True] * 2 == [limiter.check(CLIENT).allowed for _ in range(2)]
    clock.advance(120)
    assert [True, False] == [limiter.check(CLIENT).allowed for _ in range(2)]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_totals_that_were_read_meanwhile_still_have_a_held_request(clock: Clock, is_confirmed: bool) -> None:
    store = MemoryStore(clock)
    limiter, other = (a_limiter(store, clock, a_policy(100)) for _ in range(2))
    held = held_by(limiter, 2)
    for _ in range(5):
        other.check(CLIENT)
    other.sync()
    limiter.check(CLIENT)  # so that the document is read
    for _ in range(2):
        limiter.sync()
    assert 8 == used_hits(limiter)
    for each in held:
        if is_confirmed:
            limiter.confirm(each)
        else:
            assert limiter.take_back(each)
    count = 8 if is_confirmed else 6
    assert count == used_hits(limiter)
    limiter.sync()
    assert (count, count) == (used_hits(limiter), stored_hits(store))


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_key_that_was_forgotten_meanwhile_is_counted_anew(clock: Clock, is_confirmed: bool) -> None:
    store = MemoryStore(clock)
    limiter = limiter_of({"limits": {"client": ["5/minute"]}, "max_keys": 100}, store, clock=clock)
    (held,) = held_by(limiter)
    for number in range(99):
        limiter.check(f"other-{number}", cost=2)  # nearer to their limit, so that they stay
    limiter.sync()
    assert CLIENT not in {key.client_id for key in known_keys(limiter)}
    assert limiter.check(CLIENT).allowed
    if is_confirmed:
        limiter.confirm(held)
    else:
        assert limiter.take_back(held)
    assert (2 if is_confirmed else 1) == used_hits(limiter)
    limiter.sync()
    assert (2 if is_confirmed else 1) == stored_hits(store)


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.DRY_RUN])
def test_request_over_its_limit_is_not_held(clock: Clock, mode: Mode) -> None:
    limiter = Limiter(some_settings(TRIPLE, mode=mode), clock=clock, monotonic=clock)
    held_by(limiter, 3)
    decision, held = limiter.hold(CLIENT)
    assert (True, mode is Mode.DRY_RUN, None) == (decision.would_deny, decision.allowed, held)


def test_request_that_only_a_dry_run_denies_is_not_held_but_a_guess_is(clock: Clock) -> None:
    """It counts in the enforced limit for good, as the server's errors take nothing back of it."""
    on_trial = a_policy(1, name="on trial")._replace(mode=Mode.DRY_RUN)
    limiter = a_limiter(None, clock, TRIPLE, on_trial)
    held_by(limiter)
    decision, held = limiter.hold(CLIENT)
    assert (True, True, None) == (decision.allowed, decision.would_deny, held)
    decision, held = limiter.hold_guess([KEY])
    assert (True, True, True) == (decision.allowed, decision.would_deny, held is not None)
    assert not limiter.hold(CLIENT)[0].allowed


def test_request_of_a_trusted_client_is_not_held(clock: Clock) -> None:
    limiter = Limiter(some_settings(TRIPLE, trusted=(CLIENT,)), clock=clock, monotonic=clock)
    decision, held = limiter.hold(CLIENT)
    assert (True, None) == (decision.trusted, held)
    limiter.confirm(held)
    assert limiter.take_back(held)


def test_request_that_began_before_the_clock_was_set_back_is_sent_once(clock: Clock) -> None:
    store = MemoryStore(clock)
    limiter = a_limiter(store, clock, TRIPLE)
    (held,) = held_by(limiter)
    clock.advance(-3600)
    limiter.confirm(held)
    assert not limiter.check(CLIENT, cost=3).allowed
    limiter.sync()
    assert 1 == stored_hits(store)


# Guesses, which count against several keys.

ALICE = Key(CLIENT, "alice")


def a_guarding_limiter(store: MemoryStore | None, clock: Clock, limit: int = 3) -> Limiter:
    settings = some_settings(a_policy(limit))
    return Limiter(settings, store, clock=clock, monotonic=clock, keeps_held=True)


@pytest.mark.parametrize("is_shared", [True, False])
def test_right_guesses_are_all_taken_back_and_leave_nothing_behind(clock: Clock, is_shared: bool) -> None:
    limiter = a_guarding_limiter(MemoryStore(clock) if is_shared else None, clock)
    for _ in range(10):
        guesses = [limiter.hold_guess([KEY, ALICE]) for _ in range(4)]
        assert [True] * 3 + [False] == [decision.allowed for decision, _ in guesses]
        for _, held in guesses[:3]:
            limiter.release(held)
    assert [] == known_keys(limiter)


@pytest.mark.parametrize("is_shared", [True, False])
def test_wrong_guess_counts_once_against_each_key_or_against_none(clock: Clock, is_shared: bool) -> None:
    store = MemoryStore(clock) if is_shared else None
    limiter = a_guarding_limiter(store, clock)
    for keys in ([KEY, ALICE], [KEY, ALICE], [KEY]):
        limiter.confirm(limiter.hold_guess(keys)[1])
    decision, held = limiter.hold_guess([ALICE, KEY])
    assert (False, None) == (decision.allowed, held)
    limiter.sync()
    assert [3, 2] == [used_hits(limiter), used_hits(limiter, username="alice")]
    assert store is None or [3, 2] == [stored_hits(store, key) for key in (KEY, ALICE)]


def test_guess_counts_once_against_a_key_that_is_named_twice(clock: Clock) -> None:
    limiter = a_guarding_limiter(None, clock)
    limiter.confirm(limiter.hold_guess([KEY, ALICE, KEY])[1])
    assert [1, 1] == [used_hits(limiter), used_hits(limiter, username="alice")]


@pytest.mark.parametrize("is_shared", [True, False])
def test_guesses_that_are_held_are_told_from_those_that_were_wrong(clock: Clock, is_shared: bool) -> None:
    limiter = a_guarding_limiter(MemoryStore(clock) if is_shared else None, clock)
    guesses = [limiter.hold_guess([KEY])[1] for _ in range(3)]
    assert [False, True] == [limiter.peek_known(KEY, ignores_held=ignored).allowed for ignored in (False, True)]
    for held in guesses:
        limiter.confirm(held)
    assert [False, False] == [limiter.peek_known(KEY, ignores_held=ignored).allowed for ignored in (False, True)]


def test_guess_asks_for_no_document_before_it_was_wrong(clock: Clock) -> None:
    """Those who log in rightly cost the database nothing."""
    store = MemoryStore(clock)
    limiter = a_guarding_limiter(store, clock)
    _, held = limiter.hold_guess([KEY])
    assert (0, None) == (limiter.sync().pulled_count, limiter.sync_urgent())
    limiter.confirm(held)
    assert limiter.sync_urgent() is not None
    assert 1 == stored_hits(store)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_guess_is_settled_by_a_cycle_if_another_process_holds_the_lock(
    tmp_path: Path, clock: Clock, is_wrong: bool
) -> None:
    settings = load_config(
        {"mode": "enforce", "limits": {"client": ["3 per 10 minute"]}, "host": str(tmp_path / "ratelimit.db")}
    )
    store = MemoryStore(clock)
    with closing(Limiter(settings, store, clock=clock, monotonic=clock)) as limiter:
        _, held = limiter.hold_guess([KEY])
        with locked(tmp_path / "ratelimit.db"):
            (limiter.confirm if is_wrong else limiter.release)(held)
        assert (1, 0) == (used_hits(limiter), in_flight_hits(limiter))
        limiter.sync()
        assert int(is_wrong) == used_hits(limiter) == stored_hits(store)


def test_guess_that_was_taken_back_takes_no_later_one_back(tmp_path: Path, clock: Clock) -> None:
    """It is none that a killed process has left."""
    limits = {"client": [{"limit": 3, "window": "10m", "frames": 1}]}
    settings = load_config({"mode": "enforce", "limits": limits, "host": str(tmp_path / "ratelimit.db")})
    with closing(Limiter(settings, clock=clock, monotonic=clock, keeps_held=True)) as limiter:
        assert limiter.take_back(limiter.hold_guess([KEY])[1])
        clock.advance(2 * CHECK_S + 1)
        limiter.hold_guess([KEY])
        limiter.sync()
        assert 1 == used_hits(limiter)


@pytest.mark.parametrize(
    ("column", "value"), [("since", "text"), ("owner", b"\1"), ("owner", "text"), ("rows", b"\1"), ("rows", "[[1]]")]
)
def test_note_of_a_guess_that_is_damaged_stops_no_cycle_and_goes(
    tmp_path: Path, clock: Clock, column: str, value: object
) -> None:
    path, store = tmp_path / "ratelimit.db", MemoryStore(clock)
    settings = load_config({"mode": "enforce", "limits": {"client": ["3 per 10 minute"]}, "host": str(path)})
    with closing(Limiter(settings, store, clock=clock, monotonic=clock, keeps_held=True)) as limiter:
        limiter.confirm(limiter.hold_guess([KEY])[1])
        limiter.hold_guess([KEY])
        with closing(sqlite3.connect(path)) as connection, connection:
            assert 1 == connection.execute(f"UPDATE guesses SET {column} = ?", (value,)).rowcount
        clock.advance(2 * CHECK_S + 1)
        assert limiter.sync().error is None
        with closing(sqlite3.connect(path)) as connection:
            assert (0,) == connection.execute("SELECT count(*) FROM guesses").fetchone()
        assert 1 == stored_hits(store)


def test_guess_that_is_settled_late_forgets_no_note_of_another_process(tmp_path: Path, clock: Clock) -> None:
    """Numbers are used again, so that one may be that of a guess that another process checks."""
    path = tmp_path / "ratelimit.db"
    settings = load_config({"mode": "enforce", "limits": {"client": ["3 per 10 minute"]}, "host": str(path)})
    with closing(Limiter(settings, clock=clock, monotonic=clock, keeps_held=True)) as limiter:
        _, held = limiter.hold_guess([KEY])
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE guesses SET owner = 'another'")
        limiter.release(held)
        with closing(sqlite3.connect(path)) as connection:
            assert (1,) == connection.execute("SELECT count(*) FROM guesses").fetchone()


ACTIONS = st.tuples(
    st.sampled_from(("hold", "confirm", "confirm", "take back", "check", "sync", "sync urgent", "wait")),
    st.integers(0, 1),  # which limiter
    st.sampled_from((None, "alice", "bob")),
    st.integers(0, 9),  # which of those that are held, and for how long to wait
)


@given(actions=st.lists(ACTIONS, max_size=60), limit=st.sampled_from((2, 5, 1000)))
def test_store_holds_each_request_that_was_confirmed_once(actions: list[tuple[Any, ...]], limit: int) -> None:
    """Whatever happens between decision and response, on either instance. No number is ever below zero."""
    clock = Clock()
    store = MemoryStore(clock)
    policies = {"user": (a_policy(limit, name="user"),), "total": (a_policy(2 * limit, name="total"),)}
    settings = some_settings(a_policy(limit), **policies)  # type: ignore[arg-type]
    limiters = [Limiter(settings, store, clock=clock, monotonic=clock) for _ in range(2)]
    held: tuple[list[tuple[str | None, OpenRequest]], ...] = ([], [])
    expected = dict.fromkeys((KEY, USER_KEY, Key(CLIENT, "bob"), TOTAL_KEY), 0)

    def note(username: str | None) -> None:
        expected[Key(CLIENT, username)] += 1
        expected[TOTAL_KEY] += 1

    for action, place, username, number in actions:
        limiter, own = limiters[place], held[place]
        if action == "hold":
            decision, found = limiter.hold(CLIENT, username)
            assert bool(found) is decision.allowed
            if found:
                own.append((username, found))
        elif action == "check":
            if limiter.check(CLIENT, username).allowed:
                note(username)
        elif action in ("confirm", "take back") and own:
            name, chosen = own.pop(number % len(own))
            if action == "confirm" or not limiter.take_back(chosen):
                limiter.confirm(chosen)
                note(name)
        elif action == "sync":
            limiter.sync()
        elif action == "sync urgent":
            limiter.sync_urgent()
        elif action == "wait":
            clock.advance(number)
        assert min(used_hits(limiter, username=name) for name in (None, "alice", "bob")) >= 0
    for limiter in limiters:
        limiter.close()
    assert expected == {key: stored_hits(store, key) for key in expected}


@given(taken=st.lists(st.booleans(), max_size=30), limit=st.integers(1, 6))
def test_client_makes_at_most_twice_its_limit_of_attempts(taken: list[bool], limit: int) -> None:
    clock = Clock()
    limiter = a_limiter(MemoryStore(clock), clock, a_policy(limit))
    attempt_count = 0
    for is_failed in taken:
        decision, held = limiter.hold(CLIENT)
        attempt_count += decision.allowed
        if decision.allowed and not (is_failed and limiter.take_back(held)):
            limiter.confirm(held)
    assert attempt_count <= 2 * limit
