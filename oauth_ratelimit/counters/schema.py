"""Tables of a host: rows of keys, guesses, and what all processes of the host have in common."""

from oauth_ratelimit.counters.host_place import LAYOUT
from oauth_ratelimit.counters.term import TERM_SCHEMA

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
