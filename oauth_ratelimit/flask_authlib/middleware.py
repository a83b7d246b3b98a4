"""WSGI middleware that adds quota headers to responses, and settles the requests that are held until then.

Response objects check and copy each header, which would nearly double the cost of a limited request.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oauth_ratelimit.flask_authlib.request_state import RESPONSE_KEY, ResponseState
from oauth_ratelimit.flask_authlib.responses import Headers, with_headers

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def with_quota_headers(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    """Return a WSGI application (PEP 3333) that adds the headers of its decisions to its responses."""

    def respond(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        outer = environ.get(RESPONSE_KEY)
        state = environ[RESPONSE_KEY] = ResponseState()  # an application inside another has its own
        state.is_awaited = True

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            state.settle(is_failed=status.startswith("5"))
            for reuse in state.reuses:
                reuse.finish(status)
            ours = state.wait_headers if status.startswith("429") else state.quota_headers
            headers = with_headers(headers, ours) if ours else headers
            if exc_info is None:  # not every middleware accepts the third argument
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        is_failed = True
        try:
            response = wsgi_app(environ, start)
            is_failed = False
            return response
        finally:
            state.is_awaited = False
            state.settle(is_failed=is_failed)  # if no response has started; one that starts later counts
            if state.reuses or state.states:
                state.close()
            if outer is not None:
                environ[RESPONSE_KEY] = outer

    return respond
