"""Reuse of tokens: a client over a limit gets the token that it has, if it sends the same request again.

Two requests are the same if nothing but the credentials differs. What may differ is named here, and so is what may be
reused: everything else is denied.
"""

import json
import math
import re
import secrets
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import ref

from flask import request

from oauth_ratelimit.config import DenialSettings
from oauth_ratelimit.core.decision import Answer, Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import CLIENT_CREDENTIALS
from oauth_ratelimit.core.tier import Tier
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.token_cache import Issue, KeptToken, TokenCache

ASSERTION = "client_assertion"
CREDENTIALS = {  # parameters that may differ, by the method that has checked them; None: the header ``Authorization``
    "client_secret_basic": None,
    "client_secret_post": "client_secret",
    **dict.fromkeys(("client_assertion_jwt", "client_secret_jwt", "private_key_jwt"), ASSERTION),
}
SINGLE_USE = frozenset({"jti", "iat", "nbf", "exp"})  # claims of an assertion that may differ
# Attributes of a client that has them: what it may have in all, and what tells it from a later one of the same name.
RECORD = ("id", "client_id_issued_at", "client_secret", "scope", "client_metadata")
FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
SIMPLE = (str, int, float, bool, type(None))
# Variables that bind a token to a key or a certificate of the client, unless they say that there is none.
BINDING = re.compile(
    "^(?!SSL_SERVER).*(DPOP|CERT|X509|SPIFFE|ATTEST|(FINGER|THUMB)PRINT|SUBJECT|CLIENT_?(DN|S_DN|CN|SERIAL|VERIFY)"
    "|(SSL|TLS)_(CLIENT|ISSUER|CN|SERIAL)|MTLS|PEER|(^|[_-])DN$|VERIFIED|HTTPS_CC|TOKEN_BINDING|HTTP_SIGNATURE)",
    re.IGNORECASE,
)
# Headers and variables on which no token depends. All others are compared, the host and the path as they are: decoded,
# two paths may become one. A proxy may give a certificate any name, and pass on the host or path that is the issuer.
FREE = re.compile(
    "HTTP_(ACCEPT(_.*)?|USER_AGENT|CONNECTION|KEEP_ALIVE|CACHE_CONTROL|PRAGMA|T(E|RAILER)|EXPECT|DATE|DNT|PRIORITY|VIA|FORWARDED"
    "|TRANSFER_ENCODING|CONTENT_LENGTH|UPGRADE_INSECURE_REQUESTS|SEC_.*|AUTHORIZATION|CDN_LOOP"
    "|X_FORWARDED_(FOR|PORT|SERVER)|(X_|TRUE_|CF_|FASTLY_)?(REAL|CLIENT|CONNECTING)_IP(V6)?"
    "|CF_(RAY|VISITOR|IPCOUNTRY|WORKER)|TRACEPARENT|TRACESTATE|BAGGAGE|B3|(UBER|SENTRY)_TRACE(_ID)?|X_(B3|DATADOG|ENVOY)_.*"
    "|X_(CLOUD_TRACE_CONTEXT|AMZN_TRACE_ID|(REQUEST|QUEUE)_START|(REQUEST|CORRELATION|TRACE|SPAN|TRANSACTION)_?ID))"
    "|REMOTE_(ADDR|PORT|HOST)|CONTENT_(LENGTH|TYPE)|REQUEST_TIME(_FLOAT)?|UNIQUE_ID|SSL_SESSION_.*|[a-z][a-z0-9_]*[.].*"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]+>")  # of an object without a repr of its own
MAX_COMPARED = 32_768  # characters of a request; one that has more is not reused
UNBOUND = ("", "NONE", "0", None)  # of a certificate; any DPoP header is a proof
STRONGER = ("refresh_token", "id_token", "cnf")  # what an answer that is reused does not hold

_KEY = secrets.token_bytes(32)
_server_ids: dict[int, tuple[ref[Any], bytes]] = {}  # by ``id``, because different servers may be equal

_is_binding = lru_cache(maxsize=1000)(BINDING.search)
_is_free = lru_cache(maxsize=1000)(FREE.fullmatch)
_named: set[str] = set()  # attributes of clients that were named in the log


class ReuseRequest(NamedTuple):
    """Request for a token that may be given out again."""

    server: Any
    options: Mapping[str, Any]  # arguments of ``generate_token`` besides grant type, client and user
    grant: Any
    is_seen: bool  # True if the middleware sees the response that goes to the client


