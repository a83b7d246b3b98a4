"""Command that lists recorded denials."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import count_option, format_option, invalid, name_argument
from oauth_ratelimit.cli.output import Column, Number, print_records, print_unknown_client_hint
from oauth_ratelimit.core.denial_record import Where
from oauth_ratelimit.core.failed_auth import folded
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.serialize import denial_data
from oauth_ratelimit.store.mongo.denials import of_client, of_user

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
YEARS = range(1970, 9999)  # without those at whose ends dates overflow
NO_DENIALS = (
    "No denial is recorded in that time. A dry run denies nobody (see what-if), events.keep_denials: 0 records none, "
    "and instances send records every ten seconds."
)
MORE = "Only the last {count}. More: -n, or a shorter time."
COLUMNS = [
    Column("UTC", lambda denial: denial["first_at"][5:-1].replace("T", " ")),
    Column("client", "client_id"),
    Column("user", "username"),
    Column("where", lambda denial: denial["scope" if denial["where"] == Where.ENDPOINT else "where"]),
    Column("policy", "policy"),
    Column("grant", "grant_type"),
    Number("requests", "request_count"),
    Column("instance", "instance"),
]


def period(since: str | None, until: str | None, *, now_s: float) -> tuple[float, float]:
    """Return the seconds since the epoch of ``--from`` and ``--to``.

    A time of the day is the last one before now, or the first one after the beginning of the period.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    begin = _moment(since, now) if since else None
    end = _moment(until, begin + DAY if begin else now) if until else now
    begin = begin or end - HOUR
    if begin >= end:
        raise click.UsageError("--from is not before --to")
    return begin.timestamp(), end.timestamp()


def _moment(value: str, latest: datetime) -> datetime:
    """Return a date with its time, or the last time of the day until ``latest``; in UTC if it names no zone."""
    for text in (f"{latest:%Y-%m-%d}T{value}", value):
        with suppress(ValueError):
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            if found.year in YEARS:
                return found if text is value else latest - (latest - found) % DAY
    raise invalid(value, "is no time such as 14:05 or 2026-12-01T14:05:00Z")


@click.command("denials")
@name_argument("client")
@name_argument("user")
@click.option("--from", "since", metavar="TIME", help="Begin, in UTC: 14:00.  [default: an hour before]")
@click.option("--to", "until", metavar="TIME", help="End: 14:10 or 2026-12-01T14:10Z.  [default: now]")
@click.option("--where", type=click.Choice([each.value for each in Where]), help="Only those of this part.")
@count_option
@format_option()
@pass_context
def denials_command(
    context: CliContext,
    client: str | None,
    user: str | None,
    since: str | None,
    until: str | None,
    where: str | None,
    count: int,
    form: str,
) -> None:
    """List who was denied, and when.

    All denials, those of a CLIENT, or those of one USER of it, the last one first. A record is of all denials of
    one client and user within a minute: "requests" is their number. The guard records guesses by what the request
    claimed: the client, and the address with the name. JSON and CSV have more of each record, such as the id for
    explain --id. Dry runs deny nothing, so they are not listed.

    \b
    Examples:
      denials partner-app --from 14:00 --to 14:10
      denials --where guard --from 2026-12-01T00:00Z --format csv
    """
    if user is None:  # else the configuration says how names are stored
        context.allows_invalid_config = True
    since_s, until_s = period(since, until, now_s=context.now_s)
    conditions = [] if client is None else [of_client(client)]
    if user is not None:
        conditions.append(of_user(context.pseudonyms.all_of(user), context.pseudonyms.all_of(folded(user))))
    found = context.stores.denials.between(
        since_s, until_s, *conditions, where=Where(where) if where else None, at_most=count + 1
    )
    if form == "table":
        click.secho(f"Denials from {utc_time(since_s)} to {utc_time(until_s)}", bold=True)
    print_records(form, list(map(denial_data, found[:count])), COLUMNS, empty=NO_DENIALS)
    if len(found) > count:
        click.secho(MORE.format(count=count), fg="yellow", err=True)
    if not found:
        print_unknown_client_hint(context, client)
