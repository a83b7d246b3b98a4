"""Configurations of simulated instances, with what they count in: spelt out here and not derived by the package."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

ENFORCE, DRY_RUN = "enforce", "dry-run"


class Route(NamedTuple):
    """How a request comes in: to an endpoint, with a grant type."""

    endpoint: str = "token"
    grant_type: str | None = None


PLAIN_ROUTE = Route()
OTHER_ROUTES = (Route(grant_type="password"), Route(grant_type="refresh_token"), Route("revocation"))


@dataclass(frozen=True)
class Limit:
    """A limit, with the frames that its hits are counted in."""

    hits: int
    window_s: int
    frame_s: int
    mode: str | None = None
    count_denied: bool = False
    suffix: str = ""  # of the name of its series, after the length of a frame
    dry_run_suffix: str = ""  # the same for requests in dry run

    @property
    def series(self) -> str:
        """Name in a document of what it counts in."""
        return f"{self.frame_s}{self.suffix}"

    @property
    def horizon_s(self) -> int:
        """How long a frame can matter, from its start: the window and one frame."""
        return self.window_s + self.frame_s

    @property
    def content(self) -> dict[str, Any]:
        """The limit, as in a file."""
        frames = {"limit": self.hits, "window": self.window_s, "frames": self.window_s // self.frame_s}
        own = {"name": f"{self.hits}", "count_denied": self.count_denied, **({"mode": self.mode} if self.mode else {})}
        return frames | own

    def room(self, counted: Mapping[int, int], now_s: float) -> float:
        """Return how many hits are left: the frames in the window count in full, the oldest by its share inside."""
        start_s = int(now_s // self.frame_s) * self.frame_s
        oldest_s = start_s - self.window_s
        full = sum(hits for frame, hits in counted.items() if oldest_s < frame <= start_s)
        return self.hits - full - counted.get(oldest_s, 0) * (1 - (now_s - start_s) / self.frame_s)


Kinds = Mapping[str, tuple[Limit, ...]]  # of a user, of the client without a user, and of all users together
NO_KINDS: Kinds = {}


@dataclass(frozen=True)
class Config:
    """A configuration."""

    limits: Kinds  # of all clients
    clients: Mapping[str, Kinds] = field(default_factory=dict)  # of those that differ, kind by kind
    grants: Mapping[str | None, Kinds] = field(default_factory=dict)  # counted apart; other kinds are inherited
    grant_modes: Mapping[str | None, str] = field(default_factory=dict)  # of some of them
    endpoints: Mapping[str, Kinds] = field(default_factory=dict)

    def at(self, client_id: str, route: Route) -> tuple[str | None, Kinds, str]:
        """Return the scope of a client's requests, their limits, and the mode of those without one of their own."""
        if route.endpoint != "token":
            return route.endpoint, self.endpoints.get(route.endpoint, NO_KINDS), ENFORCE
        mode, kinds = (
            self.grant_modes.get(route.grant_type, ENFORCE),
            {**self.limits, **self.clients.get(client_id, {})},
        )
        if route.grant_type not in self.grants:
            return None, kinds, mode
        kinds |= self.grants[route.grant_type]
        if mode == DRY_RUN:
            kinds = {
                kind: tuple(replace(limit, suffix=limit.dry_run_suffix or limit.suffix) for limit in limits)
                for kind, limits in kinds.items()
            }
        return f"grant:{route.grant_type}", kinds, mode

    @property
    def horizon_s(self) -> int:
        """The longest of all limits."""
        all_kinds = (self.limits, *self.clients.values(), *self.grants.values(), *self.endpoints.values())
        return max(limit.horizon_s for kinds in all_kinds for limits in kinds.values() for limit in limits)

    @property
    def content(self) -> dict[str, Any]:
        """Its sections, as in a file."""
        return {
            "mode": ENFORCE,
            "limits": _content_of(self.limits),
            "clients": _sections_of(self.clients),
            "grants": {
                name: {**section, "mode": self.grant_modes.get(name)}
                for name, section in _sections_of(self.grants).items()
            },
            "endpoints": _sections_of(self.endpoints),
        }


def _sections_of(sections: Mapping[Any, Kinds]) -> dict[str, Any]:
    return {name: {"limits": _content_of(kinds)} for name, kinds in sections.items()}


def _content_of(kinds: Kinds) -> dict[str, Any]:
    return {kind: [limit.content for limit in limits] for kind, limits in kinds.items()}


USER, CLIENT, TWO_MINUTES = Limit(50, 60, 6), Limit(80, 60, 6), Limit(90, 120, 12)
ON_TRIAL = Limit(12, 60, 6, DRY_RUN, suffix="+dry-run")  # beside one that is enforced
NEVER_PAUSES = Limit(15, 60, 6, count_denied=True, suffix="+denied")
USUAL: Kinds = {"user": (USER,), "client": (CLIENT,)}
CONFIGS = (
    Config(USUAL),
    Config({"user": (TWO_MINUTES,), "client": (CLIENT,)}),
    Config({"user": (Limit(20, 10, 1), USER), "client": (Limit(200, 600, 60),)}),
    Config({"user": (Limit(200, 360, 6),), "client": (CLIENT,)}),
    Config({**USUAL, "client_total": (TWO_MINUTES,)}),
    Config(USUAL, {"shop": {"user": (TWO_MINUTES,)}}),  # as an override of one client changes the first
    Config({"user": (ON_TRIAL, Limit(18, 60, 6)), "client": (NEVER_PAUSES, CLIENT, Limit(200, 360, 6))}),
    Config(
        {**USUAL, "client_total": (ON_TRIAL, Limit(30, 120, 6))},
        grants={"refresh_token": {"user": (Limit(13, 60, 6, DRY_RUN, suffix="+dry-run"), USER)}},
    ),
    Config(
        {
            "user": (Limit(25, 60, 6, ENFORCE), Limit(15, 60, 6, dry_run_suffix="+dry-run"), ON_TRIAL),
            "client": (Limit(9, 60, 6, count_denied=True, suffix="+denied"),),
        },
        grants={"password": {}},
        grant_modes={"password": DRY_RUN},
        endpoints={"revocation": {"user": (USER,), "client": (NEVER_PAUSES,), "client_total": (CLIENT,)}},
    ),
    Config(
        {**USUAL, "client_total": (Limit(60, 120, 12),)},
        {"shop": {"user": (TWO_MINUTES,)}},
        grants={"password": {}, "refresh_token": {"user": (Limit(20, 10, 1),), "client_total": ()}},
        grant_modes={"password": DRY_RUN},
        endpoints={"revocation": {"client": (Limit(12, 60, 6),)}},
    ),
)
COMMON_COUNT = 6  # of configurations with limits of the token endpoint alone
PLAIN, WIDE, WITH_TOTAL = CONFIGS[0], CONFIGS[3], CONFIGS[4]
SHORTEST_HORIZONS_S = {  # of any configuration, by the name of the series
    "1": 11,
    "6": 66,
    "12": 132,
    "60": 660,
    "6+denied": 66,
    "6+dry-run": 66,
}
