"""
The command report.
"""

from pathlib import Path

import click

from oauth_ratelimit.cli import parameters
from oauth_ratelimit.cli.context import Session, format_of, json_option, pass_session
from oauth_ratelimit.cli.output import Cell, Column, Row, json_text, print_table, visible
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.operations.words import moment
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
    callback=parameters.span_s,
    help="hour, day, week, month, or such as 36h.",
)
@click.option("--client", "client_id", metavar="CLIENT", help="Only this one.")
@click.option(
    "--token-lifetime",
    "lifetime_s",
    metavar="TIME",
    callback=parameters.lifetime_s,
    help="How long a token can be used, such as 1h.  [default: statistics.token_lifetime]",
)
@click.option("-o", "--output", "path", type=click.Path(path_type=Path, dir_okay=False), help="Where to write it.")
@json_option
@pass_session
def report(
    session: Session,
    form: str | None,
    span_s: float,
    client_id: str | None,
    lifetime_s: float | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """
    Report who asks for more tokens than needed, and what to tell them.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. From the statistics in MongoDB. Numbers of users
    are estimates.
    """
    form = format_of(form, as_json=as_json, default="table")
    span = Span(session.now_s - span_s, session.now_s, lifetime_s or session.settings.statistics.token_lifetime_s)
    stored = client_id and storable_name(client_id)
    minutes = StatisticsStore(session.connection).minutes(span.since_s, span.until_s, stored)
    findings = find(minutes, token_lifetime_s=span.token_lifetime_s)
    if form == "table" and path is None:
        _print(findings, span)
        return
    text = _text(findings, span, "html" if form == "table" else form, error_uri=session.settings.denial.error_uri)
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
