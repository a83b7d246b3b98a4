"""The command report."""

from pathlib import Path

import click

from oauth_ratelimit.cli.context import CliContext, format_of, json_option, pass_context
from oauth_ratelimit.cli.options import lifetime_s, rate_by_minutes, span_s
from oauth_ratelimit.cli.output import Cell, Column, Row, json_text, print_json, print_table, visible
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Effect, effects, loads, unjudged_count
from oauth_ratelimit.operations.serialize import Record, bearer_data, counted, duration, effects_data, moment
from oauth_ratelimit.report.findings import ClientFinding, Verdict, find
from oauth_ratelimit.report.letter import Span
from oauth_ratelimit.report.page import html_page
from oauth_ratelimit.report.table import csv_text, record_of
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

_STYLES = {Verdict.OVER_LIMIT: "bold red", Verdict.WASTEFUL: "yellow", Verdict.FINE: "green"}


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "html", "csv", "json"]),
    help="html is a page to pass on; csv is safe to open in a spreadsheet.  [default: table]",
)
@click.option(
    "--last",
    "span_s",
    metavar="TIME",
    default="day",
    show_default=True,
    callback=span_s,
    help="hour, day, week, month, or such as 36h.",
)
@click.option("--client", "client_id", metavar="CLIENT", help="Only this one.")
@click.option(
    "--token-lifetime",
    "lifetime_s",
    metavar="TIME",
    callback=lifetime_s,
    help="How long a token can be used, such as 1h.  [default: statistics.token_lifetime]",
)
@click.option("-o", "--output", "path", type=click.Path(path_type=Path, dir_okay=False), help="Where to write it.")
@json_option
@pass_context
def report(
    context: CliContext,
    form: str | None,
    span_s: float,
    client_id: str | None,
    lifetime_s: float | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Report who asks for more tokens than needed.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. From the statistics in MongoDB. Numbers of users
    are estimates.
    """
    form = format_of(form, as_json=as_json, default="table")
    span = Span(context.now_s - span_s, context.now_s, lifetime_s or context.settings.statistics.token_lifetime_s)
    stored = client_id and storable_name(client_id)
    minutes = StatisticsStore(context.connection).minutes(span.since_s, span.until_s, stored)
    findings = find(minutes, token_lifetime_s=span.token_lifetime_s)
    if form == "table" and path is None:
        _print(findings, span)
        return
    text = _text(findings, span, "html" if form == "table" else form, error_uri=context.settings.denial.error_uri)
    if path is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as exc:
        raise click.ClickException(f"{visible(str(path))}: {exc.strerror}") from None


def _text(findings: list[ClientFinding], span: Span, form: str, *, error_uri: str | None) -> str:
    if form == "html":
        return html_page(findings, span, error_uri=error_uri)
    records = [record_of(finding, rank, span=span, error_uri=error_uri) for rank, finding in enumerate(findings, 1)]
    if form == "csv":
        return csv_text(records)
    data = {
        "since": moment(span.since_s),
        "until": moment(span.until_s),
        "token_lifetime_s": span.token_lifetime_s,
        "clients": records,
    }
    return json_text(data) + "\n"


def _print(findings: list[ClientFinding], span: Span) -> None:
    columns = (
        "client",
        "verdict",
        "faults",
        "requests",
        "needless",
        "denied",
        "users",
        "per user and hour",
        "refreshes",
    )
    print_table(
        [Column(name, is_number=index > 2) for index, name in enumerate(columns)],
        list(map(_row, findings)),
        title=str(span),
        empty="No statistics.",
    )


def _row(finding: ClientFinding) -> Row:
    tally = finding.total.tally()
    per_user, refreshes = finding.tokens_per_user_hour, finding.refresh_share
    return (
        finding.client_id,
        Cell(finding.verdict.value, _STYLES[finding.verdict]),
        ", ".join(finding.faults) or Cell("–", "dim"),
        str(tally.offered),
        str(finding.needless),
        str(tally.denied) if not tally.would_deny else f"{tally.denied} + {tally.would_deny} dry",
        str(round(finding.total.user_count)),
        Cell("–", "dim") if per_user is None else f"{per_user:.1f}",
        Cell("–", "dim") if refreshes is None else f"{refreshes:.0%}",
    )


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
    callback=rate_by_minutes,
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
    callback=span_s,
    help="hour, day, week, month, or such as 36h.",
)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to show.")
@json_option
@pass_context
def what_if(
    context: CliContext,
    limit: tuple[int, int],
    by: By,
    client_id: str | None,
    span_s: float,
    count: int,
    as_json: bool,
) -> None:
    """Show whom another limit would have denied.

    From the statistics in MongoDB, denied requests included, trusted clients aside. An approximation: MongoDB has
    requests by the minute.
    """
    amount, window_s = limit
    since_s = context.now_s - span_s
    stored = client_id and storable_name(client_id)
    minutes = StatisticsStore(context.connection).minutes(
        since_s - window_s, context.now_s, stored, parts=("by", "users") if by == "user" else ("by",)
    )
    found = loads(minutes, by)
    told = effects(found, limit=amount, window_minutes=window_s // MINUTE_S, since_s=since_s)
    unjudged = unjudged_count(found, since_s=since_s)
    if as_json:
        data = _data(told, limit=amount, window_s=window_s, by=by, since_s=since_s, until_s=context.now_s, count=count)
        print_json({**data, "unjudged_count": unjudged})
        return
    denied, offered = sum(effect.denied for effect in told), sum(effect.offered for effect in told)
    concerned = [effect for effect in told if effect.denied]
    title = f"{amount} in {duration(window_s)}, by {by}: {len(concerned)} of {len(told)} over it, about {denied} of "
    print_table(
        _COLUMNS,
        list(map(_effect_row, told[:count])),
        title=f"{title}{counted(offered, 'request')}",
        empty="No statistics.",
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


def _effect_row(effect: Effect) -> Row:
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
