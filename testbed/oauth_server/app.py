# mypy: warn-return-any=False, disallow-subclassing-any=False
# Authlib ships no type information.
"""An OAuth 2 and OpenID Connect server on Flask and Authlib, for the demo, tests and benchmarks.

It is no template for production: /authorize and /device approve every request that names a user, without a login;
passwords and client secrets are plain text; plain HTTP is accepted.
"""

import os
import time
from collections.abc import Mapping
from os import PathLike
from typing import Any
from urllib.parse import urlsplit

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749.grants import ImplicitGrant
from authlib.oauth2.rfc7009 import RevocationEndpoint as BaseRevocationEndpoint
from authlib.oauth2.rfc7662 import IntrospectionEndpoint as BaseIntrospectionEndpoint
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint as BaseDeviceAuthorizationEndpoint
from flask import Flask, Response, abort, jsonify, request, url_for

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.admin import admin_blueprint
from testbed.oauth_server import grants
from testbed.oauth_server.database import database
from testbed.oauth_server.database import init_app as init_database
from testbed.oauth_server.grants import ISSUER, WITH_OR_WITHOUT_SECRET, WITH_SECRET
from testbed.oauth_server.models import DEVICE_POLL_INTERVAL_S, Client, DeviceCode, Token

LOOPBACK = ("127.0.0.1", "::1")


def create_app(
    database_path: str | PathLike[str],
    ratelimit_config: str | PathLike[str] | Mapping[str, Any] | None = None,
    mongo_uri: str | None = None,
) -> Flask:
    """Build the server over a database that ``testbed.oauth_server.database.seed`` has filled.

    Args:
        database_path: The SQLite file, shared by all instances.
        ratelimit_config: Path or mapping for the rate limiter; None leaves the server unprotected.
        mongo_uri: Replaces the store's address in that configuration.
    """
    os.environ.setdefault("AUTHLIB_INSECURE_TRANSPORT", "1")  # older Authlib refuses http:// on 127.0.0.1 too
    app = Flask(__name__)
    app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
    init_database(app, database_path)
    server = create_server(app)
    app.extensions["authorization_server"] = server
    add_routes(app, server)
    if ratelimit_config is not None:
        add_rate_limit(app, server, ratelimit_config=ratelimit_config, mongo_uri=mongo_uri)
    return app


def add_rate_limit(
    app: Flask,
    server: AuthorizationServer,
    *,
    ratelimit_config: str | PathLike[str] | Mapping[str, Any],
    mongo_uri: str | None,
) -> None:
    """Protect the token endpoint: all that an existing server has to add."""
    app.config["OAUTH_RATELIMIT_CONFIG"] = ratelimit_config
    if mongo_uri is not None:
        app.config["OAUTH_RATELIMIT_MONGO_URI"] = mongo_uri
    OAuthRateLimit().init_app(app, server)


def create_server(app: Flask) -> AuthorizationServer:
    server = AuthorizationServer(
        app, query_client=lambda client_id: database().client(client_id), save_token=grants.save_token
    )
    server.register_grant(grants.AuthorizationCodeGrant, [grants.OpenIDCode(), grants.CodeChallenge(required=True)])
    for grant in (
        grants.ClientCredentialsGrant,
        grants.PasswordGrant,
        grants.RefreshTokenGrant,
        grants.DeviceCodeGrant,
        grants.JWTBearerGrant,
        grants.TokenExchangeGrant,
        grants.OwnTokenGrant,
        ImplicitGrant,
        grants.OpenIDImplicitGrant,
        grants.OpenIDHybridGrant,
    ):
        server.register_grant(grant)
    server.register_endpoint(RevocationEndpoint)
    server.register_endpoint(IntrospectionEndpoint)
    server.register_endpoint(DeviceAuthorizationEndpoint)
    return server


