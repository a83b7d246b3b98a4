"""Background synchronisation with the store: cycle, flush, pull, schedule and time."""
