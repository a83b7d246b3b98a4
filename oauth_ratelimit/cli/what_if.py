"""The command what-if."""

from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    count_option,
    format_option,
    kind_option,
    last_option,
    name_argument,
    rate,
)
from oauth_ratelimit.cli.output import Column, Number, print_records
from oauth_ratelimit.cli.recording import source_of, source_options
from oauth_ratelimit.cli.statistics import EXCLUDED, HEAVIEST_ONLY, NO_STATISTICS
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.traffic.judge import judge_subjects
from oauth_ratelimit.traffic.minutes import ReuseShares, excluded_count, loads

SUMS = ("offered", "denied", "at_least", "at_most", "spared")
APPROXIMATE = (
    "An approximation: the true number lies between the bounds. Denied clients may also have sent more requests than "
    "they otherwise would."
)
TOO_SHORT = (
    "The window is too short for what is recorded about when requests came: trust the bounds alone for {subjects}."
)
WHAT_IF_COLUMNS = [
    Column("client", "client_id"),
    Column("user", "username"),
    Number("requests", "offered"),
    Number("denied", "denied"),
    Number("share", lambda effect: f"{effect['denied'] / effect['offered']:.1%}"),
    Number("at least", "at_least"),
    Number("at most", "at_most"),
    Number("reuse spares", "spared"),
    Number("busiest minute", "peak_per_minute"),
]


@click.command("what-if")
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
    "all of a client.",
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

    \b
    Examples:
      what-if --limit 2000/minute --last week
      what-if partner-app --limit 600/hour --kind user --file access.log
    """
    (amount, window_s), kind, form = options["limit"], LimitKind(options["kind"]), options["form"]
    policy = Policy(kind, amount, Window.of(window_s))
    parts = ("by", "users", "seconds") if kind is LimitKind.USER else ("by", "seconds")
    reuse = ReuseShares(kind)
    before_s = policy.window.window_s + policy.window.frame_s + MINUTE_S
    with source_of(context, options, before_s=before_s, parts=parts) as source:
        recorded = loads(reuse.noting(source.minutes), kind)
    since_s, until_s = source.period
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
        "since": utc_time(since_s),
        "until": utc_time(until_s),
        "recording": source.facts and source.facts.data(),
        "is_approximate": True,
        **{name: sum(each[name] or 0 for each in subjects) for name in SUMS},
        "subject_count": len(subjects),
        "affected_count": sum(each["denied"] > 0 for each in subjects),
        "subjects": subjects[: options["count"]],
        "unjudged_count": excluded,
    }
    source.print_facts(form)
    if form == "table":
        subject = "user" if kind is LimitKind.USER else "client"
        over = f"{data['affected_count']} of {counted(len(subjects), subject)} over the limit"
        spared = f", reuse would spare {data['spared']}" if data["spared"] else ""
        denied = f"about {data['denied']} of {counted(data['offered'], 'request')} denied{spared}"
        click.secho(f"{amount} in {duration(window_s)}, {kind}: {over}, {denied}", bold=True)
    print_records(form, data["subjects"], WHAT_IF_COLUMNS, whole=data, empty=NO_STATISTICS)
    if form == "table":
        if subjects:
            of_users = kind is LimitKind.USER and source.facts is None
            click.echo(f"{APPROXIMATE} {HEAVIEST_ONLY}" if of_users else APPROXIMATE)
        if unknown := sum(not each["is_known"] for each in subjects):
            click.echo(TOO_SHORT.format(subjects=counted(unknown, subject)))
        if excluded:
            click.echo(EXCLUDED.format(requests=counted(excluded, "request")))
        source.print_notes(context, options["client"], is_empty=not subjects)
