"""
What all changes have in common: who, why, until when; put in force, taken back.
"""

import getpass
from collections.abc import Iterable, Sequence
from typing import Any

import click

from oauth_ratelimit.cli.context import Function, Session
from oauth_ratelimit.cli.output import print_json
from oauth_ratelimit.cli.parameters import filled, kept
from oauth_ratelimit.cli.record import print_overrides
from oauth_ratelimit.cli.stranger import say_hint, say_if_strange
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.operations.changes import checked_client_id, end_after, end_at
from oauth_ratelimit.operations.serialize import override_data
from oauth_ratelimit.operations.suggestions import stranger_hint


def who_and_why(command: Function) -> Function:
    """
    Add ``--by`` and ``--reason`` to a command: whom to ask about it later.
    """
    option = click.option("--reason", required=True, metavar="TEXT", callback=filled, help="Why; kept on record.")
    return by_whom(option(command))


def by_whom(command: Function) -> Function:
    """
    Add ``--by`` to a command.
    """
    option = click.option(
        "--by",
        "author",
        default=_current_user,
        metavar="NAME",
        callback=kept,
        help="Who; by default the login name.",
    )
    return option(command)


def until_when(command: Function) -> Function:
    """
    Add ``--for`` and ``--until`` to a command.
    """
    for option in (
        click.option("--until", "end", metavar="TIME", help="When it ends by itself: 2026-12-01T00:00:00Z."),
        click.option("--for", "length", metavar="DURATION", help="How long it holds: 30m, 12h, 7d."),
    ):
        command = option(command)
    return command


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


def checked(client_id: str) -> str:
    """
    Return a client id that can be stored; anything else is refused.
    """
    try:
        return checked_client_id(client_id)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None


def override(session: Session, target: Target, options: dict[str, Any], *, mode: Mode | None = None) -> Override:
    """
    Return the override that the options of ``who_and_why`` and ``until_when`` describe; its limits are still to come.
    """
    return Override(
        target=target,
        author=options["author"],
        reason=options["reason"],
        made_at_s=session.now_s,
        until_s=_end(options["length"], options["end"], now_s=session.now_s),
        mode=mode,
    )


def _end(length: str | None, end: str | None, *, now_s: float) -> float | None:
    if length is not None and end is not None:
        raise click.UsageError("name either --for or --until")
    param_hint = "--for" if length is not None else "--until"
    try:
        if length is not None:
            return end_after(length, now_s=now_s)
        return None if end is None else end_at(end, now_s=now_s)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint=param_hint) from None


def put(session: Session, overrides: Iterable[Override], *, as_json: bool) -> None:
    """
    Put overrides in force, and say so.
    """
    made = tuple(overrides)
    client_id = made[0].target.client_id
    # Looked up before, because the overrides make the client known.
    hint = None if client_id is None or as_json else stranger_hint(session, client_id)
    for override in made:
        session.override_store.put(override)
    if as_json:
        print_json([override_data(override) for override in made])
    else:
        print_overrides(made)
        _say_when(session)
        say_hint(hint)


def remove(session: Session, targets: Sequence[Target], *, author: str, reason: str, as_json: bool) -> int:
    """
    Take overrides back, say so, and return the exit code: 1 if there was none.
    """
    store = session.override_store
    removed = [target for target in targets if store.remove(target, author=author, reason=reason, at_s=session.now_s)]
    if as_json:
        print_json({"removed_count": len(removed)})
    elif removed:
        click.echo(f"{len(removed)} taken back")
        _say_when(session)
    else:
        click.echo("There is nothing to take back.", err=True)
        for client_id in {target.client_id for target in targets if target.client_id is not None}:
            say_if_strange(session, client_id)
    return 0 if removed else 1


def _say_when(session: Session) -> None:
    click.echo(f"Every instance follows within {2 * session.settings.sync.interval_s:g} s.")


def _of_kind(session: Session, kind: OverrideKind) -> tuple[Override, ...]:
    return tuple(override for override in session.overrides if override.target.kind is kind)


def data_of(session: Session, kind: OverrideKind) -> list[Any]:
    """
    Return the overrides of one kind that are in force, for programs.
    """
    return [override_data(override) for override in _of_kind(session, kind)]


def print_kind(session: Session, kind: OverrideKind, *, as_json: bool) -> None:
    """
    Print the overrides of one kind that are in force.
    """
    if as_json:
        print_json(data_of(session, kind))
    else:
        print_overrides(_of_kind(session, kind))
