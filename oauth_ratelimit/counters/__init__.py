"""Counters in memory: what a request reads and changes."""
