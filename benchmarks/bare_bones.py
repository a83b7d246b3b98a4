"""The least that a limiter at this place can do, so that it is known what of our price is the place's own.

It stands before the same five steps of Authlib, counts in a dictionary at one of them and goes on at the others, and
adds the same five headers where the answer leaves the application. It knows no lock, two frames, no users, no
configuration, and no trouble: no grant that makes its own tokens, no failed authentication, no second decision.
"""

import time
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, Any

from flask import Flask, request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

FRAME_S = 60
LIMIT = 10**9
PLACE = "bare_bones.quota"
CONSTANT = (("RateLimit-Policy", f'"client";q={LIMIT};w={FRAME_S}'), ("X-RateLimit-Limit", str(LIMIT)))


def protect(app: Flask, server: Any) -> None:
    """Limit an Authlib server, hardly."""
    generate_token = server.generate_token
    counts: dict[str, list[int]] = {}  # by client: the frame, the hits of it, those of the one before

    def decided(
        grant_type: str,
        client: Any,
        user: Any = None,
        scope: Any = None,
        expires_in: Any = None,
        include_refresh_token: Any = True,
    ) -> Any:
        now_s = time.time()
        frame, passed_s = divmod(now_s, FRAME_S)
        state = counts.get(client.get_client_id())
        if state is None or state[0] != frame:
            state = counts[client.get_client_id()] = [int(frame), 0, state[1] if state else 0]
        state[1] += 1
        left = int(LIMIT - state[1] - state[2] * (FRAME_S - passed_s) / FRAME_S)
        if left < 0:
            raise PermissionError
        reset = str(ceil(2 * FRAME_S - passed_s))
        request.environ[PLACE] = [
            CONSTANT[0],
            ("RateLimit", f'"client";r={left};t={reset}'),
            CONSTANT[1],
            ("X-RateLimit-Remaining", str(left)),
            ("X-RateLimit-Reset", reset),
        ]
        return generate_token(grant_type, client, user, scope, expires_in, include_refresh_token)

    server.generate_token = decided
    _stand_before(server)
    app.wsgi_app = _with_headers(app.wsgi_app)  # type: ignore[method-assign]


def add_headers(app: Flask) -> None:
    """Give each answer of an application five headers that are always the same."""
    constant = [
        *CONSTANT,
        ("RateLimit", f'"client";r={LIMIT};t={FRAME_S}'),
        ("X-RateLimit-Remaining", str(LIMIT)),
        ("X-RateLimit-Reset", str(FRAME_S)),
    ]

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        environ[PLACE] = constant
        return with_headers(environ, start_response)

    with_headers = _with_headers(app.wsgi_app)
    app.wsgi_app = answer  # type: ignore[method-assign]


def _stand_before(server: Any) -> None:
    """Stand before four more steps, where a limiter has something to look at: whether a token was decided about, which
    endpoint it is, who failed.
    """
    inner_response, inner_grant = server.create_token_response, server.get_token_grant
    inner_authentication, inner_save = server.authenticate_client, server.save_token

    def create_token_response(request: Any = None) -> Any:
        return inner_response(request)

    def get_token_grant(request: Any) -> Any:
        return inner_grant(request)

    def authenticate_client(request: Any, methods: Any, endpoint: str = "token") -> Any:
        return inner_authentication(request, methods, endpoint)

    def save_token(token: Any, request: Any) -> Any:
        return inner_save(token, request)

    for step in (create_token_response, get_token_grant, authenticate_client, save_token):
        setattr(server, step.__name__, step)


def _with_headers(wsgi_app: "WSGIApplication") -> "WSGIApplication":
    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *environ.get(PLACE, ())], exc_info)

        return wsgi_app(environ, start)

    return answer
