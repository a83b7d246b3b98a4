"""Where an answer leaves the application, and gets its quota headers.

Not on the response object, which would check each header when it is added and once more when it is copied for the
server: that would be nearly half of all that a decided request costs more.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.flask_authlib.request_state import QUOTA
from oauth_ratelimit.flask_authlib.responses import Headers

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def with_quota(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    """
    Return a WSGI application (PEP 3333) whose answers have the headers that were noted in the request's environment.
    """

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        quota: Headers = []
        outer = environ.get(QUOTA)
        environ[QUOTA] = quota  # its own: applications within each other each have theirs

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            headers = [*headers, *quota]
            if exc_info is None:  # not every middleware knows the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        try:
            return wsgi_app(environ, start)
        finally:
            if outer is not None:
                environ[QUOTA] = outer

    return answer
