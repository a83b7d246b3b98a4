"""Admin page for operators: traffic, usage of limits, explanations and overrides. Off unless an application adds it.

::

  blueprint.py    routes, authorisation and responses
  security.py     response headers, CSRF tokens, checks of changes
  cache.py        bounded and cached reads from MongoDB
  api.py          queries: status, top, overrides, denial; the list of all
  traffic.py      queries: first line of the overview, charts, table of clients
  client.py       queries: one client, its recorded day
  form.py         the form of an override: present values, and what was sent
  changes.py      changes: preview, apply and remove overrides
  templates/      pages without content; scripts in static/ fetch it
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
