"""WSGI middleware that adds quota headers to responses.

Response objects check and copy each header, which would nearly double the cost of a limited request.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.flask_authlib.request_state import QUOTA_KEY, STATES_KEY
from oauth_ratelimit.flask_authlib.responses import Headers
from oauth_ratelimit.flask_authlib.token_reuse import REUSES_KEY, TokenReuse

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def with_quota_headers(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    """Return a WSGI application (PEP 3333) that adds the headers collected in the environment to its responses."""

    def respond(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        quota_headers: Headers = []
        outer = environ.get(QUOTA_KEY)
        environ[QUOTA_KEY] = quota_headers  # an application inside another has a list of its own
        reuses: list[TokenReuse] = []
        outer_reuses = environ.get(REUSES_KEY)
        environ[REUSES_KEY] = reuses

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            headers = [*headers, *quota_headers]
            for reuse in reuses:
                reuse.finish(status)
            if exc_info is None:  # not every middleware accepts the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        try:
            return wsgi_app(environ, start)
        finally:
            environ[REUSES_KEY] = outer_reuses
            for reuse in reuses:
                reuse.release()
            if outer is None:
                # The grant refers to the environment, and a denial's traceback to the state: with either of them, only
                # the garbage collector could free the request.
                for state in environ.pop(STATES_KEY, {}).values():
                    state.close()
            else:
                environ[QUOTA_KEY] = outer

    return respond
