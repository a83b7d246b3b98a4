"""Counters of one process or host: what a request reads and changes."""