class TokenReuse:
    """The token of one request: one that was kept, or one that is being issued and may be kept.

    Args:
        scope: The scope that the client may have, sorted.
        found: The token that is given out again, or the issue of a new one.
        deny: Returns the error for another token above a limit; None within the limits.
    """

    def __init__(
        self, cache: TokenCache, scope: list[str], found: dict[str, Any] | Issue, deny: Callable[[], RateLimited] | None
    ) -> None:
        self._cache = cache
        self._scope = scope
        self._issue = found if isinstance(found, Issue) else None
        self._token: Any = None if isinstance(found, Issue) else found
        self._deny = deny
        self.is_reused = self._issue is None
        self.is_over_limit = deny is not None
        self._is_given = False
        self._is_saved = False
        self._confirmed: KeptToken | None = None

    def generate(self, generate: Callable[[], Any]) -> Any:
        """Return the token that is given out again, or a new one."""
        if self.is_reused and not self._is_given:
            self._is_given = True
            return dict(self._token)
        if self._token is not None:  # a second one in the same request
            self.release()
            if self._deny is not None:
                raise self._deny()
        self._token = generate()
        return self._token

    def is_saved_already(self, token: Any) -> bool:
        """Return True if a token is the one that is given out again. Raise for any other one in its place."""
        try:
            is_same = not self.is_reused or bool(dict.get(token, "access_token") == self._token["access_token"])
        except Exception:  # noqa: BLE001  # any object of the application
            is_same = False
        if self._deny is not None and not is_same:
            raise self._deny()
        return self.is_reused

    def note_saved(self, token: Any) -> None:
        """Note that the server has saved a token."""
        self._is_saved = token is self._token

    def confirm(self, response: Any) -> None:
        """Confirm the token if Authlib's response is a 200 that holds it, and nothing stronger."""
        if self._issue is None or not self._is_saved or getattr(response, "status_code", None) != 200:
            return
        answer = response.get_json(silent=True)
        if (
            isinstance(answer, dict)
            and isinstance(self._token, dict)
            and all(name in answer and answer[name] == value for name, value in self._token.items())
            and _is_reusable(answer, self._scope)
        ):
            self._confirmed = KeptToken(self._issue.begun_s, json.dumps(self._token).encode(), answer["expires_in"])

    def finish(self, status: str) -> None:
        """Keep a confirmed token if the response of the application is a 200."""
        self.release(self._confirmed if str(status).startswith("200") else None)

    def release(self, kept: KeptToken | None = None) -> None:
        """End the issue, unless it has ended, and keep its token if there is one to keep."""
        if self._issue is not None:
            self._cache.end(self._issue, kept)
            self._issue = None


def _is_reusable(token: Mapping[str, Any], scope: list[str]) -> bool:
    """Return True if a token has the granted scope, is a bearer token that expires, and comes with no other one."""
    granted = token.get("scope", " ".join(scope))
    return (
        str(token.get("token_type")).lower() == "bearer"
        and all(type(token[name]) is int for name in token if name.endswith("_in"))  # times from now
        and token.get("expires_in", 0) > 0
        and isinstance(token.get("access_token"), str)
        and isinstance(granted, str)
        and sorted(granted.split()) == scope
        and not any(token.get(name) for name in STRONGER)
        and "cnf" not in _claims_of(token["access_token"])
    )


def _claims_of(text: str) -> dict[str, Any]:
    """Return the claims of a signed JWT, whose signature is not checked here; none of any other text."""
    with suppress(ValueError, TypeError):
        _, payload, _ = text.split(".")
        return dict(json.loads(urlsafe_b64decode(payload + "==")))
    return {}


@lru_cache(maxsize=1000)
def _keeps(tiers: tuple[Tier, ...]) -> bool:
    """Return True if tokens that are issued within these limits are kept."""
    return any(tier.reuses and tier.is_enforced for tier in tiers)


