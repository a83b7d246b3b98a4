"""Nothing is lost or doubled, whatever happens to the instances and the server between them."""

import random

import pytest

from tests.simulation.configs import CONFIGS, OTHER_ROUTES, PLAIN_ROUTE, Config, Route
from tests.simulation.fleet import Fleet
from tests.simulation.history import SEEDS, check

SEEDS_PER_TEST = 10


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # what Ctrl-C interrupts leaves files to Python
@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_nothing_is_lost_or_doubled(first: int) -> None:
    """Every admitted request is stored once in each series that it counts in, and no request waits for the store."""
    for seed in range(first, first + SEEDS_PER_TEST):
        check(seed)


def test_failure_shrinks_to_the_steps_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that forgets a document is found, and the history that shows it is short."""
    fleet_settle = Fleet.settle

    def forget_one(fleet: Fleet) -> None:
        fleet_settle(fleet)
        fleet.server.latest.pop(next(iter(fleet.server.latest), b""), None)

    monkeypatch.setattr(Fleet, "settle", forget_one)
    with pytest.raises(AssertionError) as raised:
        check(1, steps=100, dimensions=())

    assert "lost in" in str(raised.value)
    assert len(raised.value.__notes__[0].splitlines()) <= 3


@pytest.mark.parametrize("route", (PLAIN_ROUTE, *OTHER_ROUTES), ids=repr)
@pytest.mark.parametrize("config", CONFIGS, ids=CONFIGS.index)
def test_every_configuration_counts_in_the_series_that_the_oracle_expects(config: Config, route: Route) -> None:
    """The oracle's own table is right: it fails here, and not in a long history."""
    fleet = Fleet(random.Random(0))
    instance = fleet.start(config)
    for username in [None] * 30 + ["ann"] * 30:
        instance.ask("shop", username, 1, route)
    fleet.settle()

    assert fleet.truth == fleet.stored()
