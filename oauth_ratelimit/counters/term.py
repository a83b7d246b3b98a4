"""Terms of office: of the processes that count in one table, one at a time synchronises it with the store.

It is elected in the table, for a term that ends when another process takes over: because this one has ended, has
resigned after failures, or has not shown itself for too long. Each change by the synchronising process is a transaction
that begins with its term. So one that was stopped meanwhile changes nothing when it comes back.
"""

import secrets
import sqlite3
from typing import Any

from oauth_ratelimit.process.identity import has_ended, identity_of

TERM_SCHEMA = """
    writer TEXT,                              -- name of this table in documents
    writer_count INTEGER NOT NULL DEFAULT 1,  -- the most instances that were seen on one key, this one included
    term INTEGER NOT NULL DEFAULT 0,          -- raised whenever another process takes over
    holder TEXT,                              -- process that has the term; NULL if it has resigned
    beat REAL NOT NULL DEFAULT 0,             -- when it showed itself last, by the clock that is never set
    synced REAL,                              -- end of the last full cycle without an error, by the same clock
    progress INTEGER,                         -- how far the store's state has come that the rows go by; NULL if unknown
    clock TEXT                                -- last measurement of the store's clock; NULL without one
"""
WRITES_PER_TERM = 2**32

_KINDS = (str | None, int, int, str | None, float, float | None, int | None)  # of the first columns


class TermOver(Exception):
    """Another process synchronises the table."""


class Term:
    """Part of one process in the election of one table. All methods need a transaction, and raise errors of SQLite."""

    def __init__(self) -> None:
        self.is_held = False  # as far as this process knows
        self.writer = ""  # name of the table in documents, known from the first claim on
        self.writer_count = 1  # the most instances that were seen on one key by any process, at the last claim
        self.synced_s: float | None = None  # end of the last full cycle without an error, of any process
        self.progress: int | None = None  # how far the store's state had come that the rows went by, at the last claim
        self.clock: str | None = None  # last measurement of the store's clock, at the last claim
        self._number = 0
        self._write_count = 0
        # A process may have several tables with one file. It may not be able to look at itself again.
        self._own = f"{identity_of()} {secrets.token_hex(4)}"

    @property
    def held(self) -> tuple[str, int] | None:
        """Holder and number of the term if this process holds it, as far as it knows; else None."""
        return (self._own, self._number) if self.is_held else None

    def claim(
        self,
        connection: sqlite3.Connection,
        now_s: float,
        *,
        patience_s: float,
        writer_count: int,
        is_ending: bool = False,
        only_looks: bool = False,
    ) -> bool:
        """Take over unless another process holds the term, and return whether this one does.

        With ``only_looks`` return whether it would, which needs no transaction.

        One that has not shown itself for ``patience_s`` does not hold it any more; with ``is_ending`` neither does one
        that is stopped, because this one cannot wait. ``writer_count`` is the most instances that this process has seen
        on one key.
        """
        shown = "SELECT writer, writer_count, term, holder, beat, synced, progress, clock FROM host"
        found: tuple[Any, ...] = connection.execute(shown).fetchone() or (None,) * 8  # without its row it is damaged
        _check(*found[:-1])
        writer, known_writer_count, number, holder, beat_s, synced_s, self.progress, self.clock = found
        self.writer_count = max(writer_count, known_writer_count)
        is_own = holder == self._own and number == self._number
        is_free = holder is None or not 0 <= now_s - beat_s <= patience_s
        is_free = is_free or has_ended(holder.rpartition(" ")[0], or_is_stopped=is_ending)
        self.is_held = self.is_held and is_own
        self.writer = writer or secrets.token_hex(6)  # not SQLite's random numbers, which forks of a process share
        if not is_own:
            # Without it if nobody has tried for long, as before a restart.
            self.synced_s = synced_s if now_s - beat_s <= 2 * patience_s else None
        if only_looks or not (is_own or is_free):
            return is_own or is_free
        self.is_held = True
        if not is_own:
            self._number, self._write_count = number + 1, 0
        values = self.writer, self.writer_count, self._number, self._own, now_s, self.synced_s
        connection.execute(
            "UPDATE host SET writer = ?, writer_count = ?, term = ?, holder = ?, beat = ?, synced = ?", values
        )
        return True

    def keep(self, connection: sqlite3.Connection, now_s: float, progress: int | None, clock: str | None) -> None:
        """Show that this process is there, how far the state has come that it has seen, and the store's clock.

        Raises ``TermOver`` if another one has taken over.
        """
        shown = "UPDATE host SET beat = ?, progress = coalesce(?, progress), clock = coalesce(?, clock) WHERE term = ?"
        kept = connection.execute(shown, (now_s, progress, clock, self._number))
        if not self.is_held or kept.rowcount != 1:
            self.is_held = False
            raise TermOver

    def resign(self, connection: sqlite3.Connection) -> None:
        """Leave the term to another process."""
        connection.execute("UPDATE host SET holder = NULL WHERE term = ? AND ?", (self._number, self.is_held))
        self.is_held = False

    def next_write_number(self) -> int:
        """Return a number that no write of this table has had, higher than those before."""
        self._write_count += 1
        return self._number * WRITES_PER_TERM + self._write_count


def _check(*values: object) -> None:
    """Raise the error of a damaged file if columns of ``TERM_SCHEMA`` hold what was never written there."""
    if not all(isinstance(value, kinds) for value, kinds in zip(values, _KINDS, strict=True)):
        raise damage("the table of the host is damaged")


def damage(reason: str) -> sqlite3.DatabaseError:
    """Return the error of a damaged file."""
    found = sqlite3.DatabaseError(reason)
    found.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return found
