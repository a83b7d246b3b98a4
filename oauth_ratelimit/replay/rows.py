"""
Rows in the order of time, a batch at a time: however long the recording, a few batches are held.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from oauth_ratelimit.replay.times import SECOND_US

BATCH_SIZE = 100_000  # rows: about 20 MB; two requests further apart than that are not put in order any more


class Row(NamedTuple):
    """
    One recorded request.

    Attributes:
        at_us: Microseconds since the epoch.

        client: Who asked.

        user: On whose behalf, None if on nobody's.
    """

    at_us: int
    client: str
    user: str | None = None


class Ordered:
    """
    Rows sorted by time, those of one moment as they came.

    Servers write a request when it ends, so logs are a little out of order. A row that comes later than a whole batch
    is taken for one of the moment that has been reached.

    Args:
        rows: As they were read.

        spread: Whether rows of one second are spread evenly over it; None does so if the first batch knows only whole
            seconds. Otherwise a second's requests would all come at its first instant.

    Attributes:
        is_spread: Whether they are; known once the first batch was read.

        late_count: Rows that came too late to be put in order.

        first_us, last_us: When the recording began and ended; None without rows.
    """

    def __init__(self, rows: Iterable[Row], *, spread: bool | None = None, batch_size: int = BATCH_SIZE) -> None:
        self._rows = iter(rows)
        self._batch_size = batch_size
        self.is_spread = spread
        self.late_count = 0
        self.first_us: int | None = None
        self.last_us: int | None = None

    def batches(self) -> Iterator[list[Row]]:
        """
        Yield the rows, in order within a batch and from one to the next.
        """
        held: list[Row] = []
        while more := list(islice(self._rows, self._batch_size)):
            if self.is_spread is None:
                self.is_spread = all(row.at_us % SECOND_US == 0 for row in more)
            held += more
            held.sort(key=itemgetter(0))
            count = self._complete_count(held)
            if count:
                yield self._released(held[:count])
                del held[:count]
        if held:
            yield self._released(held)

    def _complete_count(self, held: list[Row]) -> int:
        """
        Return how many rows can go, not to cut a second that is to be spread.
        """
        count = len(held) - self._batch_size
        if count <= 0 or not self.is_spread:
            return max(0, count)
        second = held[count].at_us // SECOND_US
        while count and held[count - 1].at_us // SECOND_US == second:
            count -= 1
        return count or (len(held) - self._batch_size if len(held) > 4 * self._batch_size else 0)

    def _released(self, rows: list[Row]) -> list[Row]:
        if self.is_spread:
            rows = list(_spread(rows))
        reached_us = self.last_us
        if self.first_us is None or reached_us is None:
            self.first_us = rows[0].at_us
        else:
            for index, row in enumerate(rows):
                if row.at_us >= reached_us:
                    break
                rows[index] = row._replace(at_us=reached_us)
                self.late_count += 1
        self.last_us = rows[-1].at_us
        return rows


def _spread(rows: Iterable[Row]) -> Iterator[Row]:
    """
    Yield rows with those of each second at the middles of as many equal parts of it.
    """
    for second, group in groupby(rows, key=lambda row: row.at_us // SECOND_US):
        together = list(group)
        start_us, parts = second * SECOND_US, 2 * len(together)
        for rank, (_, client, user) in enumerate(together):
            yield Row(start_us + (2 * rank + 1) * SECOND_US // parts, client, user)
