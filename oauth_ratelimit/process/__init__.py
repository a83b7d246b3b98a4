"""Building blocks of every background part: yielding, forks, throttled logs, deadlines."""
