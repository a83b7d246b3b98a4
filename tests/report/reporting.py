"""Minutes and findings for tests of the report."""

from collections.abc import Iterator
from typing import Any

from oauth_ratelimit.core.hyperloglog import merged, register_of
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from oauth_ratelimit.report import ClientFinding, find
from oauth_ratelimit.report.letter import Period

START_S = 1_700_002_800  # a full hour
PERIOD = Period(START_S, START_S + 86_400)
LOGIN = Source("user", "password")
REFRESH = Source("user", "refresh_token")
OWN = Source("client", "client_credentials")

HOSTILE_IDS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></style><b>",
    '=HYPERLINK("http://example.com","x")',
    "+1+1|cmd",
    "-2",
    "@SUM(1)",
    " =1",
    "\t=1",
    "\uff1d1+1",
    "\u3000\uff20SUM(1)",
    "\r\n=1",
    "rtl\u202egpj.exe",
    "nul\0nul",
    "a\nSubject: b",
    "é\U0001f511",
)


def minutes(
    tallies: dict[Source, Tally],
    *,
    users: int = 0,
    count: int = 60,
    every_s: int = 60,
    client_id: str = "shop",
    **more: Any,
) -> Iterator[ClientMinute]:
    """Yield minutes that are all the same."""
    registers = merged(dict([register_of(f"user-{number}")]) for number in range(users))
    for number in range(count):
        yield ClientMinute(client_id, START_S + every_s * number, tallies, registers=registers, **more)


def worst_findings(*client_ids: str) -> list[ClientFinding]:
    """Return findings about clients with all faults."""
    tally = Tally(100, denied=40, retries=20, would_deny=3)
    every = {LOGIN: tally, REFRESH: tally, OWN: tally}
    found = [
        ClientMinute(client_id, START_S + 60 * number, every, registers={1: 1}, lifetimes={864_000: 60})
        for client_id in client_ids
        for number in range(60)
    ]
    busiest = [ClientMinute(client_id, START_S + 7200, {OWN: Tally(50_000)}) for client_id in client_ids]
    return find([*found, *busiest])


def fine_finding() -> ClientFinding:
    """Return the finding about a client without faults."""
    (finding,) = find([ClientMinute("shop", START_S, {OWN: Tally(1)})])
    return finding
