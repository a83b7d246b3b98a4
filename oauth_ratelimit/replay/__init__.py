"""Replay of recorded traffic: denials under a configuration, and errors of each algorithm against an exact log.

::

    formats.py       rows from lines of CSV, JSON and access logs
    source.py        a file, plain or gzipped, and its rows sorted by time
    configured.py    denials under a configuration, decided by the limiter itself
    algorithms.py    fixed window, exact log, token bucket, GCRA, sliding window counter
    fleet.py         the sliding window counter on several instances with a sync interval
    accuracy.py      errors against an exact log: wrongly allowed, wrongly denied, peak
    run.py           the same rows replayed with every algorithm
    chart_data.py    estimates and exact counts over time
    plot.py          the chart, drawn with matplotlib
"""
