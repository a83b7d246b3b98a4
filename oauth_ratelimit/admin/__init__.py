"""
The operators' page: who is close to a limit, what enforcing would do, and overrides. Off unless an application has it.

::

  blueprint.py    who is let in, and which request goes where
  protection.py   headers, tokens, where a change may come from
  reading.py      how MongoDB is read without keeping token requests waiting
  api.py          what the page asks for
  changes.py      overrides; preview.py, what they would do
  templates/      the pages without their content, which static/ fetches
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
