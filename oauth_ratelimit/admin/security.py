"""What keeps others out of the admin page: who may see it, who may change something, what a browser may do in it.

A change has to pass three checks, each of which stops a request that another site makes in an operator's browser:

- It is JSON. A form cannot send that, and a script of another site only after asking us first, which we never answer.
- The browser says that it comes from this very site: ``Sec-Fetch-Site``, or ``Origin`` where that is not sent (over
  plain HTTP). One that says neither is refused.
- It carries a token from a page that this operator has opened, which no other site can read. The token is signed with
  the application's secret key, bound to the operator and good for some hours, so that nothing is kept on the server
  and every instance knows it.
"""

import hmac
from collections.abc import Callable

from flask import Request, Response
from werkzeug.wrappers import Response as AnyResponse

TOKEN_HEADER = "X-Ratelimit-Token"
TOKEN_LIFE_S = 12 * 3600
MAX_OPERATOR_LENGTH = 200

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Authorize = Callable[[], str | AnyResponse | None]
"""Returns the name of the operator who sends the request at hand, None for anybody else, or what to answer instead."""


def operator_of(authorize: Authorize) -> str | AnyResponse:
    """Return the operator's name, or what to answer somebody who is none.

    Raises:
        TypeError: The application answered with something else. True is no name: changes are on record with one.
    """
    found = authorize()
    if found is None or found == "":
        return Response("You are not authorised to see this page.\n", status=403, mimetype="text/plain")
    if isinstance(found, AnyResponse):
        return found
    if not isinstance(found, str):
        raise TypeError(f"authorize must return the operator's name, None or a response, got {type(found).__name__}")
    return found[:MAX_OPERATOR_LENGTH].encode("utf-8", "replace").decode()


def protect(response: Response, *, is_static: bool) -> Response:
    """
    Return a response with the headers that bind the browser. What is shown is not kept, what is static is asked for.
    """
    response.headers.update(HEADERS)
    response.headers["Cache-Control"] = "no-cache" if is_static else "no-store"
    return response


class Tokens:
    """Makes and checks the tokens that changes carry.

    Args:
        secret_key: The application's; the same on all instances.
        clock: Tells the time, seconds since the epoch.
    """

    def __init__(self, secret_key: str | bytes, *, clock: Callable[[], float]) -> None:
        secret = secret_key.encode() if isinstance(secret_key, str) else secret_key
        self._key = hmac.digest(secret, b"oauth_ratelimit: changes through the admin page", "sha256")
        self._clock = clock

    def issue(self, operator: str) -> str:
        """Return a token for an operator."""
        issued_s = int(self._clock())
        return f"{issued_s}.{self._sign(issued_s, operator)}"

    def is_valid(self, token: str, operator: str) -> bool:
        """Return whether this operator was given this token, not too long ago."""
        issued, _, signature = token.partition(".")
        if not issued.isascii() or not issued.isdecimal() or len(issued) > 15:
            return False
        is_signed = hmac.compare_digest(
            self._sign(int(issued), operator).encode(), signature.encode("utf-8", "replace")
        )
        return is_signed and 0 <= int(self._clock()) - int(issued) <= TOKEN_LIFE_S

    def _sign(self, issued_s: int, operator: str) -> str:
        return hmac.new(self._key, f"{issued_s}\0{operator}".encode(), "sha256").hexdigest()


def why_refused(request: Request, tokens: Tokens | None, *, operator: str) -> str | None:
    """Return why a request must not change anything, None if it may."""
    if tokens is None:
        return "Changes need app.secret_key, the same on all instances; it is not set."
    if request.mimetype != "application/json":
        return "A change is sent as application/json."
    if not _is_from_this_site(request):
        return f"This does not come from this site ({request.host}). Behind a proxy, the application needs ProxyFix."
    if not tokens.is_valid(request.headers.get(TOKEN_HEADER, ""), operator):
        return "This page is too old, or was opened by somebody else. Load it again."
    return None


def _is_from_this_site(request: Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("Origin") == f"{request.scheme}://{request.host}"
