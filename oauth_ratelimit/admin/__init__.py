"""Admin page for operators: traffic, usage of limits, explanations and overrides. Off unless an application adds it.

::

  blueprint.py    routes, authorisation and responses
  security.py     response headers, CSRF tokens, checks of changes
  params.py       arguments of queries, checked
  cache.py        bounded and cached reads from MongoDB
  history.py      requests over time, read incrementally and kept in memory
  sums.py         the columns of numbers that they are kept in
  api.py          queries: status, top, client, overrides, denial
  verdict.py      query: the first line of the overview
  traffic.py      queries: requests over time, the table of clients
  client_use.py   the verdict on a client
  client_day.py   query: recorded traffic of a client, and the letter to its owner
  what_if.py      queries: effect of another limit, proposed limits
  form.py         the form of an override: present values, and what was sent
  changes.py      changes: preview, apply and remove overrides
  preview.py      effect of an override before it is applied
  templates/      pages without content; scripts in static/ fetch it
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
