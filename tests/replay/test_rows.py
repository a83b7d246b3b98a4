"""Rows are put in the order of time."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.replay.formats import SECOND_US, Ordered, Row


def ordered(rows: Sequence[Row], *, spread: bool | None = False, batch_size: int = 4) -> tuple[Ordered, list[Row]]:
    """Return what orders rows, and the rows in order."""
    order = Ordered(rows, spread=spread, batch_size=batch_size)
    return order, [row for batch in order.batches() for row in batch]


@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 9))
def test_any_order(times: Sequence[int], batch_size: int) -> None:
    """Rows come out in order of time, none lost, none new, and none changed but for those that came too late."""
    rows = [Row(at_us, str(number)) for number, at_us in enumerate(times)]
    order, found = ordered(rows, batch_size=batch_size)
    assert [row.at_us for row in found] == sorted(row.at_us for row in found)
    assert {row.client for row in rows} == {row.client for row in found}
    assert len(rows) == len(found)
    assert order.late_count == len(set(found) - set(rows))


def test_a_little_out_of_order() -> None:
    """Rows that come no later than a batch are put in order; those of one moment stay as they came."""
    rows = [Row(at_us, name) for at_us, name in ((3, "a"), (1, "b"), (3, "c"), (2, "d"), (7, "e"), (5, "f"))]
    order, found = ordered(rows)
    assert "bdacfe" == "".join(row.client for row in found)
    assert (0, 1, 7) == (order.late_count, order.first_us, order.last_us)


def test_too_late_to_be_put_in_order() -> None:
    """A row that comes much later counts at the moment that was reached, and is told."""
    rows = [Row(at_us, "a") for at_us in (*range(10, 30), 1)]
    order, found = ordered(rows)
    assert 1 == order.late_count
    assert 21 == len(found)
    assert min(row.at_us for row in found) == 10


@pytest.mark.parametrize("batch_size", (1, 3, 100))
def test_whole_seconds(batch_size: int) -> None:
    """The n rows of a second are spread to the middles of n parts of it, wherever a batch ends."""
    rows = [Row(second * SECOND_US, "a") for second in (5, 5, 6, 7, 7, 7, 7)]
    order, found = ordered(rows, spread=None, batch_size=batch_size)
    assert order.is_spread
    assert [5.25, 5.75, 6.5, 7.125, 7.375, 7.625, 7.875] == [row.at_us / SECOND_US for row in found]


def test_parts_of_a_second() -> None:
    """A file that knows parts of a second is taken as it is, whole seconds in it included."""
    rows = [Row(5 * SECOND_US, "a"), Row(5 * SECOND_US + 1, "b")]
    order, found = ordered(rows, spread=None)
    assert not order.is_spread
    assert rows == found


def test_one_second_for_ever() -> None:
    """However many rows say the same second, no more than a few batches are held."""
    order = Ordered((Row(SECOND_US, "a") for _ in range(100)), spread=True, batch_size=5)
    sizes = [len(batch) for batch in order.batches()]
    assert 100 == sum(sizes)
    assert max(sizes) <= 25


def test_nothing() -> None:
    """A file without rows has no beginning."""
    order, found = ordered([])
    assert [] == found
    assert order.first_us is order.last_us is None
