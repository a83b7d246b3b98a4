"""Commands that read the recorded statistics: what-if, report."""

from collections.abc import Sequence
from pathlib import Path

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    count_option,
    json_option,
    last_option,
    lifetime_s,
    output_format,
    rate_in_minutes,
)
from oauth_ratelimit.cli.output import (
    NO_VALUE,
    STATISTICS_LAG,
    Cell,
    Row,
    columns,
    json_text,
    print_json,
    print_table,
    print_unknown_client_hint,
    user_cell,
    visible,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import By, Effect, effects, excluded_count, loads
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import bearer_data, effects_data
from oauth_ratelimit.report.findings import ClientFinding, Verdict, find
from oauth_ratelimit.report.letter import Period, lifetime_text
from oauth_ratelimit.report.page import html_page
from oauth_ratelimit.report.table import csv_text, record_of

VERDICT_STYLES = {Verdict.OVER_LIMIT: "bold red", Verdict.WASTEFUL: "yellow", Verdict.FINE: "green"}
NO_STATISTICS = "No statistics."

APPROXIMATE = (
    "An approximation: statistics are kept by the minute, so the true number lies between the bounds, or close to "
    "them. Denied clients may also have sent more requests than they otherwise would."
)
HEAVIEST_ONLY = "Users count only in minutes in which they were among the heaviest of their client."
LETTERS = "Letters to the owners: --format html -o report.html, or --json for programs. Of one client: --client CLIENT."
EXCLUDED = "Not included: {requests} of clients that the statistics count together."

WHAT_IF_COLUMNS = columns(
    "client",
    "user",
    numbers=("requests", "denied, about", "share", "at least", "at most", "busiest minute"),
)
REPORT_COLUMNS = columns(
    "client",
    "verdict",
    "faults",
    "token valid for",
    numbers=("requests", "needless", "denied", "users", "per user and hour", "refreshes"),
)


@click.command("what-if")
@click.option(
    "--limit",
    required=True,
    metavar="LIMIT",
    callback=rate_in_minutes,
    help="Such as 100/minute or 2000 per 10 minutes, with a window of whole minutes.",
)
@click.option(
    "--by",
    type=click.Choice(["client", "user", "total"]),
    default="client",
    show_default=True,
    help="What it counts, as under limits in the configuration: requests of a client without a user, those of each "
    "user, all of a client.",
)
@click.option("--client", "client_id", metavar="CLIENT", help="Only this client.")
@last_option
@count_option
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

    From the statistics in MongoDB, including denied requests, without trusted clients. An approximation, because
    statistics are kept by the minute.
    """
    context.accept_broken()
    amount, window_s = limit
    since_s = context.now_s - span_s
    stored = client_id and storable_name(client_id)
    parts = ("by", "users") if by == "user" else ("by",)
    recorded = loads(context.stores.statistics.minutes(since_s - window_s, context.now_s, stored, parts=parts), by)
    found = effects(recorded, limit=amount, window_minutes=window_s // MINUTE_S, since_s=since_s)
    excluded = excluded_count(recorded, since_s=since_s)
    if as_json:
        print_json(
            {
                "limit": amount,
                "window_s": window_s,
                "by": by,
                "since": utc_time(since_s),
                "until": utc_time(context.now_s),
                "is_approximate": True,
                **effects_data(found),
                "bearers": [{**bearer_data(effect), "peak_per_minute": effect.peak} for effect in found[:count]],
                "unjudged_count": excluded,
            }
        )
        return
    print_table(
        WHAT_IF_COLUMNS,
        list(map(_effect_row, found[:count])),
        title=f"{amount} in {duration(window_s)}, by {by}: {_effects_text(found)}",
        empty=NO_STATISTICS,
    )
    if found:
        click.echo(f"{APPROXIMATE} {HEAVIEST_ONLY}" if by == "user" else APPROXIMATE)
    if excluded:
        click.echo(EXCLUDED.format(requests=counted(excluded, "request")))
    _print_notes(context, client_id, is_empty=not found)


def _print_notes(context: CliContext, client_id: str | None, *, is_empty: bool) -> None:
    """Print what may be missing, and a hint if there is nothing because nobody knows the client."""
    click.echo(STATISTICS_LAG, err=True)
    if client_id is not None and is_empty:
        print_unknown_client_hint(context, client_id)


def _effects_text(found: Sequence[Effect]) -> str:
    total = effects_data(found)
    requests = counted(sum(effect.offered for effect in found), "request")
    return f"{total['concerned_count']} of {len(found)} over the limit, about {total['denied']} of {requests} denied"


def _effect_row(effect: Effect) -> Row:
    return (
        effect.subject.client_id,
        user_cell(effect.subject.username),
        str(effect.offered),
        Cell(str(effect.denied), "bold red" if effect.denied else ""),
        f"{effect.denied / effect.offered:.1%}",
        str(effect.at_least),
        str(effect.at_most),
        str(effect.peak),
    )


@click.command()
@click.option(
    "--format",
    "chosen_format",
    type=click.Choice(["table", "html", "csv", "json"]),
    help="html is a page to pass on; csv is safe to open in a spreadsheet.  [default: table]",
)
@last_option
@click.option("--client", "client_id", metavar="CLIENT", help="Only this client.")
@click.option(
    "--token-lifetime",
    "lifetime_s",
    metavar="TIME",
    callback=lifetime_s,
    help="Lifetime of a token, such as 1h.  [default: that of the tokens issued, else statistics.token_lifetime]",
)
@click.option("-o", "--output", "path", type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
@json_option
@pass_context
def report(
    context: CliContext,
    chosen_format: str | None,
    span_s: float,
    client_id: str | None,
    lifetime_s: float | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Report who requests more tokens than needed.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. From the statistics in MongoDB. Numbers of users
    are estimates.

    \b
    flask oauth-ratelimit report --last week --format html -o report.html
    """
    context.accept_broken()
    form = output_format(chosen_format, as_json=as_json, default="table")
    period = Period(context.now_s - span_s, context.now_s)
    minutes = context.stores.statistics.minutes(period.since_s, period.until_s, client_id and storable_name(client_id))
    assumed_s = context.settings.statistics.token_lifetime_s
    findings = find(minutes, token_lifetime_s=lifetime_s, assumed_lifetime_s=assumed_s)
    if form == "table" and path is None:
        print_table(REPORT_COLUMNS, list(map(_finding_row, findings)), title=str(period), empty=NO_STATISTICS)
        if any(finding.faults for finding in findings):
            click.echo(LETTERS)
        _print_notes(context, client_id, is_empty=not findings)
        return
    text = _report_text(
        findings, period, "html" if form == "table" else form, error_uri=context.settings.denial.error_uri
    )
    if path is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as exc:
        raise click.ClickException(f"{visible(str(path))}: {exc.strerror}") from None


def _report_text(findings: list[ClientFinding], period: Period, form: str, *, error_uri: str | None) -> str:
    if form == "html":
        return html_page(findings, period, error_uri=error_uri)
    records = [record_of(finding, rank, period=period, error_uri=error_uri) for rank, finding in enumerate(findings, 1)]
    if form == "csv":
        return csv_text(records)
    data = {
        "since": utc_time(period.since_s),
        "until": utc_time(period.until_s),
        "clients": records,
    }
    return json_text(data) + "\n"


def _finding_row(finding: ClientFinding) -> Row:
    tally = finding.total.tally()
    per_user, refreshes = finding.tokens_per_user_hour, finding.refresh_share
    return (
        finding.client_id,
        Cell(finding.verdict.value, VERDICT_STYLES[finding.verdict]),
        ", ".join(finding.faults) or NO_VALUE,
        lifetime_text(finding) or NO_VALUE,
        str(tally.offered),
        str(finding.needless),
        str(tally.denied) if not tally.would_deny else f"{tally.denied} + {tally.would_deny} dry",
        str(round(finding.total.user_count)),
        NO_VALUE if per_user is None else f"{per_user:.1f}",
        NO_VALUE if refreshes is None else f"{refreshes:.0%}",
    )