class Reuser(NamedTuple):
    """Choice of the requests that get a token again. An error of the application's functions counts as no."""

    is_active: Callable[[dict[str, Any]], object] | None
    key_of: Callable[[Any], str] | None
    log_failure: Callable[[str, Exception], None]

    def answer(
        self,
        decision: Decision,
        cache: TokenCache,
        client: Any,
        client_id: str,
        asked: ReuseRequest,
        denial: DenialSettings,
    ) -> TokenReuse | None:
        """Return the token of a request, None if it is neither given out again nor kept. Sets ``decision.answer``."""
        is_over = decision.denial is not None
        keeps = _keeps(decision.tiers) and (not is_over or decision.allowed)
        if not (is_over or keeps or cache.follows(client_id)):
            return None  # most requests
        client_id = storable_name(client_id)
        reuses = decision.action == "reuse"
        try:
            allowed = client.get_allowed_scope(asked.options.get("scope"))
            scope = None if allowed is None else sorted(allowed.split())
            digest = None if scope is None else self._digest(client, asked, scope)
            if scope is None or digest is None:
                return None
            if not reuses and not keeps:
                if cache.note_request(client_id, digest, is_over=is_over):
                    decision.answer = Answer.REUSABLE
                return None
            deny = partial(RateLimited, decision, denial, grant_type=CLIENT_CREDENTIALS) if reuses else None
            found = self._find(cache, client_id, digest) if reuses else cache.begin(client_id, digest)
        except Exception as exc:  # noqa: BLE001  # foreign code, or a request that cannot be read
            if reuses or keeps:  # else it only measures what reuse would do
                self.log_failure("reuse_failed", exc)
            return None
        if found is None:
            return None
        reuse = TokenReuse(cache, scope, found, deny)
        if reuses:
            decision.answer = Answer.REUSED if reuse.is_reused else Answer.ISSUED
        return reuse

    def _find(self, cache: TokenCache, client_id: str, digest: bytes) -> dict[str, Any] | Issue | None:
        """Return a token to give out again, or the issue of a new one, or None."""
        for _ in range(2):  # one that is not active is dropped; another may have been issued meanwhile
            kept = cache.find(client_id, digest)
            if not isinstance(kept, KeptToken):
                return kept
            token: dict[str, Any] = json.loads(kept.text)
            if self.is_active is not None:
                with cache.asking() as has_turn:
                    if not has_turn:
                        return None
                    is_active = self._is_active(dict(token))
                if not cache.holds(client_id, digest, kept):
                    continue
            if self.is_active is None or is_active:
                left_s = cache.left_s(kept)
                if left_s >= 1:
                    age_s = math.ceil(kept.lifetime_s - left_s)
                    return token | {name: max(0, token[name] - age_s) for name in token if name.endswith("_in")}
            cache.drop(client_id, digest, kept)
        return None

    def _is_active(self, token: dict[str, Any]) -> bool:
        try:
            return self.is_active is not None and bool(self.is_active(token))
        except Exception as exc:  # noqa: BLE001  # foreign code
            self.log_failure("reuse_failed", RuntimeError(type(exc).__name__))  # its text may hold the token
            return False

    def _digest(self, client: Any, asked: ReuseRequest, scope: list[str]) -> bytes | None:
        """Return the digest of all that the token depends on, None if the token must not be given out again."""
        http_request = request._get_current_object()  # type: ignore[attr-defined,unused-ignore]
        if _size_of(http_request) > MAX_COMPARED:
            return None
        environ, oauth_request = http_request.environ, asked.grant.request
        method = str(getattr(oauth_request, "auth_method", ""))
        extra = "" if self.key_of is None else self.key_of(client)
        form, credential = http_request.form, CREDENTIALS.get(method)
        claims = _claims_of(form.get(ASSERTION, "")) if credential == ASSERTION else {}
        if (
            not asked.is_seen
            or oauth_request.client is not client
            or method not in CREDENTIALS
            or (credential == ASSERTION and not claims)
            or http_request.mimetype not in FORMS
            or http_request.files
            or not isinstance(extra, str)
            or not all(isinstance(value, SIMPLE) for value in asked.options.values())
            or getattr(environ.get("gunicorn.socket"), "getpeercert", bool)()  # of a client, to gunicorn itself
            or any(_is_binding(name) and (value not in UNBOUND or "DPOP" in name) for name, value in environ.items())
        ):
            return None
        record = {name: str(getattr(client, name, "")) for name in RECORD}
        for name, text in record.items():
            if ADDRESS.search(text):
                self._name(f"{type(client).__name__}.{name}")
                return None
        parts = (
            _id_of(asked.server),
            (str(client.get_client_id()), type(client).__qualname__),
            sorted(record.items()),
            (method, http_request.mimetype, environ.get("wsgi.url_scheme")),
            credential and environ.get("HTTP_AUTHORIZATION"),
            sorted((name, value) for name, value in environ.items() if isinstance(value, str) and not _is_free(name)),
            sorted((name, values[1:] if name == credential else values) for name, values in form.lists()),
            sorted((name, value) for name, value in claims.items() if name not in SINGLE_USE),
            (scope, sorted(asked.options.items())),
            extra,
        )
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), key=_KEY, digest_size=32).digest()

    def _name(self, attribute: str) -> None:
        """Log once that two requests are never known to be the same, because an object is shown by its address."""
        if attribute not in _named:
            _named.add(attribute)
            self.log_failure("reuse_failed", TypeError(f"{attribute} holds a value without a repr of its own"))


def _size_of(http_request: Any) -> int:
    """Return the number of characters in a request that may be compared."""
    fields = [part for name, values in http_request.form.lists() for part in (name, *values)]
    texts = [part for item in http_request.environ.items() for part in item if isinstance(part, str)]
    return sum(map(len, fields)) + sum(map(len, texts))


def _id_of(server: Any) -> bytes:
    """Return an id that no other server ever has."""
    key = id(server)
    if key not in _server_ids:
        _server_ids[key] = (ref(server, lambda _: _server_ids.pop(key, None)), secrets.token_bytes(16))
    return _server_ids[key][1]
