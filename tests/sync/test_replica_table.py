"""Steps of a sync cycle: what one has loaded or stored, the next one goes on with."""

from collections.abc import Callable

import pytest

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import MAX_FRAMES
from oauth_ratelimit.counters.hits import pack_hits
from oauth_ratelimit.counters.host import Host
from oauth_ratelimit.counters.rules import RuleBook, row_name
from oauth_ratelimit.counters.table import READ_HITS, HostTable
from oauth_ratelimit.sync.replica import SPARE_FRAMES, Replica, _useful
from oauth_ratelimit.sync.replica_table import ReplicaTable
from tests.support.limiters import a_policy, some_settings

NAME = row_name(Key("app", None))
DUE_S = 100.0
HITS = {Series(6): {1_200_000_000: 2}}


def a_book(limit: int) -> RuleBook:
    return RuleBook(some_settings(a_policy(limit)).policies, max_keys=10)


@pytest.fixture
def books() -> list[RuleBook]:
    """The last one applies."""
    return [a_book(10)]


@pytest.fixture
def rows(books: list[RuleBook]) -> ReplicaTable:
    """A table with one row, which a cycle has taken and changed in its first step."""
    table = HostTable(Host(), max_keys=10)
    with table.host.locked():
        table.insert(NAME, now_s=0.0, due_s=0.0)
    table.host.lead()
    rows = ReplicaTable(table, lambda: books[-1], lambda: None, lambda: None)
    rows.take([NAME])
    with rows.changing([NAME]) as (replica,):
        replica.due_s = DUE_S
    return rows


def next_step(rows: ReplicaTable) -> Replica:
    with rows.changing([NAME]) as (replica,):
        return replica


def count(table: HostTable) -> None:
    with table.host.locked():
        assert table.write([(NAME, table.read(READ_HITS, NAME)[1], {"unsent": pack_hits(HITS)})])


def deny(table: HostTable) -> None:
    with table.host.locked():
        table.ask(NAME, due_s=7.0)


def test_row_is_loaded_once_in_a_cycle_if_nobody_else_changes_it(rows: ReplicaTable) -> None:
    replica = next_step(rows)
    assert DUE_S == replica.due_s
    assert replica is next_step(rows)
    rows.release()
    assert replica is not next_step(rows)
    assert DUE_S == next_step(rows).due_s


@pytest.mark.parametrize(("request_", "expected"), [(count, (HITS, DUE_S)), (deny, ({}, 7.0))])
def test_request_between_two_steps_is_seen_by_the_second(
    rows: ReplicaTable, request_: Callable[[HostTable], None], expected: object
) -> None:
    request_(rows.table)
    replica = next_step(rows)
    assert (expected, True) == ((replica.unsent, replica.due_s), replica.is_asked)


def test_row_that_is_gone_between_two_steps_is_not_stored_again(rows: ReplicaTable) -> None:
    with rows.table.host.transaction():
        rows.table.delete([NAME])
    with rows.changing([NAME]) as replicas:
        assert [] == replicas
    assert [] == rows.load([NAME])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_next_step_knows_nothing_of_one_that_was_interrupted(
    rows: ReplicaTable, interruption: type[BaseException]
) -> None:
    with pytest.raises(interruption), rows.changing([NAME]) as (replica,):
        replica.due_s, replica.unsent = 5.0, HITS
        raise interruption
    assert (DUE_S, False) == (next_step(rows).due_s, next_step(rows).has_unsent)


def test_limits_that_change_between_two_steps_count_in_the_second(rows: ReplicaTable, books: list[RuleBook]) -> None:
    assert [10] == [tier.limit for tier in next_step(rows).tiers]
    books.append(a_book(20))
    assert [20] == [tier.limit for tier in next_step(rows).tiers]


def test_newest_frames_of_a_planted_document_are_merged() -> None:
    """As many as a limit can have: requests wait meanwhile."""
    planted = {Series(6): dict.fromkeys(range(0, 600_000, 6), 1)}
    (found,) = _useful(planted, 599_994.0).values()
    assert [*range(600_000 - 6 * (MAX_FRAMES + SPARE_FRAMES), 600_000, 6)] == sorted(found)
