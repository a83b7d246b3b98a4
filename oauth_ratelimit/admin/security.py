"""Security of the admin page: authorisation, response headers, protection against cross-site requests.

A change has to pass three checks. Each stops a request that another site makes in an operator's browser:

- It is JSON. A form cannot send JSON, and a script of another site needs a CORS preflight, which we never answer.
- It comes from this site by ``Sec-Fetch-Site``, or by ``Origin`` where browsers do not send that (over plain HTTP).
- It carries a CSRF token from a page that this operator has opened. The token is signed with the application's secret
  key for operator and time, so the server keeps nothing and every instance accepts it.
"""

from collections.abc import Callable
from hashlib import sha256

from flask import Request, Response
from itsdangerous import BadSignature, TimestampSigner
from werkzeug.wrappers import Response as AnyResponse

TOKEN_HEADER = "X-Ratelimit-Token"
SALT = "oauth_ratelimit: changes through the admin page"
TOKEN_LIFE_S = 12 * 3600
MAX_OPERATOR_LENGTH = 200
NO_SECRET_KEY = "Nothing can be changed here: app.secret_key is not set. It must be the same on all instances."

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Authorize = Callable[[], str | AnyResponse | None]
"""Returns the operator who sends the current request, None for anybody else, or a response to send instead."""


def authorized_operator(authorize: Authorize) -> str | AnyResponse:
    """Return the operator's name, which the history needs, or the response to anybody else."""
    operator = authorize()
    if operator is None or operator == "":
        return Response("You are not authorised to see this page.\n", status=403, mimetype="text/plain")
    if isinstance(operator, AnyResponse):
        return operator
    if not isinstance(operator, str):
        raise TypeError(f"authorize must return the operator's name, None or a response, got {type(operator).__name__}")
    return operator[:MAX_OPERATOR_LENGTH].encode("utf-8", "replace").decode()


class CsrfTokens:
    """CSRF tokens, signed with the application's secret key and bound to an operator."""

    def __init__(self, secret_key: str | bytes, *, clock: Callable[[], float]) -> None:
        self._secret_key, self._clock = secret_key, clock

    def issue(self, operator: str) -> str:
        return self._signer(operator).sign("").decode()

    def is_valid(self, token: str, operator: str) -> bool:
        """Return True if a token was issued to this operator and has not expired."""
        try:
            return self._signer(operator).unsign(token, max_age=TOKEN_LIFE_S) == b""
        except BadSignature:
            return False

    def _signer(self, operator: str) -> TimestampSigner:
        signer = TimestampSigner(self._secret_key, salt=f"{SALT}\0{operator}", digest_method=sha256)
        signer.get_timestamp = lambda: int(self._clock())  # type: ignore[method-assign]
        return signer


def rejection_reason(request: Request, tokens: CsrfTokens, *, operator: str) -> str | None:
    """Return the reason to reject a change; None if it is acceptable."""
    if request.mimetype != "application/json":
        return "A change must be application/json."
    if not _is_from_this_site(request):
        hint = "Behind a proxy, the application needs ProxyFix."
        return f"This request does not come from this site ({request.host}). {hint}"
    if not tokens.is_valid(request.headers.get(TOKEN_HEADER, ""), operator):
        return "This page has expired or belongs to another operator. Reload it."
    return None


def _is_from_this_site(request: Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("Origin") == f"{request.scheme}://{request.host}"
