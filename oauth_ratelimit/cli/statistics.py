"""Commands that read the recorded statistics: what-if, report, suggest."""

from collections.abc import Callable
from itertools import chain
from typing import IO, Any

import click
import yaml

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    count_option,
    format_option,
    json_option,
    kind_option,
    last_option,
    lifetime_option,
    name_argument,
    rate_in_minutes,
    window_s,
)
from oauth_ratelimit.cli.output import (
    STATISTICS_LAG,
    Cell,
    Column,
    Number,
    count_cell,
    print_facts,
    print_json,
    print_table,
    print_unknown_client_hint,
    records_text,
    visible,
)
from oauth_ratelimit.cli.recording import RecordingFacts, opened, recording_of, recording_options
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.what_if import Effect, effects, excluded_count, loads
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.format import counted, duration, subject_text, utc_time
from oauth_ratelimit.operations.profiles import HOUR_S, Traffic
from oauth_ratelimit.operations.serialize import effects_data, subject_data
from oauth_ratelimit.operations.suggest import Proposal, Suggestion, configuration, proposal_data, suggest
from oauth_ratelimit.replay.formats import SECOND_US
from oauth_ratelimit.report.findings import ClientFinding, Verdict, find
from oauth_ratelimit.report.letter import Period, record_of

VERDICT_STYLES = {Verdict.OVER_LIMIT: "bold red", Verdict.WASTEFUL: "yellow", Verdict.FINE: "green"}
NO_STATISTICS = "No statistics."

APPROXIMATE = (
    "An approximation: statistics are kept by the minute, so the true number lies between the bounds, or close to "
    "them. Denied clients may also have sent more requests than they otherwise would."
)
HEAVIEST_ONLY = "Users count only in minutes in which they were among the heaviest of their client."
LETTERS = "Letters to the owners: --format text. To one owner: report CLIENT."
NO_LETTERS = "No client requests more tokens than it needs."
EXCLUDED = "Not included: {requests} of clients that the statistics count together."

TRUSTED = "{requests} left out: trusted clients have no limit"
NO_TRUST = "No configuration, so trusted clients are proposed limits, too."
ENOUGH_DAYS = 7
SUGGEST_COLUMNS: list[Column[Suggestion]] = [
    Column("kind", lambda one: one.kind.value),
    Column("client", lambda one: one.client_id),
    Column("proposed", lambda one: f"{one.limit} in {duration(one.window_s)}"),
    Number("denied", lambda one: one.denied),
    Number("of well-behaved", lambda one: count_cell(one.well_behaved_denied, "green")),
    Number("needless stopped", lambda one: None if one.stopped_ratio is None else f"{one.stopped_ratio:.0%}"),
    Number("safe limit", lambda one: one.safe_limit if one.safest else None),
]
FEW_DAYS = "Only {basis}: a week or more shows how much the days differ. Fit again when there is more."
TOO_LITTLE = "Too little traffic, only {basis}: do not enforce these limits. Fit again after a week."
TRY_IT = "# Try it: replay, what-if, or a dry run."
NO_REQUESTS = "No requests, so there is nothing to propose limits from."
DO_NOT_ENFORCE = "# From {basis}: too little to enforce."
WHAT_IF_COLUMNS: list[Column[Effect]] = [
    Column("client", lambda effect: effect.subject.client_id),
    Column("user", lambda effect: effect.subject.username),
    Number("requests", lambda effect: effect.offered),
    Number("denied", lambda effect: count_cell(effect.denied)),
    Number("share", lambda effect: f"{effect.denied / effect.offered:.1%}"),
    Number("at least", lambda effect: effect.at_least),
    Number("at most", lambda effect: effect.at_most),
    Number("busiest minute", lambda effect: effect.peak),
]
REPORT_COLUMNS: list[Column[ClientFinding]] = [
    Column("client", lambda finding: finding.client_id),
    Column("verdict", lambda finding: Cell(finding.verdict, VERDICT_STYLES[finding.verdict])),
    Column("faults", lambda finding: ", ".join(finding.faults) or None),
    Number("requests", lambda finding: finding.offered),
    Number("needless", lambda finding: finding.needless),
    Number("denied", lambda finding: finding.total.tally().denied),
    Number("dry run", lambda finding: finding.total.tally().would_deny),
    Number("users", lambda finding: round(finding.total.user_count)),
]


