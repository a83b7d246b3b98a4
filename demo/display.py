"""Output of the demo: live on a terminal, plain lines elsewhere."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from demo.replay import Answer
from demo.tally import ClientSummary, Outcome, Tally

WIDTH = 100  # readable on any screen
PLAIN_INTERVAL_S = 3.0  # between two lines of progress without a terminal

_INDENT = 3
_HIDDEN_HEADERS = {"server", "date", "connection", "content-length", "vary", "demo-would-deny", "demo-reuse"}


class Display:
    """Writes to standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._console.width = min(WIDTH, self._console.width) if self._is_live else WIDTH

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def title(self, text: str) -> None:
        """Show the title."""
        self._console.print(f"[bold]{text}[/]")

    def section(self, number: int, title: str, *lines: str) -> None:
        """Begin a section."""
        self._console.print(f"\n[bold cyan]{number}  {title}[/]")
        for line in lines:
            self.line(line)

    def line(self, text: str) -> None:
        """Show a line, which may hold markup of rich."""
        self._print(Text.from_markup(text))

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names and values in two columns."""
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(f"[dim]{name}[/]", value)
        self._print(table)

    @contextmanager
    def progress(self, tally: Tally, call_count: int, *, over: str) -> Iterator["ReplayProgress"]:
        """Show a replay while it runs, then its result."""
        shown = ReplayProgress(tally, call_count, over=over)
        if not self._is_live:
            shown.plain = self._console
            yield shown
            shown.is_done = True
            self._console.print(shown)
            return
        with Live(shown, console=self._console, refresh_per_second=8):
            yield shown
            shown.is_done = True

    def answer(self, answer: Answer) -> None:
        """Show an HTTP answer as a client receives it."""
        text = Text(f"HTTP/1.1 {answer.status} {answer.reason}", style="bold")
        for name, value in answer.headers:
            if name.lower() not in _HIDDEN_HEADERS:
                text.append(f"\n{name}: ", style="not bold cyan").append(value, style="not bold")
        body = Table.grid(padding=(0, 1))
        fields = json.loads(answer.body)
        for position, (name, value) in enumerate(fields.items(), start=1):
            comma = "," if position < len(fields) else ""
            body.add_row(Text(f"{json.dumps(name)}:"), Text(json.dumps(value) + comma))
        self._print(Group(text, "", "{", _indented(body, left=2), "}"), left=6, above=1, below=1)

    def counts(self, rows: Sequence[tuple[str, int, int, int]]) -> None:
        """Show the counts of each client.

        Args:
            rows: Client, number of its documents, counted requests, count in MongoDB.
        """
        table = _table()
        table.add_column("client")
        for header in ("documents", "counted requests", "in MongoDB", ""):
            table.add_column(header, justify="right")
        for client_id, document_count, counted, stored in rows:
            difference = "[green]equal[/]" if counted == stored else f"[bold red]{stored - counted:+,}[/]"
            table.add_row(client_id, f"{document_count:,}", f"{counted:,}", f"{stored:,}", difference)
        self._print(table, above=1, below=1)

    def check(self, text: str, *, holds: bool) -> None:
        """Show the result of a check."""
        self.line(f"[bold green]ok[/]    {text}" if holds else f"[bold red]WRONG[/] {text}")

    def _print(self, content: RenderableType, *, left: int = _INDENT, above: int = 0, below: int = 0) -> None:
        self._console.print(_indented(content, left=left, above=above, below=below))


class ReplayProgress:
    """Counts of a running replay, rendered by rich."""

    def __init__(self, tally: Tally, call_count: int, *, over: str) -> None:
        self.is_done = False
        self.plain: Console | None = None
        self._tally = tally
        self._call_count = call_count
        self._over = over
        self._printed_s = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("requests   {task.fields[result]}")
        )
        self._task = self._bar.add_task("", total=call_count, result="")

    def update(self) -> None:
        """Read the tally again."""
        sent, over = self._tally.total(), self._tally.total(Outcome.DENIED, Outcome.WOULD_DENY)
        reused = self._tally.total(Outcome.REUSED)
        new = sent - reused - self._tally.total(Outcome.DENIED)
        result = f"{new:,} new tokens   {reused:,} got theirs again   {over:,} {self._over}"
        if self.plain is None:
            self._bar.update(self._task, completed=sent, result=result)
        elif time.monotonic() - self._printed_s >= PLAIN_INTERVAL_S:
            self._printed_s = time.monotonic()
            self.plain.print(f"   {sent:,} of {self._call_count:,} requests, {result.replace('   ', ', ')}")

    def __rich__(self) -> Padding:
        table = replay_table(self._tally.clients(), over=self._over)
        return _indented(table if self.is_done else Group(table, "", self._bar), above=1)


def replay_table(clients: Sequence[ClientSummary], *, over: str) -> Table:
    """Return a table with the outcomes of each client's requests."""
    table = _table()
    for header in ("client", "grant"):
        table.add_column(header)
    for header in ("requests", "new tokens", "token again", over):
        table.add_column(header, justify="right")
    table.add_column("affected")
    for client in clients:
        counts = (client.request_count, client.new_count, client.reused_count, client.denied_count)
        table.add_row(client.client_id, client.grant_type, *(f"{count:,}" for count in counts), _affected(client))
    return table


def _affected(client: ClientSummary) -> str:
    if client.is_trusted:
        return "[green]trusted[/]"
    if client.user_count:
        return f"{client.over_users} of {client.user_count} users"
    return "the client" if client.denied_count or client.reused_count else "none"


def _indented(content: RenderableType, *, left: int = _INDENT, above: int = 0, below: int = 0) -> Padding:
    return Padding(content, (above, 0, below, left), expand=False)


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
