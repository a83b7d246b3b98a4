"""Building blocks of every background part: yielding, forks, waiting, logs, deadlines."""
