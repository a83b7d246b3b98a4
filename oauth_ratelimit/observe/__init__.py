"""What operators see: events, metrics, statistics.

::

  events.py      a denial -> the log, within budget.py
  denials.py     logged denials -> MongoDB, for explain --id
  observer.py    a decision -> statistics, meters, hooks
  minute.py      one minute of a process; statistics.py gathers them, outbox.py takes them to MongoDB
  grants.py      what a grant type is called there
  meter.py       what meters are told; metrics.py for Prometheus, otel.py for OpenTelemetry, labels.py for both
"""
