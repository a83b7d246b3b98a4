"""Building blocks of every background part: yielding, forks, logs, deadlines."""
