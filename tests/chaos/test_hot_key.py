"""Many instances that count one key."""

from urllib.parse import urlsplit

import pytest

from tests.chaos.fleet import Books, Instance, balance, run
from tests.support.helpers import Clock, with_database

pytestmark = pytest.mark.chaos

USER = "user-0"
CYCLES = 5


def database(uri: str, name: str) -> str:
    """Return the URI of a further database."""
    return with_database(uri, f"{urlsplit(uri).path[1:]}_{name}")


def cost_of_cycles(uri: str, *, count: int, clock: Clock) -> tuple[float, int, list[Instance]]:
    """Let instances flush one key in turn, cycle after cycle.

    Returns:
        Document operations per instance and cycle, the most rounds that a flush needed, and the instances.
    """
    instances = [Instance(uri, clock=clock) for _ in range(count)]
    operations = rounds = 0
    for _ in range(CYCLES):
        for instance in instances:
            instance.hit(USER)
            clock.advance(1 / count)
            report = instance.limiter.sync()
            operations += report.flushed_count + report.conflict_count + report.pulled_count
            rounds = max(rounds, report.round_count)
    return operations / count / CYCLES, rounds, instances


def test_thirty_instances_in_turn(mongo_uri: str, record: list[Books]) -> None:
    """The cost per instance does not grow with their number, and a flush needs two rounds at most."""
    few, few_rounds, few_instances = cost_of_cycles(database(mongo_uri, "few"), count=3, clock=Clock())
    many, many_rounds, many_instances = cost_of_cycles(database(mongo_uri, "many"), count=30, clock=Clock())
    assert many <= few * 1.5
    assert max(few_rounds, many_rounds) <= 2
    for instances, name in ((few_instances, "few"), (many_instances, "many")):
        books = balance(instances, database(mongo_uri, name))
        record.append(books)
        assert (0, 0) == (books.lost, books.doubled)


def test_thirty_instances_at_once(mongo_uri: str, record: list[Books]) -> None:
    """Thirty flushes that collide on purpose, cycle after cycle: nothing is lost, and all of it arrives soon after."""
    instances = [Instance(mongo_uri) for _ in range(30)]
    run(instances, cycles=CYCLES, seed=1, keys=1)
    books = balance(instances, mongo_uri)
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)
