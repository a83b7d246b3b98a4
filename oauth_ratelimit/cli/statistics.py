"""Commands about recorded requests: report, suggest, what-if; and replay, which needs no database."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click
import yaml

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    count_option,
    examples,
    format_option,
    json_option,
    kind_option,
    last_option,
    lifetime_option,
    name_argument,
    rate,
    span_s,
    whole_minutes,
)
from oauth_ratelimit.cli.output import (
    Column,
    Name,
    Number,
    print_facts,
    print_json,
    print_json_list,
    print_records,
    print_table,
    print_text,
)
from oauth_ratelimit.cli.recording import opened, recording_of, recording_options, source_of, source_options
from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.document import plain_value
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.operations.format import Record, counted, duration, percent_text
from oauth_ratelimit.traffic.judge import judge_subjects
from oauth_ratelimit.traffic.minutes import OF_USERS, Replayed, ReuseShares, denials_data, excluded_count, loads
from oauth_ratelimit.traffic.report import Fault, find, period_text, record_of
from oauth_ratelimit.traffic.suggest import Traffic, proposal_data, suggest

NO_REQUESTS = "No such requests are recorded."
HEAVIEST_ONLY = "Users count only in minutes in which they were among the heaviest of their client."
LETTERS = "Letters to the owners: --format text. To one owner: report CLIENT."
NO_LETTERS = "No client requests more tokens than it needs."
EXCLUDED = "Not included: {requests} of clients that the statistics count together."

TRUSTED = "{requests} left out: trusted clients have no limit"
TRY_IT = "# Try it: replay, what-if, or a dry run."
NOTHING_TO_PROPOSE = "No requests, so there is nothing to propose limits from."
DO_NOT_ENFORCE = "# From {basis}: too little to enforce. Fit again after a week."
SUGGEST_COLUMNS = [
    Column("kind", "kind"),
    Name("client", "client_id"),
    Column("proposed", lambda one: f"{one['limit']} in {duration(one['window_s'])}"),
    Number("denied", "denied"),
    Number("of well-behaved", "well_behaved_denied"),
    Number("reuse spares", "spared"),
    Number("needless stopped", lambda one: one["stopped_ratio"] and percent_text(one["stopped_ratio"])),
]
SUMS = ("offered", "denied", "at_least", "at_most", "spared")
APPROXIMATE = (
    "An approximation: the true number lies between the bounds. Denied clients may also have sent more requests than "
    "they otherwise would."
)
TOO_SHORT = (
    "The window is too short for what is recorded about when requests came: trust the bounds alone for {subjects}."
)
WHAT_IF_COLUMNS = [
    Name("client", "client_id"),
    Name("user", "username"),
    Number("requests", "offered"),
    Number("denied", "denied"),
    Number("share", lambda effect: percent_text(effect["denied"] / effect["offered"])),
    Number("at least", "at_least"),
    Number("at most", "at_most"),
    Number("reuse spares", "spared"),
    Number("busiest minute", "peak_per_minute"),
]
REPORT_COLUMNS = [
    Name("client", "client_id"),
    Column(
        "verdict",
        lambda one: ", ".join((one["verdict"], *(each for each in one["faults"] if each != Fault.OVER_LIMIT))),
    ),
    Number("requests", "requests"),
    Number("needless", "needless"),
    Number("denied", "denied"),
    Number("dry run", "would_deny"),
    Number("reuse spares", lambda finding: finding["reused"] + finding["would_reuse"]),
    Number("users (about)", "user_count"),
]


@click.command()
@examples("report --last week", "report partner-app --file access.log --format text > letter.txt")
@format_option("text")
@name_argument("client")
@last_option()
@source_options
@lifetime_option
@click.option("--page", metavar="URL", help="Address of your admin page: records have a link to each client.")
@pass_context
def report(context: CliContext, /, **options: Any) -> None:
    """Report who requests more tokens than needed.

    Per client: requests per user and hour against the lifetime of a token, refreshes, bursts, retries while denied; a
    rank by needless requests, a verdict, and a letter to the owner. "Reuse spares" is the number of requests over a
    limit that got the token that the client had, or would have with on_limit: reuse. From the statistics in MongoDB or
    a --file. Numbers of users are estimates. The text is the letters; CSV is safe to open in a spreadsheet.
    """
    form = options["form"]
    with source_of(context, options) as source:
        assumed_s, uri = source.settings.statistics.token_lifetime_s, source.settings.denial.error_uri
        lifetimes = {"token_lifetime_s": options["lifetime_s"], "assumed_lifetime_s": assumed_s}
        findings = find(source.minutes, lambda: source.period, **lifetimes)
    period, data = period_text(*source.period), source.data()
    # One at a time: there may be hundreds of thousands, each with its letter.
    records = (
        record_of(each, rank, period=period, error_uri=uri, page=options["page"])
        for rank, each in enumerate(findings, 1)
    )
    source.print_facts(form, needs_lifetime=options["lifetime_s"] is None)
    if form == "text":
        letters = (f"{each['subject']}\n\n{each['letter']}" for each in records if each["faults"])
        click.echo(next(letters, NO_LETTERS))
        for letter in letters:
            click.echo(f"\n\n{letter}")
        return
    if form == "table" and data["since"]:
        click.secho(period, bold=True)
    if form == "json":
        print_json_list(data, "clients", records)
        return
    count = print_records(form, records, REPORT_COLUMNS, empty=NO_REQUESTS)
    if form == "table":
        if count:
            print_text(LETTERS)
        source.print_notes(context, options["client"], is_empty=not count)


@click.command("suggest")
@examples("suggest --last 14d", "suggest tokens.csv --column client=app --token-lifetime 12h")
@name_argument("file")
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
    FILE with recorded requests. For each kind of limit, and for each client that needs its
    own: the limit, the requests that it would have denied, those of well-behaved clients among them, and the share of
    the needless requests that it would have stopped. Needless is a request that came while an earlier token of the
    same client or user was valid. Prints YAML to paste, and changes nothing.
    """
    with source_of(context, options, parts=("by", "users", "registers", "lifetimes")) as source:
        traffic = Traffic(
            options["window_s"],
            is_trusted=lambda client_id: source.facts is None and context.policies.trusts(client_id),
            token_lifetime_s=options["lifetime_s"],
            assumed_lifetime_s=source.settings.statistics.token_lifetime_s,
        )
        for minute in source.minutes:
            traffic.add_minute(minute)
    proposal, recording = suggest(traffic), source.facts and source.facts.data()
    data = {**proposal_data(proposal), "recording": recording}
    if options["as_json"]:
        print_json(data)
        return
    source.print_facts("table", needs_lifetime=options["lifetime_s"] is None)
    if recording is None:
        print_text(HEAVIEST_ONLY, err=True)
    source.print_notes(context, None, is_empty=False)
    if traffic.trusted_count:
        print_text(TRUSTED.format(requests=counted(traffic.trusted_count, "request")))
    if not proposal.suggestions:
        print_text(NOTHING_TO_PROPOSE)
        return
    basis = proposal.basis
    print_table(
        SUGGEST_COLUMNS, data["suggestions"], title=f"Proposed limits in {duration(traffic.window_s)}, from {basis}"
    )
    click.echo()
    if traffic.left_out_count:
        print_text(EXCLUDED.format(requests=counted(traffic.left_out_count, "request")), fg="yellow", err=True)
    print_text(TRY_IT if proposal.is_enough else DO_NOT_ENFORCE.format(basis=basis))
    click.echo(configuration_text(data["configuration"]), nl=False)


