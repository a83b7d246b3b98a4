"""Log events, metrics, statistics and records of denials."""
