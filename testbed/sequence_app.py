"""Server of ``testbed.sequence``: clients that differ in their limits, and answers that name their worker.

Environment:
    SEQUENCE_MONGO_URI: Where counters are shared.
    SEQUENCE_HOST: Which workers count together, without a database.
"""

import logging
import os

import structlog
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from flask import Flask, Response

from oauth_ratelimit import OAuthRateLimit
from testbed.oauth_server.models import Client
from testbed.sequence import KEY_COUNT, LIMITS, SECRET, WORKER_HEADER, client_name

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
app = Flask("sequence")
server = AuthorizationServer(
    app, query_client=lambda client_id: Client(client_id, SECRET), save_token=lambda token, request: None
)
server.register_grant(ClientCredentialsGrant)
app.add_url_rule("/token", view_func=server.create_token_response, methods=["POST"], endpoint="token")
app.config["OAUTH_RATELIMIT_CONFIG"] = {
    "mode": "enforce",
    "store": {"uri": os.environ.get("SEQUENCE_MONGO_URI")},
    "host": os.environ.get("SEQUENCE_HOST", "auto"),
    "clients": {
        client_name(limit, number): {"limits": {"client": [{"limit": limit, "window": "10m"}]}}
        for limit in LIMITS
        for number in range(KEY_COUNT)
    },
}
OAuthRateLimit(app, server)


@app.after_request
def name_worker(response: Response) -> Response:
    """Name the process."""
    response.headers[WORKER_HEADER] = str(os.getpid())
    return response