class _Dumper(yaml.SafeDumper):
    """Writer of YAML that quotes what a configuration file would not have as text, such as ``2e10``."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if isinstance(plain_value(text), str) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def configuration_text(sections: Mapping[str, object]) -> str:
    """Return sections of a configuration as a file has them."""
    return str(yaml.dump(sections, Dumper=_Dumper, sort_keys=False, default_flow_style=None))


@click.command("what-if")
@examples(
    "what-if --limit 2000/minute --last week", "what-if partner-app --limit 600/hour --kind user --file access.log"
)
@name_argument("client")
@click.option(
    "--limit",
    required=True,
    metavar="LIMIT",
    type=rate,
    help="Such as 100/minute or 2000 per 10 minutes.",
)
@kind_option(
    "What it counts, as under limits in the configuration: requests of a client without a user, those of each user, "
    "all of a client, those of each user through all clients.",
    default="client",
    show_default=True,
)
@last_option()
@source_options
@count_option
@format_option()
@pass_context
def what_if(context: CliContext, /, **options: Any) -> None:
    """Show whom another limit would have denied.

    From the statistics in MongoDB or a --file, including denied requests, without trusted clients. An approximation,
    because they have the second of a client's requests, and the minute of a user's; replay decides a file by the
    request. "Reuse spares" is how many of the denials on_limit: reuse would have spared, if they are like those so far.
    """
    (amount, window_s), kind, form = options["limit"], LimitKind(options["kind"]), options["form"]
    policy = Policy(kind, amount, Window.of(window_s))
    parts = ("by", "users", "seconds") if kind in OF_USERS else ("by", "seconds")
    reuse = ReuseShares(kind)
    before_s = policy.window.window_s + policy.window.frame_s + MINUTE_S
    with source_of(context, options, before_s=before_s, parts=parts) as source:
        recorded = loads(reuse.noting(source.minutes), kind)
    excluded = excluded_count(recorded, since_s=source.since_s)
    subjects: list[Record] = [
        {
            **subject._asdict(),
            "offered": judged.offered,
            "denied": judged.denied,
            "at_least": judged.at_least,
            "at_most": judged.at_most,
            "spared": reuse.spared(subject.client_id, judged.denied) if judged.denied else None,
            "peak_per_minute": judged.peak,
            "is_known": judged.is_known,
        }
        for subject, judged in judge_subjects(recorded, policy, since_s=source.since_s)
    ]
    data = {
        "limit": amount,
        "window_s": window_s,
        "kind": kind,
        **source.data(),
        "is_approximate": True,
        **{name: sum(each[name] or 0 for each in subjects) for name in SUMS},
        "subject_count": len(subjects),
        "affected_count": sum(each["denied"] > 0 for each in subjects),
        "subjects": subjects[: options["count"]],
        "unjudged_count": excluded,
    }
    source.print_facts(form)
    if form == "table":
        subject = "user" if kind in OF_USERS else "client"
        over = f"{data['affected_count']:,} of {counted(len(subjects), subject)} over the limit"
        spared = f", reuse would spare {data['spared']:,}" if data["spared"] else ""
        denied = f"about {data['denied']:,} of {counted(data['offered'], 'request')} denied{spared}"
        print_text(f"{amount} in {duration(window_s)}, {kind}: {over}, {denied}", bold=True)
    print_records(form, data["subjects"], WHAT_IF_COLUMNS, whole=data, empty=NO_REQUESTS)
    if form == "table":
        if subjects:
            print_text(f"{APPROXIMATE} {HEAVIEST_ONLY}" if kind in OF_USERS and source.facts is None else APPROXIMATE)
        if unknown := sum(not each["is_known"] for each in subjects):
            print_text(TOO_SHORT.format(subjects=counted(unknown, subject)))
        if excluded:
            print_text(EXCLUDED.format(requests=counted(excluded, "request")))
        source.print_notes(context, options["client"], is_empty=not subjects)


ROWS = 10
LIMIT_COLUMNS = [
    Column("limit", lambda each: f"{each['policy']}: {each['limit']} in {duration(each['window_s'])}"),
    Number("over it", "over"),
]
CLIENT_COLUMNS = [
    Column("client", "client_id"),
    Number("requests", "requests"),
    Number("over a limit", "over"),
    Number("share", lambda each: percent_text(each["over"] / each["requests"])),
    Number("users", "user_count"),
]
USER_COLUMNS = [Column("client", "client_id"), Column("user", "username"), Number("over a limit", "over")]


@click.command("replay")
@examples("replay access.log.gz --path /oauth/token", "replay tokens.csv --column client=app --limit 100/minute")
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
    """
    settings, origin = _settings(context, options)
    with opened(recording_of(options)) as facts, closing(Replayed(settings)) as replayed:
        denials = denials_data(replayed.minutes(facts.read()))
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
