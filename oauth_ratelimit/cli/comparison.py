"""Output of ``replay --compare``: the errors of each algorithm."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest

import click

from oauth_ratelimit.cli.output import Cell, Column, Row, print_facts, print_table
from oauth_ratelimit.cli.recording import RecordingFacts
from oauth_ratelimit.operations.format import duration
from oauth_ratelimit.replay.run import EXACT_LOG, ClientUser, Rate, Result

MOST_DENIED_ROWS, MOST_DENIED_RECORDS = 5, 20
COLUMNS = (
    ("algorithm", False),
    ("k", True),
    ("instances", True),
    ("shared", False),
    ("denied", True),
    ("wrongly allowed", True),
    ("wrongly denied", True),
    ("peak", True),
    ("operations", True),
    ("conflicts", True),
    ("waits", True),
)


@dataclass(slots=True)
class DeniedClient:
    """A client with denied requests.

    Args:
        client_id: The client.
        denied: Number of denied requests.
        user_count: Number of users with denied requests.
    """

    client_id: str
    denied: int = 0
    user_count: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of all contenders on one recording.

    Args:
        facts: The recording.
        rate: The limit.
        results: The contenders, the exact log first.
        denied: Number of requests of each key that the exact log denied.
    """

    facts: RecordingFacts
    rate: Rate
    results: Sequence[Result]
    denied: Mapping[ClientUser, int]

    def data(self) -> Mapping[str, object]:
        """Return the results as a record."""
        return {
            **self.facts.data(),
            "limit": self.rate.limit,
            "window_s": self.rate.window_s,
            "contenders": [self._result_data(result) for result in self.results],
            "most_denied": [asdict(each) for each in self._most_denied(MOST_DENIED_RECORDS)],
        }

    def _result_data(self, result: Result) -> Mapping[str, object]:
        contender, tally, plan = result.contender, result.tally, result.contender.plan
        return {
            "algorithm": contender.algorithm,
            "frames": contender.frame_count or None,
            "instances": plan and plan.instance_count,
            "interval_s": plan and plan.interval_s,
            "near_limit": plan and plan.sharing.value,
            **asdict(tally),
            "wrongly_allowed_percent": tally.percent(tally.wrongly_allowed),
            "wrongly_denied_percent": tally.percent(tally.wrongly_denied),
            "peak_over_limit": tally.peak / self.rate.limit,
        }

    def print(self) -> None:
        """Print the results; problems of the file go to the standard error."""
        self.facts.print_problems()
        facts = self.facts.table()
        if not facts:
            return
        print_facts([*facts, ("limit", f"{self.rate.limit} in {duration(self.rate.window_s)}")])
        click.echo()
        print_table([Column(name, is_number=number) for name, number in COLUMNS], list(map(self._row, self.results)))
        click.echo(
            "\nShares of all requests; peak: most in a window / limit; operations: documents per 1,000 requests."
            "\nWrong compares with an exact log of the algorithm's own admissions. In a flood one free hit is denied to"
            "\nmany requests, and each counts as wrongly denied: compare the total share of denied requests."
        )
        self._print_most_denied()

    def _print_most_denied(self) -> None:
        total = sum(self.denied.values())
        if not total:
            return
        click.echo()
        has_users = any(user is not None for _, user in self.denied)
        columns = [Column("client"), *(Column(name, is_number=True) for name in ("denied", "of all denied"))]
        rows: list[Row] = [
            (each.client_id, f"{each.denied:,}", f"{each.denied / total:.0%}", *[f"{each.user_count:,}"] * has_users)
            for each in self._most_denied(MOST_DENIED_ROWS)
        ]
        users = [Column("denied users", is_number=True)] * has_users
        print_table([*columns, *users], rows, title="Most denied clients, by the exact log")

    def _most_denied(self, count: int) -> list[DeniedClient]:
        clients: dict[str, DeniedClient] = {}
        for (client_id, user), denied in self.denied.items():
            client = clients.setdefault(client_id, DeniedClient(client_id))
            client.denied += denied
            client.user_count += user is not None
        return nsmallest(count, clients.values(), key=lambda client: (-client.denied, client.client_id))

    def _row(self, result: Result) -> Sequence[str | Cell]:
        contender, tally, plan = result.contender, result.tally, result.contender.plan
        is_shared = plan is not None or contender.asks_database
        is_reference = contender.algorithm == EXACT_LOG
        return (
            contender.algorithm,
            str(contender.frame_count or ""),
            str(plan.instance_count) if plan else "",
            f"{plan.sharing.value}, {plan.interval_s:g} s" if plan else "each request" if is_shared else "",
            f"{tally.percent(tally.requests - tally.admitted):.3f} %",
            Cell("0", "dim") if is_reference else f"{tally.percent(tally.wrongly_allowed):.3f} %",
            Cell("0", "dim") if is_reference else f"{tally.percent(tally.wrongly_denied):.3f} %",
            f"{tally.peak / self.rate.limit:.2f}",
            f"{1000 * tally.operations / tally.requests:,.0f}" if is_shared else "",
            f"{tally.conflicts:,}" if plan else "",
            f"{tally.percent(tally.waits):.1f} %" if is_shared else "",
        )