def add_routes(app: Flask, server: AuthorizationServer) -> None:
    @app.post("/token")
    def token() -> Response:
        return server.create_token_response()

    @app.post("/revoke")
    def revocation() -> Response:
        return server.create_endpoint_response("revocation")

    @app.post("/introspect")
    def introspection() -> Response:
        return server.create_endpoint_response("introspection")

    @app.post("/device_authorization")
    def device_authorization() -> Response:
        return server.create_endpoint_response("device_authorization")

    @app.get("/authorize")
    def authorize() -> Response:
        return authorize_as(server, username=request.args.get("user"))

    @app.get("/device")
    def device() -> Response:
        user = database().user(request.args.get("user"))
        if user is None or not database().approve_device(request.args.get("user_code", ""), user):
            abort(404)
        return jsonify(approved_by=user.username)

    @app.get("/jwks")
    def jwks() -> Response:
        private = database().signing_key()
        return jsonify(keys=[{name: value for name, value in private.items() if name != "d"}])


def authorize_as(server: AuthorizationServer, *, username: str | None) -> Response:
    """Answer as if the named user had logged in and consented; deny the request if there is no such user."""
    user = database().user(username)
    try:
        grant = server.get_consent_grant(end_user=user)
    except OAuth2Error as error:
        return server.handle_error_response(request, error)
    return server.create_authorization_response(grant_user=user, grant=grant)


def query_token(token_string: str, token_type_hint: str | None) -> Token | None:
    """Return the token that has this string as access or refresh token; the hint decides which is tried first."""
    stored = database()
    lookups = [stored.token_by_access, stored.token_by_refresh]
    if token_type_hint == "refresh_token":
        lookups.reverse()
    found = (lookup(token_string) for lookup in lookups)
    return next((token for token in found if token is not None), None)


class RevocationEndpoint(BaseRevocationEndpoint):
    CLIENT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return query_token(token_string, token_type_hint)

    def revoke_token(self, token: Token, _request: Any) -> None:
        database().revoke(token)


class IntrospectionEndpoint(BaseIntrospectionEndpoint):
    CLIENT_AUTH_METHODS = WITH_SECRET

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        return query_token(token_string, token_type_hint)

    def check_permission(self, _token: Token, _client: Client, _request: Any) -> bool:
        return True  # resource servers ask about tokens of other clients

    def introspect_token(self, token: Token) -> dict[str, Any]:
        user = {"username": token.username, "sub": token.username} if token.username else {}
        return {
            "active": True,
            "client_id": token.client_id,
            "token_type": "Bearer",
            "scope": token.scope,
            "iss": ISSUER,
            "iat": token.issued_at_s,
            "exp": token.issued_at_s + token.expires_in_s,
            **user,
        }


class DeviceAuthorizationEndpoint(BaseDeviceAuthorizationEndpoint):
    CLIENT_AUTH_METHODS = WITH_OR_WITHOUT_SECRET
    INTERVAL = DEVICE_POLL_INTERVAL_S

    def get_verification_uri(self) -> str:
        return url_for("device", _external=True)

    def save_device_credential(self, client_id: str, scope: str | None, data: dict[str, Any]) -> None:
        database().add_device_code(
            DeviceCode(
                device_code=data["device_code"],
                user_code=data["user_code"],
                client_id=client_id,
                scope=scope or "",
                expires_at_s=int(time.time()) + data["expires_in"],
                polled_at_s=0.0,
                username=None,
            )
        )


def add_admin_page(app: Flask, secret_key: str) -> None:
    """Give a protected application the admin page.

    Args:
        app: The application.
        secret_key: Signs the forms of the page; all instances need the same.
    """
    app.secret_key = secret_key
    app.register_blueprint(admin_blueprint(local_operator, "/ratelimit"))


def local_operator() -> str | None:
    """Return the demo's operator if the request comes from this machine and names it as its host.

    The host name matters: another site's name may resolve to 127.0.0.1, and its scripts would be allowed in.
    """
    is_named_so = urlsplit(f"//{request.host}").hostname in (*LOOPBACK, "localhost")
    return "demo operator" if request.remote_addr in LOOPBACK and is_named_so else None
