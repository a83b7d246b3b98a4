"""Command that replays recorded traffic. It needs no database."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option, kind_option, rate
from oauth_ratelimit.cli.output import Column, Number, print_facts, print_json, print_table
from oauth_ratelimit.cli.recording import opened, recording_of, recording_options
from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.traffic.configured import Outcomes, replay
from oauth_ratelimit.traffic.rows import STANDARD_INPUT

MAX_INSTANCES = 1000
INSTANCES = 3  # beside a single one, in the answer to "what would be denied"
ROWS, RECORDS = 10, 100
INSTANCE_COLUMNS = [
    Number("instances", "instances"),
    Number("over a limit", "over"),
    Number("share", lambda each: f"{each['over'] / each['requests']:.3%}"),
    Number("clients", "client_count"),
    Number("users", "user_count"),
    Column(
        "busiest minute",
        lambda each: each["busiest_minute"] and f"{each['busiest_minute_over']:,} at {each['busiest_minute']}",
    ),
]
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
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--limit",
    metavar="RATE",
    type=rate,
    help="One limit instead of those of the configuration, such as 100/minute or 5 per 10 second.",
)
@kind_option("With --limit: what it counts.  [default: requests of each user, and those of a client without a user]")
@click.option(
    "--instances",
    type=click.IntRange(1, MAX_INSTANCES),
    help=f"Also replay on this many instances; the file is read twice.  [default: {INSTANCES}]",
)
@recording_options
@json_option
@pass_context
@click.pass_context
def replay_command(ctx: click.Context, context: CliContext, /, **options: Any) -> None:
    """Show what limits would have denied.

    FILE holds recorded requests: CSV or JSON lines with time, client and user, or an access log, gzipped or not; - is
    the standard input. The limiter itself decides them, under the configuration of the application or of --config
    and without overrides: how many are denied, whose, by which limit, in which minute; on one instance and on three
    that share their counts. Requests count as over a limit whether it is enforced or a dry run.

    \b
    Examples:
      replay access.log.gz --path /oauth/token
      replay tokens.csv --column client=app --limit 100/minute
    """
    settings, origin = _settings(context, options)
    recording = recording_of(options)
    with opened(recording) as facts:
        outcomes = [replay(settings, facts.batches(), instance_count=1)]
    instance_count = options["instances"] or INSTANCES
    if instance_count > 1 and recording.path != STANDARD_INPUT:
        over = outcomes[0].over_clients
        with opened(recording) as again:
            outcomes.append(replay(settings, again.batches(), instance_count=instance_count, clients=over))
    mode, has_requests = settings.policies.mode, facts.source.row_count > 0
    data = {**facts.data(), "limits_from": origin, "mode": mode, **_denials_data(outcomes)}
    if options["as_json"]:
        print_json(data)
    else:
        facts.print_problems()
        trusted = [("trusted", f"{count:,} of them")] if (count := outcomes[0].trusted) else []
        over, clients = data["replays"][0]["over"], counted(data["replays"][0]["client_count"], "client")
        denied = f"{data['replays'][0]['denied']:,} of {counted(over, 'request')} over a limit, of {clients}"
        print_facts([*facts.table(), *trusted, ("limits", f"{origin}, mode {mode}"), ("denied", denied)])
        for title, columns, records in (
            ("By instances", INSTANCE_COLUMNS, data["replays"]),
            ("By limit, one instance", LIMIT_COLUMNS, data["by_limit"]),
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


def _denials_data(replays: list[Outcomes]) -> Record:
    first = replays[0]
    users = Counter(client_id for client_id, _ in first.over_users)
    return {
        "trusted": first.trusted,
        "unlimited": first.unlimited,
        "replays": [
            {
                "instances": outcomes.instance_count,
                "requests": outcomes.requests,
                "denied": outcomes.denied,
                "over": outcomes.over_count,
                "client_count": len(outcomes.over_clients),
                "user_count": len(outcomes.over_users),
                "busiest_minute": outcomes.busiest and utc_time(outcomes.busiest[0]),
                "busiest_minute_over": outcomes.busiest[1] if outcomes.busiest else 0,
            }
            for outcomes in replays
        ],
        "by_limit": [
            {"policy": name, "limit": limit, "window_s": window_s, "over": count}
            for (name, limit, window_s), count in first.by_limit.most_common()
        ],
        "clients": [
            {"client_id": name, "requests": first.by_client[name], "over": count, "user_count": users[name]}
            for name, count in first.over_clients.most_common(RECORDS)
        ],
        "users": [
            {"client_id": client_id, "username": user, "over": count}
            for (client_id, user), count in first.over_users.most_common(RECORDS)
        ],
    }
