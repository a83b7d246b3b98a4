"""Commands that explain a decision or a recorded denial, and that list recorded denials."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import examples, explained, format_option, invalid, json_option, name_argument
from oauth_ratelimit.cli.output import (
    Column,
    Name,
    Number,
    Time,
    print_facts,
    print_hint,
    print_json,
    print_records,
    print_table,
    print_text,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.config.errors import did_you_mean
from oauth_ratelimit.core.denial_record import DenialRecord, Where, parse_decision_id
from oauth_ratelimit.core.failed_auth import ANYONE, folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import COMMON_NAMES, STANDARD_GRANTS, TOKEN_ENDPOINT, full_grant_type
from oauth_ratelimit.core.statistics import HOUR_S, UserLoad
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import unknown_client_hint
from oauth_ratelimit.operations.denial_run import ACTIVE_S
from oauth_ratelimit.operations.denied import since_texts, since_texts_of, users_over
from oauth_ratelimit.operations.explain import GUARD_SWITCH, LOCKED_OUT, LimitExplanation, guesses_under
from oauth_ratelimit.operations.format import (
    counted,
    denial_data,
    duration,
    instance_text,
    limit_text,
    listed,
    next_text,
    origin_text,
    quoted,
    typed_name,
    utc_time,
    whole,
)
from oauth_ratelimit.store.mongo.denials import of_client, of_user

DENIAL_NOT_FOUND = (
    "No denial with the id {id} is recorded. It is older than events.keep_denials, or events.per_minute left it "
    "out, or its instance has not sent it yet, which takes ten seconds."
)
LIMIT_COLUMNS = [
    Column("limit", limit_text),
    Column("from", "from"),
    Column("mode", "mode"),
    Number("hits", lambda limit: limit["estimate"] and math.ceil(limit["estimate"])),  # with those left: the limit
    Number("left", "remaining"),
    Number("next in", next_text),
    Number("reset in", lambda limit: None if limit["reset_after_s"] is None else duration(limit["reset_after_s"])),
]
GUARDED = (
    "In the last hour the guard has denied guesses under this id, apart from these limits: {guesses}. "
    "See denials {client} --where guard."
)
USERS = (
    "In the last hour these users were over a limit, as far as is recorded: {users}. To explain one: explain {client} "
    "{first}"
)
NOT_GUESSED = "The guard denies nobody under any client (*): no address has guessed too often in the last hour."
NO_LIMIT = "No limit applies."
TRUSTED = "No limit applies: the client is trusted."
NO_LIMIT_WITHOUT_USER = (
    "No limit applies to grants without a user. For the limits of a user, name one: explain CLIENT USER"
)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
YEARS = range(1970, 9999)  # without those at whose ends dates overflow
NO_DENIALS = "No denial is recorded from {since} to {until}. Instances send records every ten seconds.{unless}"
IN_DRY_RUN = " A dry run denies nobody: see what-if."
KEEPS_NONE = " events.keep_denials: 0 records none."
FOUND = "Denials from {since} to {until}: {requests} of {clients}, in {records}"
MORE = "Only the last {count}. More: -n, a shorter time, or --format csv, which has all."
SHOWN = 20  # rows of a table
MAX_READ = 10_000  # records for a table, whose title has their sum
DENIAL_COLUMNS = [
    Time("from", lambda denial: denial["first_at"][11:-1]),
    Time("to, UTC", lambda denial: denial["last_at"][11:-1]),
    Name("client", "client_id"),
    Name("user", "username"),
    Column("where", lambda denial: denial["scope" if denial["where"] == Where.ENDPOINT else "where"]),
    Column("limit", limit_text),
    Number("requests", "request_count"),
]


@click.command("explain")
@examples("explain partner-app alice", "explain --id 5f2b8c1d9e3a4b6c")
@name_argument("client")
@name_argument("user")
@click.option("--id", "decision_id", metavar="ID", help="A past denial: the decision_id in its response.")
@click.option("--grant", metavar="G", help="The grant type, such as refresh_token.")
@click.option("--endpoint", default=TOKEN_ENDPOINT, show_default=True, help="The configured endpoint.")
@json_option
@pass_context
def explain_command(
    context: CliContext, /, client: str | None, user: str | None, endpoint: str, as_json: bool, **options: Any
) -> None:
    """Explain a decision, or a denial by its id.

    For a CLIENT, with a USER or without one: each limit that applies, the part of the configuration or the override
    that it comes from, how much of it is used, and when the next request is admitted. Use far below a limit is up to
    10 s old (sync.max_interval). Without store.uri no command sees the counters, so the use is unknown.

    With --id a denial of the last weeks, by the decision_id in its response: client, policy, time, instance. Exits
    with 1 if there is none.
    """
    decision_id, grant = options["decision_id"], options["grant"]
    if (client is None) == (decision_id is None):
        raise click.UsageError("name either a CLIENT or a denial with --id")
    if client is None:
        _explain_denial(context, decision_id, as_json=as_json)
        return
    grant_type = full_grant_type(grant) if grant else None
    if endpoint not in (endpoints := [TOKEN_ENDPOINT, *context.policies.endpoints]):
        raise click.BadParameter(
            f"'{visible(endpoint)}', allowed: {visible(', '.join(endpoints))}", param_hint="--endpoint"
        )
    explanation = LimitExplanation(context, client, username=user, grant_type=grant_type, endpoint=endpoint)
    hint = unknown_client_hint(context, client)
    if as_json:
        print_json({**explanation.data(), "hint": hint})
    else:
        records = _records(context, client, user)
        since = _since(explanation, records)
        if client == ANYONE:  # no limit of tokens is about it
            print_text("\n".join(map(visible, since)) or NOT_GUESSED)
        else:
            _print_explanation(explanation, since=since)
        for each in tuple(_hints(context, client, user, records)) or (hint,):  # whoever was denied is not unknown
            print_hint(each if each not in since else None)
    known = {*STANDARD_GRANTS, *COMMON_NAMES, *context.policies.named_grants}
    if grant_type is not None and grant_type not in known:
        name = visible(grant_type)
        print_hint(f"'{name}' is neither a standard grant type nor one of the configuration{did_you_mean(name, known)}")


def _print_explanation(explanation: LimitExplanation, *, since: Sequence[str]) -> None:
    data, trust = explanation.data(), explanation.trust_origin
    grants = explanation.context.policies.grants_of(explanation.client_id)
    plain = f"token; apart, with --grant: {', '.join(grants)}" if grants else "token"
    print_facts(
        [
            ("client", whole(data["client_id"])),
            ("user", "none: a grant without a user" if data["username"] is None else whole(data["username"])),
            ("where", data["scope"] or plain),
            ("trusted", f"yes, by {origin_text(trust)}" if trust else "no"),
            ("mode", data["mode"]),
            ("mode from", origin_text(explanation.mode_origin)),
            ("canary", explanation.canary),
            ("forecast", data["forecast"]["text"] if data["forecast"] else "unknown"),
        ]
    )
    for text in since:
        print_text(visible(text))
    click.echo()
    pairs = zip(data["limits"], explanation.usages, strict=True)
    limits = [{**limit, "from": origin_text(origin)} for limit, (_, origin) in pairs]
    found = explanation.matched.limits
    empty = NO_LIMIT_WITHOUT_USER if found.user or found.user_total else NO_LIMIT
    print_table(LIMIT_COLUMNS, limits, empty=TRUSTED if trust else empty)


def _records(context: CliContext, client_id: str, username: str | None) -> list[DenialRecord]:
    """Return the denials of a client or user in the last hour, none if they cannot be read."""
    with suppress(StoreError):  # the limits are explained all the same
        if context.is_shared:
            conditions = [of_client(client_id)]
            if username is not None:
                conditions.append(of_user(context.pseudonyms.all_of(username), []))
            return context.stores.denials.between(context.now_s - HOUR_S, context.now_s, *conditions, at_most=MAX_READ)
    return []


def _since(explanation: LimitExplanation, records: Sequence[DenialRecord]) -> list[str]:
    context, client_id, username = explanation.context, explanation.client_id, explanation.username
    with suppress(StoreError):
        if context.is_shared and username is None and client_id != ANYONE:
            return since_texts(context, client_id, records)
        if context.is_shared and username is not None and not records:
            is_over = explanation.forecast()[0] == "would-be-denied"
            return since_texts(context, client_id, username=storable_name(username), is_over=is_over)
        if context.is_shared:
            return since_texts_of(context, records, since_s=context.now_s - HOUR_S)
    return []


def _hints(context: CliContext, client_id: str, username: str | None, records: Sequence[DenialRecord]) -> Iterator[str]:
    """Yield who else was denied in the last hour: users of the client, and guesses."""
    if not context.is_shared:
        return
    name = typed_name(client_id)
    with suppress(StoreError):  # a missing hint must not fail the command
        if username is None:
            minutes = context.minutes(context.now_s - HOUR_S, client_id, parts=("users",))
            own = [each for each in records if each.denial.username and each.denial.where is not Where.GUARD]
            if users := users_over(client_id, minutes, own):
                named = listed(f"{quoted(user.username)} ({_share(user)})" for user in users)
                yield USERS.format(users=named, client=name, first=typed_name(users[0].username, "user"))
        if guesses := guesses_under(context, client_id):
            yield GUARDED.format(client=name, guesses=listed(guesses))
            yield GUARD_SWITCH
        if client_id != ANYONE and (addresses := guesses_under(context, ANYONE, last_s=ACTIVE_S)):
            yield f"{LOCKED_OUT.format(addresses=listed(addresses))} See denials '*' --where guard."


def _share(user: UserLoad) -> str:
    requests = counted(user.offered, "request")
    return f"{user.over:,} of {requests}" if user.over < user.offered else requests


def _explain_denial(context: CliContext, decision_id: str, *, as_json: bool) -> None:
    context.allows_invalid_config = True
    record = context.stores.denials.find(explained(parse_decision_id)(decision_id))
    if record is None:
        print_text(DENIAL_NOT_FOUND.format(id=decision_id), err=True)
        click.get_current_context().exit(1)
    data = denial_data(record)
    if as_json:
        print_json(data)
        return
    facts = {**data, "limit": limit_text(data), "instance": instance_text(data["instance"])}
    print_facts([(name.replace("_", " "), facts[name]) for name in facts if name not in ("policy", "window_s")])


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
@examples("denials partner-app --from 14:00 --to 14:10", "denials --where guard --from 2026-12-01T00:00Z --format csv")
@name_argument("client")
@name_argument("user")
@click.option("--from", "since", metavar="TIME", help="Begin, in UTC: 14:00.  [default: an hour before]")
@click.option("--to", "until", metavar="TIME", help="End: 14:10 or 2026-12-01T14:10Z.  [default: now]")
@click.option("--where", type=click.Choice([each.value for each in Where]), help="Only those of this part.")
@click.option("-n", "--count", type=click.IntRange(1), help="Number of rows.  [default: 20 in a table, else all]")
@format_option()
@pass_context
def denials_command(
    context: CliContext, /, client: str | None, user: str | None, count: int | None, form: str, **options: Any
) -> None:
    """List who was denied, and when.

    All denials, those of a CLIENT, or those of one USER of it, the last one first. A record is of all denials of
    one client and user within a minute: "requests" is their number. The guard records guesses by what the request
    claimed: the client, and the address with the name. JSON and CSV have all records and more of each, such as the
    grant type, the instance and the id for explain --id. Dry runs deny nothing, so they are not listed.
    """
    if user is None:  # else the configuration says how names are stored
        context.allows_invalid_config = True
    since_s, until_s = period(options["since"], options["until"], now_s=context.now_s)
    conditions = [] if client is None else [of_client(client)]
    if user is not None:
        conditions.append(of_user(context.pseudonyms.all_of(user), context.pseudonyms.all_of(folded(user))))
    where, at_most = options["where"] and Where(options["where"]), MAX_READ if form == "table" else count or 0
    found = context.stores.denials.between(since_s, until_s, *conditions, where=where, at_most=at_most)
    shown = found[: (count or SHOWN) if form == "table" else None]
    span, since = {"since": utc_time(since_s), "until": utc_time(until_s)}, list[str]()
    if form == "table" and found:
        sums = {
            "requests": counted(sum(each.request_count for each in found), "request"),
            "clients": counted(len({each.denial.client_id for each in found}), "client"),
            "records": f"{'the last ' if len(found) == MAX_READ else ''}{counted(len(found), 'record')}",
        }
        print_text(FOUND.format(**span, **sums), bold=True)
        first_s = found[-1].denial.at_s if len(found) == MAX_READ else since_s
        with suppress(StoreError):  # a user without the right to read changes sees the denials all the same
            since = since_texts_of(context, found, since_s=first_s)
        for text in since:
            print_text(visible(text))
    days = [Time("day", lambda denial: denial["first_at"][:10])] if until_s - since_s > DAY.total_seconds() else []
    keeps_none = not context.invalid and not context.settings.events.keep_denials_s
    unless = KEEPS_NONE if keeps_none else "" if context.mode is Mode.ENFORCE else IN_DRY_RUN
    columns, empty = [*days, *DENIAL_COLUMNS], NO_DENIALS.format(**span, unless=unless)
    print_records(form, list(map(denial_data, shown)), columns, empty=empty)
    if len(found) > len(shown):
        print_hint(MORE.format(count=len(shown)))
    has_guesses = form == "table" and any(each.denial.where is Where.GUARD for each in found)
    if has_guesses and GUARD_SWITCH not in since:
        print_hint(GUARD_SWITCH)
    if not found:
        print_unknown_client_hint(context, client)
