"""An application that takes credentials in other forms than Authlib, and writes down what it checks."""

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.integrations.flask_oauth2.requests import FlaskOAuth2Request
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc9101 import JWTAuthenticationRequest
from flask import Flask, request
from joserfc import jwt
from joserfc.jwk import OctKey
from werkzeug.test import TestResponse

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import Clock
from testbed.oauth_server.models import Client as RegisteredClient
from testbed.oauth_server.models import User
from tests.support.apps import app_limiter_of
from tests.support.guarded import HOME, WINDOW_S
from tests.support.limiters import known_keys

LIMIT, ADDRESS_LIMIT = 3, 10
MANY = 3 * ADDRESS_LIMIT
LIMITS = {"user": LIMIT, "client": LIMIT, "client_address": ADDRESS_LIMIT, "address": ADDRESS_LIMIT}
SECRET = "the secret of a client that signs its requests"
RIGHT = "right"
REDIRECT_URI = "http://localhost/callback"


class Client(RegisteredClient):
    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "own" or RegisteredClient.check_endpoint_auth_method(self, method, endpoint)


PUBLIC = Client("public", redirect_uris=(REDIRECT_URI,), response_types=("token",))
CONFIDENTIAL = Client("confidential", SECRET, redirect_uris=(REDIRECT_URI,), response_types=("code",))
CLIENTS = {client.client_id: client for client in (PUBLIC, CONFIDENTIAL)}
KEY = OctKey.import_key(b"the key of the server itself")


class Locked(Exception):
    """Raised for a wrong password, and answered with 423."""


class Request(FlaskOAuth2Request):  # type: ignore[misc]
    """Takes its fields from JSON, or from a signed object in it."""

    form = property(lambda self: self.fields)

    def __init__(self, http_request: Any) -> None:
        super().__init__(http_request)
        sent = http_request.get_json(silent=True) or {}
        if "signed" in sent:
            sent = jwt.decode(sent["signed"], KEY).claims
        self.fields = {**http_request.values, **sent}
        self.payload = BasicOAuth2Payload(self.fields)


class Server(AuthorizationServer):  # type: ignore[misc]
    def create_oauth2_request(self, _request: Any) -> Request:
        return Request(request)


class PasswordGrant(grants.ResourceOwnerPasswordCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("none",)


class ClientCredentialsGrant(grants.ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("own", "client_secret_post", "none")


class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
    def save_authorization_code(self, code: str, oauth_request: Any) -> None:
        """Forget it."""


@dataclass
class AnyForm:
    """The application. ``on_wrong`` is what its check of a password does if the password is wrong."""

    clock: Clock
    app: Flask
    on_wrong: Callable[[], Any] = lambda: None
    checked: list[str] = field(default_factory=list)  # names of users and clients, once for each password and secret

    def authenticate_user(self, username: str, password: str) -> User | None:
        self.checked.append(username)
        return User(username, RIGHT) if password == RIGHT else self.on_wrong()

    def is_secret(self, client: Client, given: str | None) -> bool:
        self.checked.append(client.client_id)
        return client.client_secret is not None and given == client.client_secret

    def send(self, path: str = "/token", *, address: str = HOME, **options: Any) -> TestResponse:
        return self.app.test_client().post(path, environ_base={"REMOTE_ADDR": address}, **options)

    def login(self, form: str = "json", password: str = "wrong", **options: Any) -> TestResponse:
        fields = {"grant_type": "password", "client_id": "public", "username": "alice", "password": password}
        return self.send(**PASSWORD_FORMS[form](fields), **options)

    def visit(self, *, address: str = HOME, headers: Any = None, **query: str) -> TestResponse:
        environ = {"REMOTE_ADDR": address}
        return self.app.test_client().get("/authorize", query_string=query, environ_base=environ, headers=headers)

    @property
    def key_count(self) -> int:
        guard = app_limiter_of(self.app).guard()
        assert guard is not None
        assert guard.limiter is not None
        return len(known_keys(guard.limiter))


PASSWORD_FORMS: Mapping[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "form": lambda fields: {"data": fields},
    "query": lambda fields: {"query_string": fields},
    "json": lambda fields: {"json": fields},
    "signed object": lambda fields: {"json": {"signed": jwt.encode({"alg": "HS256"}, fields, KEY)}},
    "json beside a form": lambda fields: {"json": fields, "query_string": {"username": "bob", "client_id": "other"}},
}


@contextmanager
def any_form(
    settings: Mapping[str, Any] | None = None,
    *,
    server_type: type[Server] = Server,
    change: Callable[[Any], Any] = lambda grant: grant,
    method: Callable[[AnyForm], Callable[[Any, Any], Any]] | None = None,
) -> Iterator[AnyForm]:
    """Yield the application. ``change`` changes a grant before it is registered, ``method`` authenticates clients."""
    app = Flask("any-form")
    site = AnyForm(Clock(), app)
    server = server_type(app, query_client=lambda name: CLIENTS.get(name), save_token=lambda *_: None)
    app.extensions["authorization_server"] = server
    app.extensions["site"] = site

    class Grant(PasswordGrant):
        def authenticate_user(self, username: str, password: str) -> User | None:
            return site.authenticate_user(username, password)

    class RequestObject(JWTAuthenticationRequest):  # type: ignore[misc]
        get_server_metadata = staticmethod(dict)
        get_client_require_signed_request_object = staticmethod(lambda _client: False)

        def resolve_client_public_key(self, client: Client) -> dict[str, str]:
            site.checked.append(client.client_id)
            secret = base64.urlsafe_b64encode((client.client_secret or "").encode()).rstrip(b"=")
            return {"kty": "oct", "k": secret.decode()}

    def own_method(query_client: Any, oauth_request: Any) -> Client | None:
        name, secret = (oauth_request.fields.get(each) for each in ("id", "secret"))
        client = query_client(name) if name else None
        return client if client and site.is_secret(client, secret) else None

    def authorize() -> Any:
        user = User("alice", RIGHT)
        try:
            grant = server.get_consent_grant(end_user=user)
        except Exception as error:  # noqa: BLE001
            return server.handle_error_response(None, error)
        return server.create_authorization_response(grant_user=user, grant=grant)

    for grant in (Grant, ClientCredentialsGrant, grants.ImplicitGrant, CodeGrant):
        server.register_grant(change(grant))
    server.register_client_auth_method("own", own_method if method is None else method(site))
    server.register_extension(RequestObject())
    app.add_url_rule("/token", "token", server.create_token_response, methods=["POST"])  # before the hooks are added
    app.add_url_rule("/authorize", "authorize", authorize)
    app.register_error_handler(Locked, lambda _: ({}, 423))
    limits = {kind: [{"limit": limit, "window": WINDOW_S}] for kind, limit in LIMITS.items()}
    app.config["OAUTH_RATELIMIT_CONFIG"] = {"guard": {"mode": "enforce", "limits": limits}, **(settings or {})}
    OAuthRateLimit(app, server, clock=site.clock)
    try:
        yield site
    finally:
        app_limiter_of(app).close()
