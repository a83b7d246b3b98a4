"""An OAuth server as an application factory."""

from collections.abc import Mapping
from typing import Any

from flask import Flask, Response

from myauth.oauth import server
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.blueprints import health_blueprint

ratelimit = OAuthRateLimit()


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Make an application, configured from the environment (``FLASK_…``) and from what is given here."""
    app = Flask(__name__)
    app.config.from_prefixed_env()
    app.config.update(config or {})

    server.init_app(app)
    ratelimit.init_app(app, server)
    app.register_blueprint(health_blueprint("/health"))

    @app.post("/token")
    def token() -> Response:
        return server.create_token_response()

    return app
