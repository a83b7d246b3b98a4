"""Configurations of simulated instances, with what they count in: spelt out here and not derived by the package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Series:
    """A series that requests are counted in.

    Attributes:
        name: Its name in a document.
        frame_s: Length of its frames.
        horizon_s: How long a frame can matter, from its start: the window and one frame.
    """

    name: str
    frame_s: int
    horizon_s: int


@dataclass(frozen=True)
class Limit:
    """A limit, with the series of its window.

    Attributes:
        hits: Hits in a window.
        series: Where they are counted.
    """

    hits: int
    series: Series

    def room(self, counted: Mapping[int, int], now_s: float) -> float:
        """Return how many hits are left: the frames in the window count in full, the oldest by its share inside.

        Args:
            counted: Hits by frame start.
            now_s: The time.
        """
        frame_s = self.series.frame_s
        start_s = int(now_s // frame_s) * frame_s
        oldest_s = start_s - (self.series.horizon_s - frame_s)
        full = sum(hits for frame, hits in counted.items() if oldest_s < frame <= start_s)
        return self.hits - full - counted.get(oldest_s, 0) * (1 - (now_s - start_s) / frame_s)


@dataclass(frozen=True)
class Kinds:
    """Limits of a client.

    Attributes:
        user, client, total: Of a user, of the client without a user, and of all users together.
    """

    user: tuple[Limit, ...]
    client: tuple[Limit, ...]
    total: tuple[Limit, ...] = ()

    @property
    def horizon_s(self) -> int:
        """The longest horizon."""
        return max(limit.series.horizon_s for limit in (*self.user, *self.client, *self.total))


@dataclass(frozen=True)
class Config:
    """A configuration.

    Attributes:
        content: Its sections.
        limits: Those of clients that are not in ``clients``.
        clients: Those of clients that differ.
    """

    content: dict[str, Any]
    limits: Kinds
    clients: Mapping[str, Kinds] = field(default_factory=dict)

    def of(self, client_id: str) -> Kinds:
        """Return the limits of a client."""
        return self.clients.get(client_id, self.limits)

    @property
    def horizon_s(self) -> int:
        """The longest horizon."""
        return max(kinds.horizon_s for kinds in (self.limits, *self.clients.values()))


MINUTE = Series("6", 6, 66)
TWO_MINUTES = Series("12", 12, 132)
TEN_SECONDS = Series("1", 1, 11)
TEN_MINUTES = Series("60", 60, 660)
TEN_MINUTES_IN_SHORT_FRAMES = Series("6", 6, 606)  # those of a minute

USUAL = Kinds(user=(Limit(50, MINUTE),), client=(Limit(80, MINUTE),))
WIDER = Kinds(user=(Limit(90, TWO_MINUTES),), client=(Limit(80, MINUTE),))
CONFIGS = (
    Config({"limits": {"user": ["50/minute"], "client": ["80/minute"]}}, USUAL),
    Config({"limits": {"user": ["90 per 2 minute"], "client": ["80/minute"]}}, WIDER),
    Config(
        {"limits": {"user": ["20 per 10 second", "50/minute"], "client": ["200 per 10 minute"]}},
        Kinds(user=(Limit(20, TEN_SECONDS), Limit(50, MINUTE)), client=(Limit(200, TEN_MINUTES),)),
    ),
    Config(
        {"limits": {"user": [{"limit": 200, "window": "10m", "frames": 100}], "client": ["80/minute"]}},
        Kinds(user=(Limit(200, TEN_MINUTES_IN_SHORT_FRAMES),), client=(Limit(80, MINUTE),)),
    ),
    Config(
        {"limits": {"user": ["50/minute"], "client": ["80/minute"], "client_total": ["90 per 2 minute"]}},
        Kinds(user=(Limit(50, MINUTE),), client=(Limit(80, MINUTE),), total=(Limit(90, TWO_MINUTES),)),
    ),
    # As an override of one client changes the first.
    Config(
        {
            "limits": {"user": ["50/minute"], "client": ["80/minute"]},
            "clients": {"shop": {"limits": {"user": ["90 per 2 minute"]}}},
        },
        USUAL,
        {"shop": WIDER},
    ),
)
PLAIN, WIDE, WITH_TOTAL = CONFIGS[0], CONFIGS[3], CONFIGS[4]
SHORTEST_HORIZONS_S = {"1": 11, "6": 66, "12": 132, "60": 660}  # of any configuration, by the name of the series
