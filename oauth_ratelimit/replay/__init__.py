"""Recorded traffic replayed through algorithms, and the distance of each from an exact log.

::

    formats.py       a line -> Row: CSV, JSON lines, access logs
    source.py        a file and its rows: gzip or plain, any size, in the order of time
    algorithms.py    fixed window, exact log, token bucket, GCRA, sliding window counter
    fleet.py         the sliding window counter on several instances with a sync interval
    accuracy.py      wrongly allowed, wrongly denied and peak, by an exact log
    run.py           the same rows through every contender
    chart_data.py    estimates and exact counts over time
    plot.py          a chart of them, with matplotlib
"""
