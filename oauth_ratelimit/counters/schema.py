"""Tables of a host: rows of keys, guesses, and what all its processes share. How to wait while others hold the lock."""

import sqlite3
import time
from random import SystemRandom

from oauth_ratelimit.counters.host_place import LAYOUT, UnusableFile
from oauth_ratelimit.counters.term import TERM_SCHEMA

SHORTEST_NAP_S = 0.0002
LONGEST_NAP_S = 0.001
SCHEMA = f"""
CREATE TABLE rows (
    name TEXT PRIMARY KEY,                    -- client, user and scope, as JSON
    hits BLOB NOT NULL DEFAULT x'',           -- hits that decisions use, with the horizons of their series
    unsent BLOB,                              -- of them, those that are in no write; NULL if there are none
    change INTEGER NOT NULL DEFAULT (random() >> 2),  -- raised with each change; from another number on if made anew
    writer_count INTEGER NOT NULL DEFAULT 0,  -- instances that write the document, this one included; 0: never read
    is_asked INTEGER NOT NULL DEFAULT 0,      -- a request came since the last cycle that took the row
    due REAL NOT NULL,                        -- when a full cycle takes it; times go by a clock that is never set
    urgent REAL,                              -- when it is synchronised at once; NULL: not before ``due``
    requested REAL NOT NULL,                  -- time of the last cycle that found a request, by the limiter's clock
    taken BLOB,                               -- hits that were taken back, because the server failed; NULL if none
    held BLOB,                                -- hits of ``hits`` whose response is not known yet; NULL if none
    attempt TEXT,                             -- the write that is under way, or whose outcome is unknown, as JSON
    version INTEGER,                          -- of the document as last known; NULL without one, or if it was not read
    mark INTEGER,                             -- number of this writer's last write in it
    is_stale INTEGER NOT NULL DEFAULT 0,      -- it has probably changed, so it is read before the next write
    read REAL,                                -- time of the last read; NULL if it was never read, or must be
    known REAL,                               -- time at which the last read or write has shown the hits of others
    newest INTEGER NOT NULL DEFAULT 0,        -- start of the newest frame in it, that of a write under way included
    horizons BLOB NOT NULL DEFAULT x'',       -- of its series
    prunable TEXT                             -- parts of it that the next writes remove, as JSON
);
CREATE INDEX due ON rows (due);
CREATE INDEX urgent ON rows (urgent) WHERE urgent IS NOT NULL;
CREATE TABLE guesses (       -- passwords and secrets that are being checked
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,      -- process that checks it
    since REAL NOT NULL,      -- by the clock that is never set
    rows TEXT NOT NULL        -- where it counts: names, each with its frames, as JSON
);
CREATE TABLE host (
    key_count INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    user_id INTEGER,
    boot_id TEXT,
    identity TEXT,
    overrides BLOB,       -- those that a process has read last; NULL if none has
    overrides_read REAL,  -- when they were known to be the present ones, by the clock that is never set
    {TERM_SCHEMA}
);
INSERT INTO host (key_count, layout) VALUES (0, {LAYOUT});
CREATE TRIGGER one_more AFTER INSERT ON rows BEGIN UPDATE host SET key_count = key_count + 1; END;
CREATE TRIGGER one_less AFTER DELETE ON rows BEGIN UPDATE host SET key_count = key_count - 1; END;
"""
# Times of rows go by a clock that starts with the machine. The image of a machine may have been started twice: each is
# a writer of its own. What was to be sent when the machine went down is lost: the disk may not know that it was sent.
AFTER_BOOT = (
    "UPDATE rows SET due = 0, urgent = NULL, unsent = NULL, attempt = NULL, version = NULL, mark = NULL",
    "UPDATE host SET writer = NULL, holder = NULL, beat = 0, synced = NULL, clock = NULL, overrides_read = NULL",
)


class MemoryConnection(sqlite3.Connection):
    """Connection to a table of this process alone. Nobody needs to close it: from 3.13 on Python warns of others."""

    def __del__(self) -> None:
        self.close()


def open_in_memory() -> sqlite3.Connection:
    """Return a table of this process alone."""
    connection = MemoryConnection(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA)
    return connection


def is_busy(exc: BaseException) -> bool:
    """Return True if another connection holds the lock."""
    return code_of(exc) == sqlite3.SQLITE_BUSY


def nap() -> None:
    """Wait a moment for the lock. SQLite's own steps are milliseconds."""
    time.sleep(SystemRandom().uniform(SHORTEST_NAP_S, LONGEST_NAP_S))


def patiently(connection: sqlite3.Connection, statement: str, until_s: float) -> object:
    """Run a statement that waits for the lock, and return the first value that it found."""
    while True:
        try:
            found = connection.execute(statement).fetchone()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
            if time.monotonic() > until_s:
                raise UnusableFile("another process holds its lock") from None
            nap()
        else:
            return found and found[0]


def code_of(exc: BaseException) -> int:
    """Return SQLite's primary result code; 0 for an error of another kind."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF
