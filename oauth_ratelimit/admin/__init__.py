"""Admin page for operators: traffic, usage of limits, explanations and overrides. Off unless an application adds it.

::

  blueprint.py    routes, authorisation and responses
  security.py     response headers, CSRF tokens, checks of changes
  cache.py        bounded and cached reads from MongoDB
  api.py          queries: status, top, client, overrides, denial
  traffic.py      query: requests over time
  statistics.py   queries over recorded statistics: what-if, one client's traffic
  changes.py      changes: preview, apply and remove overrides
  preview.py      effect of an override before it is applied
  templates/      pages without content; scripts in static/ fetch it
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
