"""Search for the Authlib servers that the views of an application use."""

import sys
from collections.abc import Iterator
from inspect import unwrap
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask


def servers_used_by(app: Flask) -> list[Any]:
    """Return the servers that can issue tokens and that the views of an application seem to use.

    Authlib registers its servers nowhere, so they are looked for where a view usually has them: in its module, its
    closure or its object, and in the application's extensions. One that a view finds in another way is not seen.
    """
    values = list(app.extensions.values())
    modules: set[str] = set()
    for view in map(unwrap, app.view_functions.values()):
        modules.add(getattr(getattr(view, "view_class", view), "__module__", ""))
        values += _values_in(view)
    for name in modules & sys.modules.keys():
        values += list(vars(sys.modules[name]).values())
    servers = {id(value): value for value in values if issubclass(type(value), AuthorizationServer)}  # asks no proxy
    return [server for server in servers.values() if server._token_grants or server._authorization_grants]


def _values_in(view: Any) -> Iterator[Any]:
    """Yield what a view holds itself: its object, what that holds, and its closure."""
    owner = getattr(view, "__self__", None)
    yield owner
    yield from list(getattr(owner, "__dict__", {}).values())
    for cell in getattr(view, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue
