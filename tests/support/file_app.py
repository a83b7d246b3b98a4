"""A protected application with its configuration in a file, for real worker processes.

Environment:
    WORKER_CONFIG: Path of the file.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.blueprints import health_blueprint
from tests.support.apps import make_app, make_server

app = make_app(OAUTH_RATELIMIT_CONFIG=os.environ["WORKER_CONFIG"])
OAuthRateLimit(app, make_server(app))
app.register_blueprint(health_blueprint())
