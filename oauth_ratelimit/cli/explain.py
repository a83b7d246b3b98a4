"""
The command that answers "why is this client limited like that".
"""

import heapq
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import click

from oauth_ratelimit.cli.look import standing_data, standing_row
from oauth_ratelimit.cli.output import Cell, Column, duration, mode_cell, moment, print_facts, print_json, print_table
from oauth_ratelimit.cli.session import Session, json_option, pass_session
from oauth_ratelimit.config.models import GRANT_TYPES
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.layers import Layer
from oauth_ratelimit.core.overrides import LimitKind
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies
from oauth_ratelimit.standing import Standing, Standings
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.sync.place import CLIENT_TOTAL

OTHERS_SHOWN = 5


class Case:
    """
    One client and user at one place, and all that decides about them.

    Args:
        session: The run of the command line.

        client_id: The client.

        username: The user, None for grants without a user.

        grant_type: The grant type, None if it does not matter.

        endpoint: Where the request comes in.
    """

    def __init__(
        self, session: Session, client_id: str, *, username: str | None, grant_type: str | None, endpoint: str
    ) -> None:
        self.session = session
        self.client_id = client_id
        self.username = username
        self.at: dict[str, Any] = {"endpoint": endpoint, "grant_type": grant_type}
        self.found: ClientPolicies = session.policies.matching(client_id, **self.at)
        stored = storable_name(client_id)
        total = CLIENT_TOTAL if self.found.scope is None else f"{self.found.scope}/{CLIENT_TOTAL}"
        self.keys = {
            LimitKind.CLIENT if username is None else LimitKind.USER: Key(
                stored, username and storable_name(username), self.found.scope
            ),
            LimitKind.CLIENT_TOTAL: Key(stored, None, total),
        }
        self._documents = dict(session.documents.of_client(stored))

    def standings(self) -> Iterator[tuple[Standing, Layer]]:
        """
        Yield where the request stands in each limit that applies, and where that limit comes from.
        """
        standings = Standings(self.session.policies)
        for kind, key in self.keys.items():
            layer = self.session.layers.of_limits(self.client_id, kind, **self.at)
            for standing in standings.of(key, self._documents.get(key), self.session.now_s):
                yield standing, layer

    def instance_count(self) -> int:
        """
        Return how many instances have lately sent hits for this client and user.
        """
        snapshots = [self._documents.get(key) for key in self.keys.values()]
        writers = {name for snapshot in snapshots if snapshot for name in _recent(snapshot, self.session.now_s)}
        return len(writers)

    def others(self) -> list[Standing]:
        """
        Return who uses up the total of the client beside this user, most of it first.
        """
        if not self.found.limits.client_total:
            return []
        ours = set(self.keys.values())
        standings = Standings(self.session.policies)
        widest: list[Standing] = []
        for key, snapshot in self._documents.items():
            if key not in ours and key.scope == self.found.scope:
                widest += standings.of(key, snapshot, self.session.now_s)[:1]  # the widest window comes first
        busy = [standing for standing in widest if standing.estimate > 0]
        return heapq.nlargest(OTHERS_SHOWN, busy, key=attrgetter("estimate"))

    @property
    def mode_layer(self) -> Layer:
        """
        Where the mode comes from.
        """
        return self.session.layers.of_mode(self.client_id, **self.at)

    @property
    def trust_layer(self) -> Layer | None:
        """
        What makes the client trusted, None if nothing does.
        """
        return self.session.layers.of_trust(self.client_id)

    @property
    def canary(self) -> str:
        """
        What the canary has to do with it.
        """
        canary = self.session.policies.canary
        if canary is None:
            return "none"
        if self.found.is_canary:
            return "inside: enforced where the mode says so"
        if canary.instances:
            return f"only on instances {', '.join(canary.instances)}; elsewhere a dry run"
        is_inside = canary.has_client(self.client_id, instance="")
        return "does not matter: the client has a mode of its own" if is_inside else "outside: a dry run"


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@click.option("--grant", metavar="G", help="The grant type, such as refresh_token.")
@click.option("--endpoint", default=TOKEN_ENDPOINT, show_default=True, help="The configured endpoint.")
@json_option
@pass_session
def explain(session: Session, client: str, user: str | None, grant: str | None, endpoint: str, as_json: bool) -> None:
    """
    Explain how a request would be decided.

    Now, of a CLIENT, for a USER of it or without one. Names each limit that applies, the layer of the configuration
    or the override that it comes from, how much of it is used, and when the next request is admitted.
    """
    grant_type = GRANT_TYPES.get(grant, grant) if grant else None
    case = Case(session, client, username=user, grant_type=grant_type, endpoint=endpoint)
    if as_json:
        print_json(_data(case))
    else:
        _print(case)


