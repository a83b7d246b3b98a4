"""Minutes of a client for tests of the report."""

from collections.abc import Iterator
from typing import Any

from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally, merge_into, register_of

START_S = 1_700_002_800  # a full hour
LOGIN = Source("user", "password")
REFRESH = Source("user", "refresh_token")
OWN = Source("client", "client_credentials")


def minutes(
    tallies: dict[Source, Tally],
    *,
    users: int = 0,
    count: int = 60,
    every_s: int = 60,
    client_id: str = "shop",
    **more: Any,
) -> Iterator[ClientMinute]:
    registers: dict[int, int] = {}
    for number in range(users):
        merge_into(registers, dict([register_of(f"user-{number}")]))
    for number in range(count):
        yield ClientMinute(client_id, START_S + every_s * number, tallies, registers=registers, **more)
