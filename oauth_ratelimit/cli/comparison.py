"""
What a replay came to, for people and for programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest

import click

from oauth_ratelimit.cli.output import Cell, Column, Row, print_facts, print_table, visible
from oauth_ratelimit.operations.words import counted, duration, moment
from oauth_ratelimit.replay.rows import Ordered
from oauth_ratelimit.replay.run import EXACT_LOG, Entry, Rate, Who
from oauth_ratelimit.replay.source import Source
from oauth_ratelimit.replay.times import SECOND_US

SHOWN, NAMED = 5, 20  # clients most denied: for people, and for programs
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
class Denied:
    """
    A client with denied requests.

    Args:
        client_id: The client.

        denied: Its denied requests.

        user_count: Users of whom requests were denied.
    """

    client_id: str
    denied: int = 0
    user_count: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    A recording and what each contender made of it.

    Args:
        path: The file.

        source: What it turned out to be.

        rows: Its rows, all taken.

        rate: The limit.

        entries: The contenders, the exact log first.

        denied: How many requests of each key the exact log has denied.
    """

    path: str
    source: Source
    rows: Ordered
    rate: Rate
    entries: Sequence[Entry]
    denied: Mapping[Who, int]

    def data(self) -> Mapping[str, object]:
        """
        Return everything, for programs.
        """
        source, rows = self.source, self.rows
        return {
            "file": self.path,
            "format": source.form and source.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else moment(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else moment(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "left_out_lines": source.left_out_count,
            "bad_lines": source.bad_count,
            "problems": [asdict(problem) for problem in source.problems],
            "late_rows": rows.late_count,
            "is_cut_short": source.is_cut_short,
            "limit": self.rate.limit,
            "window_s": self.rate.window_s,
            "contenders": [self._entry_data(entry) for entry in self.entries],
            "most_denied": [asdict(each) for each in self._most_denied(NAMED)],
        }

    def _entry_data(self, entry: Entry) -> Mapping[str, object]:
        contender, tally, plan = entry.contender, entry.tally, entry.contender.plan
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
        """
        Show everything, for people: what is wrong with the file on the standard error.
        """
        source, rows = self.source, self.rows
        self._complain()
        if rows.first_us is None or rows.last_us is None:
            click.secho(f"{visible(self.path)}: no requests", fg="red", err=True)
            return
        seconds = Cell("spread evenly, the file has no parts of one", "dim") if rows.is_spread else "as they are"
        print_facts(
            [
                ("file", f"{self.path}, {source.form and source.form.value}"),
                ("requests", f"{source.row_count:,}"),
                ("from", moment(rows.first_us / SECOND_US)),
                ("for", duration((rows.last_us - rows.first_us) / SECOND_US)),
                ("seconds", seconds),
                ("limit", f"{self.rate.limit} in {duration(self.rate.window_s)}"),
            ]
        )
        click.echo()
        print_table([Column(name, is_number=number) for name, number in COLUMNS], list(map(self._row, self.entries)))
        click.echo(
            "\nShares of all requests; peak: most in a window / limit; operations: documents per 1,000 requests."
            "\nWrong is what an exact log of the algorithm's own admissions says. In a flood the same little room is"
            "\nrefused to many, and each counts as wrongly denied: compare what was denied in all."
        )
        self._print_denied()

    def _print_denied(self) -> None:
        total = sum(self.denied.values())
        if not total:
            return
        click.echo()
        has_users = any(user is not None for _, user in self.denied)
        columns = [Column("client"), *(Column(name, is_number=True) for name in ("denied", "of all denied"))]
        rows: list[Row] = [
            (each.client_id, f"{each.denied:,}", f"{each.denied / total:.0%}", *[f"{each.user_count:,}"] * has_users)
            for each in self._most_denied(SHOWN)
        ]
        users = [Column("denied users", is_number=True)] * has_users
        print_table([*columns, *users], rows, title="Most denied clients, by the exact log")

    def _most_denied(self, count: int) -> list[Denied]:
        clients: dict[str, Denied] = {}
        for (client_id, user), denied in self.denied.items():
            client = clients.setdefault(client_id, Denied(client_id))
            client.denied += denied
            client.user_count += user is not None
        return nsmallest(count, clients.values(), key=lambda client: (-client.denied, client.client_id))

    def _row(self, entry: Entry) -> Sequence[str | Cell]:
        contender, tally, plan = entry.contender, entry.tally, entry.contender.plan
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

    def _complain(self) -> None:
        source = self.source
        for problem in source.problems:
            click.echo(f"line {problem.line_number}: {visible(problem.reason)}", err=True)
        if source.bad_count:
            click.secho(f"{counted(source.bad_count, 'line')} not understood, and not counted", fg="yellow", err=True)
        if self.rows.late_count:
            click.secho(f"{counted(self.rows.late_count, 'row')} too late to be put in order", fg="yellow", err=True)
        if source.is_cut_short:
            click.secho("the file breaks off: it could not be unpacked to its end", fg="yellow", err=True)
