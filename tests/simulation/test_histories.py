"""Nothing is lost or doubled, whatever happens to the instances and the server between them."""

import random

import pytest

from tests.simulation.configs import CONFIGS
from tests.simulation.fleet import Fleet
from tests.simulation.history import DIMENSIONS, check, plan, run

STEPS = 200
SEEDS, SEEDS_OF_ALL = range(3), range(8)  # of histories with one dimension, and of those with all


@pytest.mark.no_cover
@pytest.mark.slow
@pytest.mark.parametrize(
    "dimensions",
    [(), *((name,) for name in DIMENSIONS), tuple(DIMENSIONS)],
    ids=lambda names: " and ".join(names) or "none",
)
def test_nothing_is_lost_or_doubled(dimensions: tuple[str, ...]) -> None:
    """Every admitted request is stored once in each series that it counts in, and no request waits for the store."""
    for seed in SEEDS_OF_ALL if len(dimensions) > 1 else SEEDS:
        check(seed, steps=STEPS, dimensions=dimensions)


def test_same_seed_makes_the_same_history() -> None:
    """A failure can be repeated by its seed."""
    histories = [run(plan(7, steps=40)).history for _ in range(2)]

    assert histories[0] == histories[1]


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


def test_every_configuration_counts_in_the_series_that_the_oracle_expects() -> None:
    """The oracle's own table is right: it fails here, and not in a long history."""
    for config in CONFIGS:
        fleet = Fleet(random.Random(0))
        fleet.start(config).ask("shop", "ann", 1)
        fleet.settle()

        assert fleet.truth == fleet.stored()
