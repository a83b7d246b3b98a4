"""
Where a request enters the application, and its answer leaves it with the quota headers.

Not on the response object, which would check each header when it is added and once more when it is copied for the
server: that would be nearly half of all that a decided request costs more.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask

from oauth_ratelimit.edge.mark import EXTENSION, MARK, Gate, Mark, current_mark
from oauth_ratelimit.edge.response import Headers

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def marking(app: Flask) -> "WSGIApplication":
    """
    Return an application's ``wsgi_app`` (PEP 3333) that marks each request, and tells in its answer what was decided.
    """
    wsgi_app = app.wsgi_app

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        gate: Gate | None = app.extensions.get(EXTENSION)
        if gate is None:  # no longer protected
            return wsgi_app(environ, start_response)
        mark = environ[MARK] = Mark(gate)

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            headers = [*headers, *mark.quota]
            if exc_info is None:  # not every middleware knows the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        token = current_mark.set(mark)
        try:
            return wsgi_app(environ, start)
        finally:
            current_mark.reset(token)  # the one of the application that has called this one, if any

    return answer
