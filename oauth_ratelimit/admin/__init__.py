"""Admin page for operators: traffic, usage of limits, explanations and overrides. Off unless an application adds it.

A page is parts, listed in ``blueprint.py``. A function returns the data of each, and a template renders them: first
with the page, then each time that ``static/page.js`` reads it anew.
"""

from oauth_ratelimit.admin.blueprint import admin_blueprint

__all__ = ["admin_blueprint"]
