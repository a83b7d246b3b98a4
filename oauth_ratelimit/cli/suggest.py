"""Command that proposes limits from recorded statistics or from recorded traffic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option, lifetime_s, span_s
from oauth_ratelimit.cli.output import NO_VALUE, STATISTICS_LAG, Cell, Row, columns, print_json, print_table, visible
from oauth_ratelimit.cli.replay import recording_options
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.operations.format import counted, duration
from oauth_ratelimit.replay.formats import SECOND_US

if TYPE_CHECKING:
    from oauth_ratelimit.core.what_if import Subject
    from oauth_ratelimit.operations.profiles import Traffic
    from oauth_ratelimit.operations.suggest import Proposal, Suggestion

ENOUGH_DAYS = 7
COLUMNS = columns(
    "limit of",
    "client",
    "proposed",
    numbers=("requests", "denied", "clients or users", "of well-behaved", "needless stopped", "safe limit"),
)
FEW_DAYS = "Only {basis}: a week or more shows how much the days differ. Fit again when there is more."
TOO_LITTLE = "Too little traffic, only {basis}: do not enforce these limits. Fit again after a week."
TRY_IT = "# Try it: replay, what-if, or a dry run."
NO_REQUESTS = "No requests, so there is nothing to propose limits from."
DO_NOT_ENFORCE = "# From {basis}: too little to enforce."
LEFT_OUT = "Not included: {requests} of clients that the statistics count together."
HEAVIEST = (
    "Users count only in minutes in which they were among the heaviest of their client, so their peaks may be higher."
)


@click.command("suggest")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option(
    "--last",
    "span_s",
    metavar="TIME",
    default="14d",
    show_default=True,
    callback=span_s,
    help="How far back to read statistics: day, week, month, or such as 36h.",
)
@click.option(
    "--window",
    "window_s",
    metavar="TIME",
    default="1h",
    show_default=True,
    callback=span_s,
    help="Window of the proposed limits, in whole minutes. Not longer than a token is valid.",
)
@click.option(
    "--token-lifetime",
    "lifetime_s",
    metavar="TIME",
    callback=lifetime_s,
    help="Lifetime of a token, such as 12h.  "
    "[default: that of the tokens issued, else statistics.token_lifetime, else 1h]",
)
@recording_options
@json_option
@pass_context
def suggest_command(context: CliContext, /, **options: Any) -> None:
    """Propose limits from recorded traffic.

    They leave well-behaved clients alone and stop those that waste tokens. From the statistics in MongoDB, or from
    FILE with recorded requests, which replay reads, too. For each kind of
    limit, and for each client that needs its own: the limit, the requests that it would have denied, those of
    well-behaved clients among them, and the share of the needless requests that it would have stopped. Needless is a
    request that came while an earlier token of the same client or user was valid. Prints YAML to paste, and changes
    nothing.

    \b
    flask oauth-ratelimit suggest --last 14d
    flask oauth-ratelimit suggest tokens.csv --column client=app --token-lifetime 12h
    """
    from oauth_ratelimit.operations.profiles import HOUR_S, Traffic
    from oauth_ratelimit.operations.suggest import proposal_data, suggest

    context.accept_broken()
    if options["window_s"] % MINUTE_S:
        raise click.BadParameter(
            "needs whole minutes, because statistics are kept by the minute", param_hint="--window"
        )
    traffic = Traffic(int(options["window_s"]))
    if options["file"] is None:
        since_s = context.now_s - options["span_s"]
        parts = ("by", "users", "lifetimes")
        for minute in context.stores.statistics.minutes(since_s, context.now_s, parts=parts):
            traffic.add_minute(minute)
        assumed_s = context.settings.statistics.token_lifetime_s or HOUR_S
    else:
        _read(options, traffic)
        assumed_s = HOUR_S
    proposal = suggest(traffic, token_lifetime_s=options["lifetime_s"], assumed_lifetime_s=assumed_s)
    if options["as_json"]:
        print_json(proposal_data(proposal))
        return
    if options["file"] is None:
        click.echo(f"{HEAVIEST} {STATISTICS_LAG}", err=True)
    _print(proposal)


def _read(options: Mapping[str, Any], traffic: "Traffic") -> None:
    """Add the requests of a file."""
    from oauth_ratelimit.cli.recording import RecordingFacts, opened, recording_of

    recording = recording_of(options)
    with opened(recording) as (source, rows):
        for batch in rows.batches():
            for at_us, client_id, username, _ in batch:
                traffic.add_request(at_us / SECOND_US, client_id, username)
    facts = RecordingFacts(recording.path, source, rows)
    facts.print_problems()
    for note in facts.notes:
        click.secho(note, fg="yellow", err=True)


def _print(proposal: "Proposal") -> None:
    import yaml

    from oauth_ratelimit.operations.suggest import configuration

    if not proposal.suggestions:
        click.echo(NO_REQUESTS)
        return
    title = f"Proposed limits in {duration(proposal.window_s)}, from {proposal.basis}"
    print_table(COLUMNS, list(map(_row, proposal.suggestions)), title=title)
    click.echo()
    for one in proposal.suggestions:
        if one.safest is not None and one.next_above is not None:
            owner = f" of {visible(one.client_id)}" if one.client_id else ""
            above, times = _name(one.next_above), one.next_peak / max(1, one.safe_limit)
            click.echo(
                f"{one.kind.value}{owner}: {_name(one.safest)} stays below {one.safe_limit}; the next wasteful one, "
                f"{above}, reaches {one.next_peak}, {times:.1f} times as many."
            )
    if not proposal.is_enough:
        click.secho(TOO_LITTLE.format(basis=proposal.basis), fg="red", err=True)
    elif proposal.day_count < ENOUGH_DAYS:
        click.secho(FEW_DAYS.format(basis=proposal.basis), fg="yellow", err=True)
    if proposal.left_out_count:
        click.secho(LEFT_OUT.format(requests=counted(proposal.left_out_count, "request")), fg="yellow", err=True)
    click.echo(f"\n{TRY_IT if proposal.is_enough else DO_NOT_ENFORCE.format(basis=proposal.basis)}")
    click.echo(
        yaml.safe_dump(configuration(proposal), sort_keys=False, default_flow_style=None, allow_unicode=False), nl=False
    )


def _row(one: "Suggestion") -> Row:
    return (
        one.kind.value,
        NO_VALUE if one.client_id is None else one.client_id,
        f"{one.limit} in {duration(one.window_s)}",
        f"{one.offered:,}",
        f"{one.denied:,}",
        f"{one.denied_count:,}",
        Cell(f"{one.well_behaved_denied:,}", "bold red" if one.well_behaved_denied else "green"),
        NO_VALUE if one.stopped_ratio is None else f"{one.stopped_ratio:.0%}",
        NO_VALUE if one.safest is None else str(one.safe_limit),
    )


def _name(subject: "Subject") -> str:
    client_id = visible(subject.client_id)
    return client_id if subject.username is None else f"{visible(subject.username)} of {client_id}"
