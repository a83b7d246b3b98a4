"""The background work of one process."""
