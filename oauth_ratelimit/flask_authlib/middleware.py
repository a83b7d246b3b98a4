"""WSGI middleware that adds quota headers to responses.

Response objects check and copy each header, which would nearly double the cost of a limited request.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.flask_authlib.responses import Headers, QuotaHeaders

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from oauth_ratelimit.flask_authlib.request_state import RequestState
    from oauth_ratelimit.flask_authlib.token_reuse import TokenReuse

RESPONSE_KEY = "oauth_ratelimit.response"  # in the WSGI environment, because two requests may share flask.g


class ResponseState:
    """State of an HTTP request that its decisions leave for the response."""

    quota_headers: QuotaHeaders = ()
    # Tokens that are given out again, or kept once the response is a 200
    reuses: "tuple[TokenReuse, ...]" = ()
    # By application and endpoint
    states: "Mapping[tuple[object, str | None], RequestState]" = MappingProxyType({})
    is_awaited: bool = False  # True while the middleware waits for the response

    def close(self) -> None:
        """Free the request: the grant refers to it, and so does a denial's traceback, which only a collection finds."""
        for reuse in self.reuses:
            reuse.release()
        for state in self.states.values():
            state.close()
        self.states = {}


def with_quota_headers(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    """Return a WSGI application (PEP 3333) that adds the headers of its decisions to its responses."""

    def respond(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        outer = environ.get(RESPONSE_KEY)
        state = environ[RESPONSE_KEY] = ResponseState()  # an application inside another has its own
        state.is_awaited = True

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            for reuse in state.reuses:
                reuse.finish(status)
            headers = [*headers, *state.quota_headers]
            if exc_info is None:  # not every middleware accepts the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        try:
            return wsgi_app(environ, start)
        finally:
            state.is_awaited = False
            if state.reuses or state.states:
                state.close()
            if outer is not None:
                environ[RESPONSE_KEY] = outer

    return respond
