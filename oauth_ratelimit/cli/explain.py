"""Command that explains a decision or a recorded denial."""

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import explained, json_option, name_argument
from oauth_ratelimit.cli.output import Column, Number, print_facts, print_hint, print_json, print_table, visible
from oauth_ratelimit.config.errors import did_you_mean
from oauth_ratelimit.core.denial_record import Where, parse_decision_id
from oauth_ratelimit.core.grant_type import COMMON_NAMES, STANDARD_GRANTS, full_grant_type
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.core.statistics import HOUR_S
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.explain import LimitExplanation
from oauth_ratelimit.operations.format import duration, next_text, origin_text
from oauth_ratelimit.operations.serialize import denial_data
from oauth_ratelimit.store.mongo.denials import of_client

DENIAL_NOT_FOUND = (
    "No denial with the id {id} is recorded. It is older than events.keep_denials, or events.per_minute left it "
    "out, or its instance has not sent it yet, which takes ten seconds."
)
LIMIT_COLUMNS = [
    Column("policy", "policy"),
    Column("from", "from"),
    Column("mode", "mode"),
    Number("limit", "limit"),
    Number("window", lambda limit: duration(limit["window_s"])),
    Number("hits", "estimate"),
    Number("left", "remaining"),
    Number("next in", next_text),
    Number("reset in", lambda limit: None if limit["reset_after_s"] is None else duration(limit["reset_after_s"])),
]
GUARDED = (
    "In the last hour the guard has denied this client, apart from these limits: see denials {client} --where guard. "
    "guard.trusted_addresses lets an address in; reset does not."
)
NO_LIMIT = "No limit applies."
TRUSTED = "No limit applies: the client is trusted."
NO_LIMIT_WITHOUT_USER = (
    "No limit applies to grants without a user. For the limits of a user, name one: explain CLIENT USER"
)


@click.command("explain")
@name_argument("client")
@name_argument("user")
@click.option("--id", "decision_id", metavar="ID", help="A past denial: the decision_id in its response.")
@click.option("--grant", metavar="G", help="The grant type, such as refresh_token.")
@click.option("--endpoint", default=TOKEN_ENDPOINT, show_default=True, help="The configured endpoint.")
@json_option
@pass_context
def explain_command(
    context: CliContext,
    client: str | None,
    user: str | None,
    decision_id: str | None,
    grant: str | None,
    endpoint: str,
    as_json: bool,
) -> None:
    """Explain a decision, or a denial by its id.

    For a CLIENT, with a USER or without one: each limit that applies, the part of the configuration or the override
    that it comes from, how much of it is used, and when the next request is admitted. Use far below a limit is up to
    10 s old (sync.max_interval). Without store.uri no command sees the counters, so the use is unknown.

    With --id a denial of the last weeks, by the decision_id in its response: client, policy, time, instance. Exits
    with 1 if there is none.

    \b
    Examples:
      explain partner-app alice
      explain --id 5f2b8c1d9e3a4b6c
    """
    if (client is None) == (decision_id is None):
        raise click.UsageError("name either a CLIENT or a denial with --id")
    if client is None:
        _explain_denial(context, str(decision_id), as_json=as_json)
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
        _print_explanation(explanation)
        print_hint(hint)
        print_hint(_guard_hint(context, client))
    known = {*STANDARD_GRANTS, *COMMON_NAMES, *context.policies.named_grants}
    if grant_type is not None and grant_type not in known:
        name = visible(grant_type)
        print_hint(f"'{name}' is neither a standard grant type nor one of the configuration{did_you_mean(name, known)}")


def _print_explanation(explanation: LimitExplanation) -> None:
    data, trust = explanation.data(), explanation.trust_origin
    grants = explanation.context.policies.grants_of(explanation.client_id)
    plain = f"token; apart, with --grant: {', '.join(grants)}" if grants else "token"
    print_facts(
        [
            ("client", data["client_id"]),
            ("user", "none: a grant without a user" if data["username"] is None else data["username"]),
            ("counted at", data["scope"] or plain),
            ("trusted", f"yes, by {origin_text(trust)}" if trust else "no"),
            ("mode", data["mode"]),
            ("mode from", origin_text(explanation.mode_origin)),
            ("canary", explanation.canary),
            ("forecast", data["forecast"]["text"] if data["forecast"] else "unknown"),
        ]
    )
    click.echo()
    pairs = zip(data["limits"], explanation.usages, strict=True)
    limits = [{**limit, "from": origin_text(origin)} for limit, (_, origin) in pairs]
    empty = NO_LIMIT_WITHOUT_USER if explanation.matched.limits.user else NO_LIMIT
    print_table(LIMIT_COLUMNS, limits, empty=TRUSTED if trust else empty)


def _guard_hint(context: CliContext, client_id: str) -> str | None:
    if not context.is_shared:
        return None
    since_s, until_s, conditions = context.now_s - HOUR_S, context.now_s, of_client(client_id)
    try:
        found = context.stores.denials.between(since_s, until_s, conditions, where=Where.GUARD, at_most=1)
    except StoreError:
        return None  # a missing hint must not fail the command
    return GUARDED.format(client=visible(client_id)) if found else None


def _explain_denial(context: CliContext, decision_id: str, *, as_json: bool) -> None:
    context.allows_invalid_config = True
    record = context.stores.denials.find(explained(parse_decision_id)(decision_id))
    if record is None:
        click.echo(DENIAL_NOT_FOUND.format(id=decision_id), err=True)
        click.get_current_context().exit(1)
    data = denial_data(record)
    if as_json:
        print_json(data)
        return
    print_facts([(name.replace("_", " "), value) for name, value in data.items()])
