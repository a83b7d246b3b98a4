"""
Commands that put things on record: overrides with their history, export.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from oauth_ratelimit.cli.context import Session, format_of, json_option, pass_session
from oauth_ratelimit.cli.output import Cell, Column, Row, json_line, mode_cell, print_json, print_table
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.counters.usage import Standings
from oauth_ratelimit.operations.serialize import entry_data, override_data, policy_text, standing_data
from oauth_ratelimit.operations.words import moment
from oauth_ratelimit.report.table import csv_cell


@click.command()
@click.argument("client", required=False)
@click.option("--history", "is_history", is_flag=True, help="What was done, oldest first.")
@json_option
@pass_session
def overrides(session: Session, client: str | None, is_history: bool, as_json: bool) -> None:
    """
    List overrides, or their history.

    Those in force, of one CLIENT or all; with --history what was done, resets of counters included: of each target the
    last thousand changes.
    """
    if is_history:
        entries = session.override_store.history(client)
        if as_json:
            print_json(list(map(entry_data, entries)))
        else:
            columns = [Column(name) for name in ("when", "who", "did", "what", "whose", "value", "until", "why")]
            print_table(columns, list(map(_entry_row, entries)), empty="Nothing was ever overridden or reset.")
        return
    chosen = [override for override in session.overrides if client in (None, override.target.client_id)]
    if as_json:
        print_json(list(map(override_data, chosen)))
    else:
        print_overrides(chosen)


@click.command()
@click.argument("what", type=click.Choice(["counters", "overrides", "history"]), default="counters")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="jsonl is one record a line, json one list of them, which is also what --json prints.  [default: jsonl]",
)
@json_option
@pass_session
def export(session: Session, what: str, form: str | None, as_json: bool) -> None:
    """
    Export counters, overrides or history.

    Writes WHAT to the standard output; counters are the default. Of the counters, where every client and user stands
    in each limit. CSV is safe to open in a spreadsheet: a text that it would take for a formula gets an apostrophe.
    """
    form = format_of(form, as_json=as_json, default="jsonl")
    records: Iterable[Mapping[str, object]]
    if what == "counters":
        documents = session.documents.every(session.now_s)
        records = map(standing_data, Standings(session.policies).of_all(documents, session.now_s))
    elif what == "overrides":
        records = map(override_data, session.overrides)
    else:
        records = map(entry_data, session.override_store.history())
    if form == "csv":
        _write_csv(records)
    elif form == "json":
        _write_list(records)
    else:
        for record in records:
            click.echo(json_line(record))


def _write_list(records: Iterable[Mapping[str, object]]) -> None:
    """
    Write one JSON list, as it comes: counters may be many.
    """
    separator = "["
    for record in records:
        click.echo(f"{separator}\n{json_line(record)}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def _write_csv(records: Iterable[Mapping[str, object]]) -> None:
    writer = None
    for record in records:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(record))
            writer.writeheader()
        writer.writerow({name: csv_cell(value, separator="; ") for name, value in record.items()})


def print_overrides(chosen: Sequence[Override]) -> None:
    """
    Print overrides for people.
    """
    columns = [Column(name) for name in ("what", "whose", "value", "until", "who", "when", "why")]
    print_table(columns, list(map(_override_row, chosen)), empty="No overrides: the configuration holds.")


def _override_row(override: Override) -> Row:
    until = Cell("you take it back", "dim") if override.until_s is None else moment(override.until_s)
    return (*_target_cells(override.target), _value(override), until, *_who(override))


def _entry_row(entry: HistoryEntry) -> Row:
    override = entry.override
    value = _value(override) if override else ""
    until = moment(override.until_s) if override and override.until_s is not None else ""
    action = Cell(entry.action, "" if override else "dim")
    return (moment(entry.at_s), entry.author, action, *_target_cells(entry.target), value, until, entry.reason)


def _target_cells(target: Target | Counters) -> tuple[str, str | Cell]:
    if isinstance(target, Counters):
        return "counters", target.client_id if target.username is None else f"{target.client_id} {target.username}"
    what = target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"
    return what, Cell("everybody", "bold") if target.client_id is None else target.client_id


def _who(override: Override) -> Iterator[str]:
    yield override.author
    yield moment(override.made_at_s)
    yield override.reason


def _value(override: Override) -> str | Cell:
    if override.mode:
        return mode_cell(override.mode.value)
    if override.target.limit_kind is None:
        return "trusted"
    return ", ".join(map(policy_text, override.policies)) or "no limit"