def _print(case: Case) -> None:
    standings = list(case.standings())
    trust, mode = case.trust_layer, case.mode_layer
    print_facts(
        [
            ("client", case.client_id),
            ("user", Cell("none: a grant without a user", "dim") if case.username is None else case.username),
            ("counted at", case.found.scope or "token"),
            ("trusted", f"yes, by {layer_text(trust)}" if trust else "no"),
            ("mode", mode_cell(case.found.mode.value)),
            ("mode from", layer_text(mode)),
            ("canary", case.canary),
            ("verdict", _verdict(case, [standing for standing, _ in standings])),
            ("sent by", f"{case.instance_count()} instances lately"),
        ]
    )
    columns = ("policy", "from", "mode", "hits", "limit", "window", "left", "next in", "reset in")
    click.echo()
    print_table(
        [Column(name, is_number=name not in columns[:3]) for name in columns],
        [
            (
                standing.policy.name,
                layer_text(layer),
                mode_cell(standing.mode.value),
                f"{standing.estimate:.1f}",
                str(standing.policy.limit),
                duration(standing.policy.window.window_s),
                str(standing.remaining),
                duration(standing.retry_after_s) if standing.retry_after_s else Cell("now", "dim"),
                duration(standing.reset_after_s),
            )
            for standing, layer in standings
        ],
        empty="No limit applies.",
    )
    if others := case.others():
        click.echo()
        names = ("user", "policy", "hits", "limit", "window")
        print_table(
            [Column(name, is_number=name not in names[:2]) for name in names],
            [(row[1], row[3], *row[6:9]) for row in map(standing_row, others)],
            title="Who else is using up the client's total",
        )


def _verdict(case: Case, standings: list[Standing]) -> Cell:
    if case.trust_layer:
        return Cell("admitted: trusted", "green")
    waiting = [standing for standing in standings if standing.retry_after_s > 0]
    if not waiting:
        return Cell("admitted", "green")
    last = max(waiting, key=lambda standing: standing.retry_after_s)
    when = f"over {last.policy.name} for {duration(last.retry_after_s)}"
    if any(standing.mode == "enforce" for standing in waiting):
        return Cell(f"denied: {when}", "bold red")
    return Cell(f"admitted, would be denied: {when}", "yellow")


def _data(case: Case) -> Mapping[str, object]:
    standings = list(case.standings())
    trust = case.trust_layer
    return {
        "client_id": case.client_id,
        "username": case.username,
        "scope": case.found.scope,
        "trusted": trust and layer_data(trust),
        "mode": case.found.mode.value,
        "mode_origin": layer_data(case.mode_layer),
        "is_canary": case.found.is_canary,
        "verdict": _verdict(case, [standing for standing, _ in standings]).text,
        "instance_count": case.instance_count(),
        "limits": [{**standing_data(standing), "origin": layer_data(layer)} for standing, layer in standings],
        "others": list(map(standing_data, case.others())),
    }


def layer_text(layer: Layer) -> str:
    """
    Return where a value comes from, for people.
    """
    override = layer.override
    if override is None:
        return layer.name if "." in layer.name or "[" in layer.name else f"{layer.name}, for everybody"
    end = "" if override.until_s is None else f" until {moment(override.until_s)}"
    return f"override by {override.author}{end}: {override.reason}"


def layer_data(layer: Layer) -> Mapping[str, object]:
    """
    Return where a value comes from, for programs.
    """
    override = layer.override
    if override is None:
        return {"layer": layer.name}
    until = None if override.until_s is None else moment(override.until_s)
    return {"layer": layer.name, "by": override.author, "reason": override.reason, "until": until}


def _recent(snapshot: Snapshot, now_s: float) -> list[str]:
    """
    Return the instances whose mark in a document is not older than its oldest frame; a mark is a time.
    """
    starts = [start_s for frames in snapshot.hits.values() for start_s in frames]
    oldest_ms = min(starts, default=now_s) * 1000
    return [name for name, flush_id in snapshot.writers.items() if flush_id >= oldest_ms]
