"""A protected application with any clients and its configuration in a file, for processes whose clock is set.

It reports what is due every ten seconds twice a second, so that no test waits for it.

Environment:
    WORKER_CONFIG: Path of the file.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background import health
from oauth_ratelimit.blueprints import health_blueprint
from oauth_ratelimit.observe import statistics
from testbed.oauth_server.models import Client
from tests.support.apps import CLIENT, make_app, make_server

health.BEAT_INTERVAL_S = statistics.WRITE_EVERY_S = 0.5
app = make_app(OAUTH_RATELIMIT_CONFIG=os.environ["WORKER_CONFIG"])
server = make_server(app)
server._query_client = lambda client_id: Client(client_id, CLIENT.client_secret)
OAuthRateLimit(app, server)
app.register_blueprint(health_blueprint())
