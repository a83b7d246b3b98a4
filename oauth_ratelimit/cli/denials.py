"""Output of ``replay``: the denials that a configuration would have caused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from oauth_ratelimit.cli.output import Cell, Column, print_facts, print_table, user_cell
from oauth_ratelimit.cli.recording import RecordingFacts
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.replay.configured import Outcomes

ROWS, RECORDS = 10, 100
INSTANCE_COLUMNS = (
    Column("instances", is_number=True),
    Column("over a limit", is_number=True),
    Column("share", is_number=True),
    Column("clients", is_number=True),
    Column("users", is_number=True),
    Column("busiest minute"),
)
CLIENT_COLUMNS = (
    Column("client"),
    Column("requests", is_number=True),
    Column("over a limit", is_number=True),
    Column("share", is_number=True),
    Column("users", is_number=True),
)
USER_COLUMNS = (Column("client"), Column("user"), Column("over a limit", is_number=True))
LIMIT_COLUMNS = (Column("limit"), Column("over it", is_number=True))


@dataclass(frozen=True, slots=True)
class Denials:
    """Denials of one recording under one configuration.

    Args:
        facts: The recording.
        limits: Origin of the limits.
        mode: Mode of the configuration.
        outcomes: Counts with one instance, then with several.
    """

    facts: RecordingFacts
    limits: str
    mode: Mode
    outcomes: Sequence[Outcomes]

    def data(self) -> Mapping[str, object]:
        """Return the denials as a record."""
        first = self.outcomes[0]
        return {
            **self.facts.data(),
            "limits_from": self.limits,
            "mode": self.mode.value,
            "notes": self.facts.notes,
            "trusted": first.trusted,
            "unlimited": first.unlimited,
            "replays": [_replay_data(outcomes) for outcomes in self.outcomes],
            "by_limit": [
                {"policy": name, "limit": limit, "window_s": window_s, "over": count}
                for (name, limit, window_s), count in _by_limit(first)
            ],
            "clients": [
                {"client_id": client_id, "requests": first.by_client[client_id], "over": count, "user_count": users}
                for client_id, count, users in _clients(first, RECORDS)
            ],
            "users": [
                {"client_id": client_id, "username": user, "over": count}
                for (client_id, user), count in first.over_users.most_common(RECORDS)
            ],
        }

    def print(self) -> None:
        """Print the denials; problems of the file go to the standard error."""
        self.facts.print_problems()
        facts = self.facts.table()
        if not facts:
            return
        for note in self.facts.notes:
            click.secho(note, fg="yellow", err=True)
        first = self.outcomes[0]
        print_facts([*facts, ("limits", f"{self.limits}, mode {self.mode.value}"), ("answer", self._answer())])
        click.echo()
        print_table(INSTANCE_COLUMNS, list(map(_instances_row, self.outcomes)))
        if not first.over_count:
            return
        click.echo()
        limits = [
            (f"{name}: {limit} in {duration(window_s)}", f"{n:,}") for (name, limit, window_s), n in _by_limit(first)
        ]
        print_table(LIMIT_COLUMNS, limits, title="By limit, one instance")
        click.echo()
        rows = [
            (
                client_id,
                f"{first.by_client[client_id]:,}",
                f"{n:,}",
                f"{n / first.by_client[client_id]:.1%}",
                f"{users:,}",
            )
            for client_id, n, users in _clients(first, ROWS)
        ]
        print_table(CLIENT_COLUMNS, rows, title="Clients")
        users = first.over_users.most_common(ROWS)
        if users:
            click.echo()
            print_table(
                USER_COLUMNS, [(client, user_cell(user), f"{n:,}") for (client, user), n in users], title="Users"
            )

    def _answer(self) -> str | Cell:
        """Return what would happen with this configuration, and if all of it were enforced."""
        first = self.outcomes[0]
        if self.mode is Mode.OFF:
            return Cell("nothing is denied: the mode is off", "yellow")
        if not first.over_count:
            return Cell("no request is over a limit", "green")
        over = f"{counted(first.over_count, 'request')} over a limit, of {counted(len(first.over_clients), 'client')}"
        if first.denied == first.over_count:
            return Cell(f"denies {over}", "bold red")
        return f"denies {first.denied:,}; would deny {over}, if all of it were enforced"


def _replay_data(outcomes: Outcomes) -> Mapping[str, object]:
    minute_s, count = outcomes.busiest or (None, 0)
    return {
        "instances": outcomes.instance_count,
        "denied": outcomes.denied,
        "over": outcomes.over_count,
        "client_count": len(outcomes.over_clients),
        "user_count": len(outcomes.over_users),
        "busiest_minute": None if minute_s is None else utc_time(minute_s),
        "busiest_minute_over": count,
    }


def _instances_row(outcomes: Outcomes) -> Sequence[str | Cell]:
    busiest = outcomes.busiest
    return (
        str(outcomes.instance_count),
        Cell(f"{outcomes.over_count:,}", "bold red" if outcomes.over_count else ""),
        f"{outcomes.over_count / outcomes.requests:.3%}",
        f"{len(outcomes.over_clients):,}",
        f"{len(outcomes.over_users):,}",
        Cell("–", "dim") if busiest is None else f"{busiest[1]:,} at {utc_time(busiest[0])}",
    )


def _clients(outcomes: Outcomes, count: int) -> list[tuple[str, int, int]]:
    """Return the clients with most requests over a limit: id, requests over it, users over it."""
    user_counts: dict[str, int] = {}
    for client_id, _ in outcomes.over_users:
        user_counts[client_id] = user_counts.get(client_id, 0) + 1
    return [
        (client_id, over, user_counts.get(client_id, 0)) for client_id, over in outcomes.over_clients.most_common(count)
    ]


def _by_limit(outcomes: Outcomes) -> list[tuple[tuple[str, int, int], int]]:
    """Return name, limit and window of each policy that denies, with its denials."""
    counts: dict[tuple[str, int, int], int] = {}
    for policy, count in outcomes.by_policy.most_common():
        if policy is not None:
            limit = (policy.name, policy.limit, policy.window.window_s)
            counts[limit] = counts.get(limit, 0) + count
    return sorted(counts.items(), key=lambda item: -item[1])
