"""Recorded traffic through any algorithm: what a limit would do, and how far each algorithm is from an exact log.

::

    recording.py     a file and how to read it
    source.py        its lines: gzip or plain, any size, bad lines counted
    formats.py       a line -> Row: CSV, JSON lines, access logs
    times.py         how moments are written
    rows.py          rows in the order of time, a batch at a time
    algorithms.py    fixed window, exact log, token bucket, GCRA, sliding window counter
    fleet.py         several instances with a sync interval; fleet_key.py, the sliding window counter on them
    tally.py         decisions against an exact log: wrongly allowed, wrongly denied, peak
    replay.py        the same rows through every contender
    scene.py         what a picture shows: estimates and exact counts over time
    picture.py       draws it, with matplotlib
"""
