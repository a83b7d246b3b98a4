"""
The command what-if.
"""

import click

from oauth_ratelimit.cli import parameters
from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.output import Cell, Column, Row, print_json, print_table
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Effect, effects, loads, unjudged_count
from oauth_ratelimit.operations.serialize import Record, bearer_data, effects_data
from oauth_ratelimit.operations.words import counted, duration, moment
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

APPROXIMATE = (
    "An approximation: a minute is all that is known of when requests came; the true number lies between the bounds, "
    "or close to them. Denied clients may also have asked more often than they would have."
)
HEAVIEST_ONLY = "Of users, only minutes are known in which they were among the heaviest of their client."
UNJUDGED = "Not judged: {requests} more, of clients that the statistics do not tell apart."


@click.command("what-if")
@click.option(
    "--limit",
    required=True,
    metavar="LIMIT",
    callback=parameters.rate_by_minutes,
    help="Such as 100/minute or 2000 per 10 minutes, of whole minutes.",
)
@click.option(
    "--by",
    type=click.Choice(["client", "user", "total"]),
    default="client",
    show_default=True,
    help="What it counts, as under limits in the configuration: requests of a client without a user, those of each "
    "user, all of a client.",
)
@click.option("--client", "client_id", metavar="CLIENT", help="Only this one.")
@click.option(
    "--last",
    "span_s",
    metavar="TIME",
    default="day",
    show_default=True,
    callback=parameters.span_s,
    help="hour, day, week, month, or such as 36h.",
)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to show.")
@json_option
@pass_session
def what_if(
    session: Session,
    limit: tuple[int, int],
    by: By,
    client_id: str | None,
    span_s: float,
    count: int,
    as_json: bool,
) -> None:
    """
    Show whom another limit would have denied.

    From the statistics in MongoDB, denied requests included, trusted clients aside. An approximation: MongoDB has
    requests by the minute.
    """
    amount, window_s = limit
    since_s = session.now_s - span_s
    stored = client_id and storable_name(client_id)
    minutes = StatisticsStore(session.connection).minutes(
        since_s - window_s, session.now_s, stored, parts=("by", "users") if by == "user" else ("by",)
    )
    found = loads(minutes, by)
    told = effects(found, limit=amount, window_minutes=window_s // MINUTE_S, since_s=since_s)
    unjudged = unjudged_count(found, since_s=since_s)
    if as_json:
        data = _data(told, limit=amount, window_s=window_s, by=by, since_s=since_s, until_s=session.now_s, count=count)
        print_json({**data, "unjudged_count": unjudged})
        return
    denied, offered = sum(effect.denied for effect in told), sum(effect.offered for effect in told)
    concerned = [effect for effect in told if effect.denied]
    title = f"{amount} in {duration(window_s)}, by {by}: {len(concerned)} of {len(told)} over it, about {denied} of "
    print_table(
        _COLUMNS, list(map(_row, told[:count])), title=f"{title}{counted(offered, 'request')}", empty="No statistics."
    )
    if told:
        click.echo(f"{APPROXIMATE} {HEAVIEST_ONLY}" if by == "user" else APPROXIMATE)
    if unjudged:
        click.echo(UNJUDGED.format(requests=counted(unjudged, "request")))


_COLUMNS = (
    Column("client"),
    Column("user"),
    Column("requests", is_number=True),
    Column("denied, about", is_number=True),
    Column("share", is_number=True),
    Column("at least", is_number=True),
    Column("at most", is_number=True),
    Column("busiest minute", is_number=True),
)


def _row(effect: Effect) -> Row:
    client_id, username = effect.bearer
    share = effect.denied / effect.offered
    return (
        client_id,
        Cell("–", "dim") if username is None else username,
        str(effect.offered),
        Cell(str(effect.denied), "bold red" if effect.denied else ""),
        f"{share:.1%}",
        str(effect.at_least),
        str(effect.at_most),
        str(effect.peak),
    )


def _data(
    told: list[Effect], *, limit: int, window_s: int, by: By, since_s: float, until_s: float, count: int
) -> Record:
    return {
        "limit": limit,
        "window_s": window_s,
        "by": by,
        "since": moment(since_s),
        "until": moment(until_s),
        "is_approximate": True,
        **effects_data(told),
        "bearers": [{**bearer_data(effect), "peak_per_minute": effect.peak} for effect in told[:count]],
    }
