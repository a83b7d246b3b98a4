"""Admin page for operators: traffic, usage of limits, explanations and overrides. Off unless an application adds it.

::

  blueprint.py    routes, authorisation and responses
  security.py     response headers, CSRF tokens, checks of changes
  cache.py        bounded and cached reads from MongoDB; what an outage means
  history.py      requests of all clients over time: sums in memory, read incrementally
  params.py       arguments of queries, checked
  api.py          queries: status, top, client, overrides, denial
  verdict.py      query: what is denied now, and the state of the whole
  traffic.py      queries: requests over time, the table of clients
  client_use.py   last hour of one client, and the verdict on it
  statistics.py   query: recorded traffic of one client in a day
  what_if.py      queries: effect of another limit, proposed limits
  form.py         form of an override: present values, all errors at once
  changes.py      changes: preview, apply and remove overrides
  preview.py      effect of an override before it is applied
  templates/      pages without content; scripts in static/ fetch it
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
