# mypy: warn-return-any=False
# Authlib ships no type information: its responses are Any.
"""
An OAuth 2 and OpenID Connect server on Flask and Authlib with every shipped grant, for the demo, tests and benchmarks.

A demo, not a template for production: /authorize and /device approve everybody who names a user, without a login;
passwords and client secrets are stored and compared in plain text; plain HTTP is accepted.
"""

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any

from authlib import __version__ as authlib_version
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from flask import Flask, Response, abort, jsonify, request

from demo import endpoints, grants, openid
from demo.accounts import accounts
from demo.accounts import init_app as init_accounts
from demo.seeds import seed

__all__ = ["create_app", "seed"]

AUTHLIB_VERSION = tuple(int(part) for part in authlib_version.split(".")[:2])


def create_app(
    database_path: str | PathLike[str],
    ratelimit_config: str | PathLike[str] | Mapping[str, Any] | None = None,
    mongo_uri: str | None = None,
) -> Flask:
    """Build the server over a database that `seed` has filled.

    Args:
        database_path: The SQLite file, shared by all instances.
        ratelimit_config: Path or mapping for the rate limiter; None leaves the server unprotected.
        mongo_uri: Overrides the store's address in that configuration.
    """
    os.environ.setdefault("AUTHLIB_INSECURE_TRANSPORT", "1")  # older Authlib refuses http:// on 127.0.0.1 too
    app = Flask(__name__)
    app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
    init_accounts(app, database_path)
    server = create_server(app)
    app.extensions["authorization_server"] = server  # for whoever wants to extend it
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
    from oauth_ratelimit import OAuthRateLimit

    app.config["OAUTH_RATELIMIT_CONFIG"] = ratelimit_config
    if mongo_uri is not None:
        app.config["OAUTH_RATELIMIT_MONGO_URI"] = mongo_uri
    OAuthRateLimit().init_app(app, server)


def create_server(app: Flask) -> AuthorizationServer:
    server = AuthorizationServer(
        app, query_client=lambda client_id: accounts().client(client_id), save_token=grants.save_token
    )
    server.register_grant(grants.AuthorizationCodeGrant, [openid.OpenIDCode(), grants.CodeChallenge(required=True)])
    for grant in (
        grants.ClientCredentialsGrant,
        grants.PasswordGrant,
        grants.RefreshTokenGrant,
        grants.DeviceCodeGrant,
        grants.JWTBearerGrant,
        grants.TokenExchangeGrant,
        grants.OwnTokenGrant,
        openid.ImplicitGrant,
        openid.OpenIDImplicitGrant,
        openid.OpenIDHybridGrant,
    ):
        server.register_grant(grant)
    server.register_endpoint(endpoints.RevocationEndpoint)
    server.register_endpoint(endpoints.IntrospectionEndpoint)
    server.register_endpoint(endpoints.DeviceAuthorizationEndpoint)
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
        user = accounts().user(request.args.get("user"))
        if user is None or not accounts().approve_device(request.args.get("user_code", ""), user):
            abort(404)
        return jsonify(approved_by=user.username)

    @app.get("/jwks")
    def jwks() -> Response:
        private = accounts().signing_key()
        return jsonify(keys=[{name: value for name, value in private.items() if name != "d"}])


def authorize_as(server: AuthorizationServer, *, username: str | None) -> Response:
    """Answer an authorization request as if the named user had logged in and agreed; without a known user, deny it."""
    user = accounts().user(username)
    if AUTHLIB_VERSION < (1, 6):  # finds the grant itself; 1.6 and later want it as an argument
        return server.create_authorization_response(grant_user=user)
    try:
        grant = server.get_consent_grant(end_user=user)
    except OAuth2Error as error:
        return server.handle_error_response(request, error)
    return server.create_authorization_response(grant_user=user, grant=grant)