@click.command("what-if")
@name_argument("client")
@click.option(
    "--limit",
    required=True,
    metavar="LIMIT",
    type=rate_in_minutes,
    help="Such as 100/minute or 2000 per 10 minutes, with a window of whole minutes.",
)
@kind_option(
    "What it counts, as under limits in the configuration: requests of a client without a user, those of each user, "
    "all of a client.",
    default="client",
    show_default=True,
)
@last_option()
@count_option
@format_option()
@pass_context
def what_if(
    context: CliContext,
    client: str | None,
    limit: tuple[int, int],
    kind: str,
    span_s: float,
    count: int,
    form: str,
) -> None:
    """Show whom another limit would have denied.

    From the statistics in MongoDB, including denied requests, without trusted clients. An approximation, because
    statistics are kept by the minute.

    \b
    Examples:
      what-if --limit 2000/minute --last week
      what-if partner-app --limit 600/hour --kind user --json
    """
    context.allow_invalid_config()
    amount, window_s = limit
    since_s = context.now_s - span_s
    limit_kind, stored = LimitKind(kind), client and storable_name(client)
    parts = ("by", "users") if limit_kind is LimitKind.USER else ("by",)
    minutes = context.minutes(since_s - window_s, context.now_s, stored, parts=parts)
    recorded = loads(minutes, limit_kind)
    found = effects(recorded, limit=amount, window_minutes=window_s // MINUTE_S, since_s=since_s)
    excluded = excluded_count(recorded, since_s=since_s)
    total = effects_data(found)
    if form != "table":
        subjects = [{**subject_data(effect), "peak_per_minute": effect.peak} for effect in found[:count]]
        data = {
            "limit": amount,
            "window_s": window_s,
            "kind": kind,
            "since": utc_time(since_s),
            "until": utc_time(context.now_s),
            "is_approximate": True,
            **total,
            "subjects": subjects,
            "unjudged_count": excluded,
        }
        click.echo(records_text(form, subjects, whole=data), nl=False)
        return
    over = f"{total['affected_count']} of {len(found)} over the limit"
    denied = f"about {total['denied']} of {counted(total['offered'], 'request')} denied"
    title = f"{amount} in {duration(window_s)}, {kind}: {over}, {denied}"
    print_table(WHAT_IF_COLUMNS, found[:count], title=title, empty=NO_STATISTICS)
    if found:
        click.echo(f"{APPROXIMATE} {HEAVIEST_ONLY}" if limit_kind is LimitKind.USER else APPROXIMATE)
    if excluded:
        click.echo(EXCLUDED.format(requests=counted(excluded, "request")))
    _print_notes(context, client, is_empty=not found)


def _print_notes(context: CliContext, client_id: str | None, *, is_empty: bool) -> None:
    click.echo(STATISTICS_LAG, err=True)
    if client_id is not None and is_empty:
        print_unknown_client_hint(context, client_id)


@click.command()
@format_option("text")
@name_argument("client")
@last_option()
@lifetime_option
@click.option("-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), help="File to write.")
@click.option("--page", metavar="URL", help="Address of your admin page: records have a link to each client.")
@pass_context
def report(
    context: CliContext,
    client: str | None,
    form: str,
    span_s: float,
    lifetime_s: float | None,
    output: IO[str] | None,
    page: str | None,
) -> None:
    """Report who requests more tokens than needed.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. From the statistics in MongoDB. Numbers of users
    are estimates. The text is the letters; CSV is safe to open in a spreadsheet.

    \b
    Examples:
      report --last week
      report partner-app --format text -o letter.txt
    """
    if form == "table" and output is not None:
        raise click.UsageError("-o needs --format text, csv, json or jsonl")
    context.allow_invalid_config()
    period = Period(context.now_s - span_s, context.now_s)
    minutes = context.minutes(period.since_s, period.until_s, client and storable_name(client))
    assumed_s = context.settings.statistics.token_lifetime_s
    findings = find(minutes, token_lifetime_s=lifetime_s, assumed_lifetime_s=assumed_s)
    if form == "table":
        print_table(REPORT_COLUMNS, findings, title=str(period), empty=NO_STATISTICS)
        if any(finding.faults for finding in findings):
            click.echo(LETTERS)
        _print_notes(context, client, is_empty=not findings)
        return
    text = _report_text(context, findings, period, form, page)
    click.echo(text, nl=False, file=output)


def _report_text(
    context: CliContext, findings: list[ClientFinding], period: Period, form: str, page: str | None
) -> str:
    uri = context.settings.denial.error_uri
    records = [
        record_of(each, rank, period=period, is_enforced=context.enforces(each.client_id), error_uri=uri, page=page)
        for rank, each in enumerate(findings, 1)
    ]
    if form != "text":
        data = {"since": utc_time(period.since_s), "until": utc_time(period.until_s), "clients": records}
        return records_text(form, records, whole=data)
    letters = [f"{record['subject']}\n\n{record['letter']}\n" for record in records if record["faults"]]
    return "\n\n".join(letters) or f"{NO_LETTERS}\n"


@click.command("suggest")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@last_option("14d")
@click.option(
    "--window",
    "window_s",
    metavar="TIME",
    default="1h",
    show_default=True,
    type=window_s,
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
    context.allow_invalid_config()
    facts: RecordingFacts | None = None
    if options["file"] is None:
        traffic = Traffic(options["window_s"], is_trusted=context.policies.trusts)
        since_s = context.now_s - options["span_s"]
        parts = ("by", "users", "lifetimes")
        for minute in context.minutes(since_s, context.now_s, parts=parts):
            traffic.add_minute(minute)
        assumed_s = context.settings.statistics.token_lifetime_s or HOUR_S
    else:
        traffic, assumed_s = Traffic(options["window_s"], is_trusted=_trusted_by_file(context)), HOUR_S
        with opened(recording_of(options)) as facts:
            for at_us, client_id, username, _ in chain.from_iterable(facts.rows.batches()):
                traffic.add_request(at_us / SECOND_US, client_id, username)
    proposal = suggest(traffic, token_lifetime_s=options["lifetime_s"], assumed_lifetime_s=assumed_s)
    if options["as_json"]:
        print_json({**proposal_data(proposal), "recording": facts and facts.data()})
        return
    trusted = [("trusted", TRUSTED.format(requests=counted(traffic.trusted_count, "request")))]
    if facts is None:
        click.echo(f"{HEAVIEST_ONLY} {STATISTICS_LAG}", err=True)
    else:
        facts.print_problems()
    read = [*(facts.table() if facts else []), *(trusted if traffic.trusted_count else [])]
    if read:
        print_facts(read)
        click.echo()
    _print_proposal(proposal)


def _trusted_by_file(context: CliContext) -> Callable[[str], bool]:
    """Return the trust of the configuration, without overrides. A file can be read without any configuration."""
    try:
        return context.settings.policies.trusts
    except (click.UsageError, ConfigError):
        click.secho(NO_TRUST, fg="yellow", err=True)
        return lambda _: False


def _print_proposal(proposal: Proposal) -> None:
    if not proposal.suggestions:
        click.echo(NO_REQUESTS)
        return
    title = f"Proposed limits in {duration(proposal.traffic.window_s)}, from {proposal.basis}"
    print_table(SUGGEST_COLUMNS, proposal.suggestions, title=title)
    click.echo()
    for one in proposal.suggestions:
        if one.safest is not None and one.next_above is not None:
            owner = f" of {one.client_id}" if one.client_id else ""
            below, above = subject_text(one.safest), subject_text(one.next_above)
            words = f"{below} stays below {one.safe_limit}; the next wasteful one, {above}, reaches {one.next_peak}"
            times = one.next_peak / max(1, one.safe_limit)
            click.echo(visible(f"{one.kind.value}{owner}: {words}, {times:.1f} times as many."))
    if not proposal.is_enough:
        click.secho(TOO_LITTLE.format(basis=proposal.basis), fg="red", err=True)
    elif proposal.traffic.day_count < ENOUGH_DAYS:
        click.secho(FEW_DAYS.format(basis=proposal.basis), fg="yellow", err=True)
    if left_out_count := proposal.traffic.left_out_count:
        click.secho(EXCLUDED.format(requests=counted(left_out_count, "request")), fg="yellow", err=True)
    click.echo(f"\n{TRY_IT if proposal.is_enough else DO_NOT_ENFORCE.format(basis=proposal.basis)}")
    click.echo(
        yaml.safe_dump(configuration(proposal), sort_keys=False, default_flow_style=None, allow_unicode=False), nl=False
    )
