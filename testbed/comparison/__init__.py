"""Comparison of algorithms on recorded traffic, for docs/accuracy.md and the benchmarks.

::

    run.py           the same rows replayed with every algorithm
    algorithms.py    fixed window, exact log, token bucket, GCRA
    accuracy.py      errors against an exact log: wrongly allowed, wrongly denied, peak
    chart.py         estimates and exact counts over time, drawn with matplotlib
"""
