"""Background work of one process."""
