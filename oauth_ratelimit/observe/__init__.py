"""Log events, metrics, statistics and records of denials.

::

  observer.py         decision -> metrics, statistics, the current trace, callbacks of the application
  metric_catalog.py   names, types and labels of all metrics
  metrics.py          events of the limiter -> metrics, through prometheus.py and otel.py
  statistics.py       decision -> counts by client and minute (minute.py) -> store
  events.py           denial -> log, within a budget
  denials.py          denial -> record in the store, for explain --id
  lost_records.py     number of records that never reach the store
"""
