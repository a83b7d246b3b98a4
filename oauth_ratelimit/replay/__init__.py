"""Replay of recorded traffic: effect of a limit, and errors of each algorithm against an exact log.

::

    run.py           replay of the same rows with several algorithms
    accuracy.py      errors against an exact log: wrongly allowed, wrongly denied, peak
    algorithms.py    fixed window, exact log, token bucket, GCRA, sliding-window counter
    fleet.py         the sliding-window counter on several instances with a sync interval
    source.py        lines of a file: plain or gzip, of any size, bad lines counted
    formats.py       rows from lines of CSV, JSON and access logs, sorted by time
    scene.py         lines of a picture: exact counts and estimates over time
    plot.py          drawing with matplotlib
"""
