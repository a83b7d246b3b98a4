"""Commands that read the recorded statistics: report, suggest."""

from collections.abc import Callable
from typing import Any

import click
import yaml

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    format_option,
    json_option,
    last_option,
    lifetime_option,
    name_argument,
    span_s,
    whole_minutes,
)
from oauth_ratelimit.cli.output import (
    STATISTICS_LAG,
    Column,
    Number,
    print_facts,
    print_json,
    print_records,
    print_table,
    print_unknown_client_hint,
)
from oauth_ratelimit.cli.recording import RecordingFacts, opened, recording_of, recording_options
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.traffic.replayed import minutes_of_rows
from oauth_ratelimit.traffic.report import find, period_text, record_of
from oauth_ratelimit.traffic.suggest import Traffic, proposal_data, suggest

NO_STATISTICS = "No statistics."
HEAVIEST_ONLY = "Users count only in minutes in which they were among the heaviest of their client."
LETTERS = "Letters to the owners: --format text. To one owner: report CLIENT."
NO_LETTERS = "No client requests more tokens than it needs."
EXCLUDED = "Not included: {requests} of clients that the statistics count together."

TRUSTED = "{requests} left out: trusted clients have no limit"
NO_TRUST = "No configuration, so trusted clients are proposed limits, too."
TRY_IT = "# Try it: replay, what-if, or a dry run."
NO_REQUESTS = "No requests, so there is nothing to propose limits from."
DO_NOT_ENFORCE = "# From {basis}: too little to enforce. Fit again after a week."
SUGGEST_COLUMNS = [
    Column("kind", "kind"),
    Column("client", "client_id"),
    Column("proposed", lambda one: f"{one['limit']} in {duration(one['window_s'])}"),
    Number("denied", "denied"),
    Number("of well-behaved", "well_behaved_denied"),
    Number("reuse spares", "spared"),
    Number("needless stopped", lambda one: one["stopped_ratio"] and f"{one['stopped_ratio']:.0%}"),
]
REPORT_COLUMNS = [
    Column("client", "client_id"),
    Column("verdict", "verdict"),
    Column("faults", lambda finding: ", ".join(finding["faults"]) or None),
    Number("requests", "requests"),
    Number("needless", "needless"),
    Number("denied", "denied"),
    Number("dry run", "would_deny"),
    Number("reuse spares", lambda finding: finding["reused"] + finding["would_reuse"]),
    Number("users", "user_count"),
]


def print_notes(context: CliContext, client_id: str | None, found: list[Record]) -> None:
    click.echo(STATISTICS_LAG, err=True)
    if not found:
        print_unknown_client_hint(context, client_id)


@click.command()
@format_option("text")
@name_argument("client")
@last_option()
@lifetime_option
@click.option("--page", metavar="URL", help="Address of your admin page: records have a link to each client.")
@pass_context
def report(
    context: CliContext, client: str | None, form: str, span_s: float, lifetime_s: float | None, page: str | None
) -> None:
    """Report who requests more tokens than needed.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. "Reuse spares" is the number of requests over a
    limit that got the token that the client had, or would have with on_limit: reuse. From the statistics in MongoDB.
    Numbers of users are estimates. The text is the letters; CSV is safe to open in a spreadsheet.

    \b
    Examples:
      report --last week
      report partner-app --format text > letter.txt
    """
    context.allows_invalid_config = True
    since_s, until_s = context.now_s - span_s, context.now_s
    minutes, period = context.minutes(since_s, client), period_text(since_s, until_s)
    assumed_s, uri = context.settings.statistics.token_lifetime_s, context.settings.denial.error_uri
    records = [
        record_of(each, rank, period=period, error_uri=uri, page=page)
        for rank, each in enumerate(find(minutes, token_lifetime_s=lifetime_s, assumed_lifetime_s=assumed_s), 1)
    ]
    letters = [f"{record['subject']}\n\n{record['letter']}" for record in records if record["faults"]]
    if form == "text":
        click.echo("\n\n\n".join(letters) or NO_LETTERS)
        return
    if form == "table":
        click.secho(period, bold=True)
    whole = {"since": utc_time(since_s), "until": utc_time(until_s), "clients": records}
    print_records(form, records, REPORT_COLUMNS, whole=whole, empty=NO_STATISTICS)
    if form == "table":
        if letters:
            click.echo(LETTERS)
        print_notes(context, client, records)


@click.command("suggest")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@last_option("14d")
@click.option(
    "--window",
    "window_s",
    metavar="TIME",
    default="1h",
    show_default=True,
    type=span_s,
    callback=whole_minutes,
    help="Window of the proposed limits, in whole minutes. Not longer than a token is valid.",
)
@lifetime_option
@recording_options
@json_option
@pass_context
def suggest_command(context: CliContext, /, **options: Any) -> None:
    """Propose limits from recorded traffic.

    They leave well-behaved clients alone and stop those that waste tokens. From the statistics in MongoDB, or from
    FILE with recorded requests, which replay reads, too. For each kind of limit, and for each client that needs its
    own: the limit, the requests that it would have denied, those of well-behaved clients among them, and the share of
    the needless requests that it would have stopped. Needless is a request that came while an earlier token of the
    same client or user was valid. Prints YAML to paste, and changes nothing.

    \b
    Examples:
      suggest --last 14d
      suggest tokens.csv --column client=app --token-lifetime 12h
    """
    context.allows_invalid_config = True
    facts: RecordingFacts | None = None
    if options["file"] is None:
        traffic = Traffic(
            options["window_s"],
            is_trusted=context.policies.trusts,
            token_lifetime_s=options["lifetime_s"],
            assumed_lifetime_s=context.settings.statistics.token_lifetime_s,
        )
        since_s = context.now_s - options["span_s"]
        for minute in context.minutes(since_s, parts=("by", "users", "registers", "lifetimes")):
            traffic.add_minute(minute)
    else:
        traffic = Traffic(
            options["window_s"], is_trusted=_trusted_by_file(context), token_lifetime_s=options["lifetime_s"]
        )
        with opened(recording_of(options)) as facts:
            for minute in minutes_of_rows(facts.read()):
                traffic.add_minute(minute)
    proposal = suggest(traffic)
    data = proposal_data(proposal)
    if options["as_json"]:
        print_json({**data, "recording": facts and facts.data()})
        return
    if facts is None:
        click.echo(f"{HEAVIEST_ONLY} {STATISTICS_LAG}", err=True)
    else:
        facts.print_problems()
        print_facts(facts.table())
    if traffic.trusted_count:
        click.echo(TRUSTED.format(requests=counted(traffic.trusted_count, "request")))
    if not proposal.suggestions:
        click.echo(NO_REQUESTS)
        return
    basis = proposal.basis
    print_table(
        SUGGEST_COLUMNS, data["suggestions"], title=f"Proposed limits in {duration(traffic.window_s)}, from {basis}"
    )
    click.echo()
    if traffic.left_out_count:
        click.secho(EXCLUDED.format(requests=counted(traffic.left_out_count, "request")), fg="yellow", err=True)
    click.echo(TRY_IT if proposal.is_enough else DO_NOT_ENFORCE.format(basis=basis))
    click.echo(yaml.safe_dump(data["configuration"], sort_keys=False, default_flow_style=None), nl=False)


def _trusted_by_file(context: CliContext) -> Callable[[str], bool]:
    """Return the trust of the configuration, without overrides. A file can be read without any configuration."""
    try:
        return context.settings.policies.trusts
    except (click.UsageError, ConfigError):
        click.secho(NO_TRUST, fg="yellow", err=True)
        return lambda _: False
