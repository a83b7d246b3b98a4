"""Command that replays recorded traffic. It needs no database."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option, kind_option, name_argument, rate
from oauth_ratelimit.cli.output import Column, Number, print_facts, print_json, print_table
from oauth_ratelimit.cli.recording import opened, recording_of, recording_options
from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import NO_REQUESTS, ClientMinute, Tally
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.traffic.minutes import Replayed

ROWS, RECORDS = 10, 100
LIMIT_COLUMNS = [
    Column("limit", lambda each: f"{each['policy']}: {each['limit']} in {duration(each['window_s'])}"),
    Number("over it", "over"),
]
CLIENT_COLUMNS = [
    Column("client", "client_id"),
    Number("requests", "requests"),
    Number("over a limit", "over"),
    Number("share", lambda each: f"{each['over'] / each['requests']:.1%}"),
    Number("users", "user_count"),
]
USER_COLUMNS = [Column("client", "client_id"), Column("user", "username"), Number("over a limit", "over")]


@click.command("replay")
@name_argument("file", is_required=True)
@click.option(
    "--limit",
    metavar="RATE",
    type=rate,
    help="One limit instead of those of the configuration, such as 100/minute or 5 per 10 second.",
)
@kind_option("With --limit: what it counts.  [default: requests of each user, and those of a client without a user]")
@recording_options
@json_option
@pass_context
@click.pass_context
def replay_command(ctx: click.Context, context: CliContext, /, **options: Any) -> None:
    """Show what limits would have denied.

    FILE holds recorded requests: CSV or JSON lines with time, client and user, or an access log, gzipped or not; - is
    the standard input. The limiter itself decides them, under the configuration of the application or of --config
    and without overrides: how many are denied, whose, by which limit, in which minute. Requests count as over a limit
    whether it is enforced or a dry run.

    \b
    Examples:
      replay access.log.gz --path /oauth/token
      replay tokens.csv --column client=app --limit 100/minute
    """
    settings, origin = _settings(context, options)
    with opened(recording_of(options)) as facts, closing(Replayed(settings)) as replayed:
        denials = _denials_data(replayed.minutes(facts.read()))
    mode, has_requests = settings.policies.mode, facts.source.row_count > 0
    data = {**facts.data(), "limits_from": origin, "mode": mode, "unlimited": replayed.unlimited_count, **denials}
    if options["as_json"]:
        print_json(data)
    else:
        facts.print_problems()
        trusted = [("trusted", f"{count:,} of them")] if (count := data["trusted"]) else []
        users = f" and {counted(data['user_count'], 'user')}" if data["user_count"] else ""
        clients = f"{counted(data['client_count'], 'client')}{users}"
        denied = f"{data['denied']:,} of {counted(data['over'], 'request')} over a limit, of {clients}"
        if data["over"]:
            denied += f"; most in a minute {data['busiest_minute_over']:,}, at {data['busiest_minute']}"
        print_facts([*facts.table(), *trusted, ("limits", f"{origin}, mode {mode}"), ("denied", denied)])
        for title, columns, records in (
            ("By limit", LIMIT_COLUMNS, data["by_limit"]),
            ("Clients", CLIENT_COLUMNS, data["clients"][:ROWS]),
            ("Users", USER_COLUMNS, data["users"][:ROWS]),
        ):
            if records and has_requests:
                click.echo()
                print_table(columns, records, title=title)
    ctx.exit(0 if has_requests else 1)


def _settings(context: CliContext, options: Mapping[str, Any]) -> tuple[Any, str]:
    if options["limit"] is None:
        return context.settings, context.config_path or "the configuration of the application"
    amount, window_s = options["limit"]
    limit = [{"limit": amount, "window": window_s}]
    kinds = [options["kind"]] if options["kind"] else [LimitKind.USER.value, LimitKind.CLIENT.value]
    settings = load_config({"mode": "enforce", "limits": dict.fromkeys(kinds, limit)})
    return settings, f"{amount} in {duration(window_s)}, {' and '.join(kinds)}"


def _denials_data(minutes: Iterable[ClientMinute]) -> Record:
    tallies: dict[str, Tally] = {}
    by_limit, by_user, by_minute = Counter[tuple[str, int, int]](), Counter[tuple[str, str]](), Counter[int]()
    for minute in minutes:
        tally = minute.tally()
        tallies[minute.client_id] = tallies.get(minute.client_id, NO_REQUESTS) + tally
        by_minute[minute.minute_s] += tally.over
        for (policy, _, _), denials in minute.denials.items():
            by_limit[policy, denials.limit, denials.window_s] += denials.total
        by_user.update({(minute.client_id, user.username): user.over for user in minute.users if user.over})
    total, users = sum(tallies.values(), NO_REQUESTS), Counter(client_id for client_id, _ in by_user)
    clients = sorted((name for name in tallies if tallies[name].over), key=lambda name: -tallies[name].over)
    busiest_s = min(by_minute, key=lambda minute_s: (-by_minute[minute_s], minute_s), default=0)
    return {
        "trusted": total.trusted,
        "denied": total.denied,
        "over": total.over,
        "client_count": len(clients),
        "user_count": len(by_user),
        "busiest_minute": utc_time(busiest_s) if total.over else None,
        "busiest_minute_over": by_minute[busiest_s],
        "by_limit": [
            {"policy": name, "limit": limit, "window_s": window_s, "over": count}
            for (name, limit, window_s), count in by_limit.most_common()
        ],
        "clients": [
            {
                "client_id": name,
                "requests": tallies[name].offered,
                "over": tallies[name].over,
                "user_count": users[name],
            }
            for name in clients[:RECORDS]
        ],
        "users": [
            {"client_id": client_id, "username": user, "over": count}
            for (client_id, user), count in by_user.most_common(RECORDS)
        ],
    }
