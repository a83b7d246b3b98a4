"""WSGI entry: ``gunicorn demo.wsgi:app``.

Environment:
    DEMO_DATABASE: The SQLite file; seeded with the demo's clients and users if it holds no clients.
    DEMO_SECRET_KEY: The same for all instances; unset leaves out the admin page.
    OAUTH_RATELIMIT_CONFIG: Path of the rate limiter's YAML file; unset leaves the server unprotected.
    OAUTH_RATELIMIT_MONGO_URI: Overrides the store's address in that file.
"""

import os

from demo.authserver import create_app
from demo.operator import add_admin_page
from demo.seeds import seed_if_empty

database_path = os.environ["DEMO_DATABASE"]
seed_if_empty(database_path)
app = create_app(
    database_path,
    ratelimit_config=os.environ.get("OAUTH_RATELIMIT_CONFIG"),
    mongo_uri=os.environ.get("OAUTH_RATELIMIT_MONGO_URI"),
)
secret_key = os.environ.get("DEMO_SECRET_KEY")
if secret_key and "oauth_ratelimit" in app.extensions:
    add_admin_page(app, secret_key)
