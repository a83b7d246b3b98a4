"""The demo's server as it is measured, and requests to it: unprotected, protected by ours, or by Flask-Limiter."""

import base64
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import Flask, request
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address
from werkzeug.test import EnvironBuilder

from benchmarks.subjects import silence_log
from oauth_ratelimit.observe import observer
from testbed.oauth_server.app import create_app
from testbed.oauth_server.database import BATCH_JOBS, DEMO_USERS, WEB_SHOP
from testbed.oauth_server.models import Client, User

BASE, BASE_AGAIN = "unprotected", "unprotected again"
OURS, SHARED, GUARDED = "ours", "ours shared through MongoDB", "ours with the guard"
FLASK_LIMITER = "Flask-Limiter sliding"  # with the least work beside the limit: in memory, by address
FLASK_LIMITER_MEMORY = "Flask-Limiter in memory"
FLASK_LIMITER_REDIS = "Flask-Limiter on Redis"
FLASK_LIMITER_MONGO = "Flask-Limiter on MongoDB"

SUBJECT_VARIABLE, DATABASE_VARIABLE = "BENCHMARK_SUBJECT", "DEMO_DATABASE"
URI_VARIABLE, REDIS_VARIABLE = "BENCHMARK_MONGO_URI", "BENCHMARK_REDIS_URI"
NEVER_REACHED = "100000/minute"

Form = tuple[Client, Mapping[str, str]]


def password_form(user: User) -> Form:
    """Return client and form of a password grant."""
    return WEB_SHOP, {"grant_type": "password", "username": user.username, "password": user.password}


FORMS: Mapping[str, Form] = {
    "client_credentials": (BATCH_JOBS, {"grant_type": "client_credentials"}),
    "password": password_form(DEMO_USERS[0]),
}


def application(
    subject: str,
    database: Path,
    *,
    mongo_uri: str | None = None,
    redis_uri: str | None = None,
    interval: str = "1s",
) -> Flask:
    """Return the demo server, protected by one of the subjects.

    Args:
        subject: One of the names above.
        database: The SQLite file.
        mongo_uri, redis_uri: Where the subjects that share their counters do so.
        interval: The sync interval.
    """
    config: dict[str, Any] = {
        "mode": "enforce",
        "limits": {"client": [NEVER_REACHED], "user": [NEVER_REACHED]},
        "sync": {"interval": interval},
        "guard": {"mode": "enforce" if subject == GUARDED else "off"},
    }
    is_ours = subject in (OURS, SHARED, GUARDED)
    app = create_app(
        database, ratelimit_config=config if is_ours else None, mongo_uri=mongo_uri if subject == SHARED else None
    )
    if subject.startswith("Flask-Limiter"):
        storages = {FLASK_LIMITER_REDIS: redis_uri, FLASK_LIMITER_MONGO: mongo_uri}
        limiter = FlaskLimiter(
            get_remote_address if subject == FLASK_LIMITER else claimed_client_and_user,
            app=app,
            storage_uri=storages.get(subject, "memory://"),
            strategy="sliding-window-counter",
            headers_enabled=True,
        )
        app.view_functions["token"] = limiter.limit(NEVER_REACHED)(app.view_functions["token"])
    return app


def claimed_client_and_user() -> str:
    """Return the key that is nearest to ours for Flask-Limiter: names as claimed, because it decides before Authlib."""
    client_id = request.authorization.username if request.authorization else None
    return f"{client_id} {request.form.get('username')}"


def served() -> Flask:
    """Return the application that gunicorn serves, from the environment."""
    silence_log()
    observer.HAS_SPANS = False  # another extra
    return application(
        os.environ[SUBJECT_VARIABLE],
        Path(os.environ[DATABASE_VARIABLE]),
        mongo_uri=os.environ[URI_VARIABLE],
        redis_uri=os.environ.get(REDIS_VARIABLE),
    )


def requests_to(app: Flask, grant: str) -> Callable[[], None]:
    """Return a function that sends a token request to an application, without a server."""
    body, headers = encoded(FORMS[grant])
    environ_base = {"REMOTE_ADDR": "192.0.2.7"}
    environ = EnvironBuilder(path="/token", method="POST", headers=headers, environ_base=environ_base).get_environ()
    environ["CONTENT_LENGTH"] = str(len(body))
    statuses = []

    def send() -> None:
        answer = app({**environ, "wsgi.input": io.BytesIO(body)}, lambda status, *_: statuses.append(status))
        content = b"".join(answer)
        answer.close()  # type: ignore[attr-defined]  # Werkzeug's answers have it
        if not statuses.pop().startswith("200"):
            raise RuntimeError(content.decode())

    return send


def encoded(form: Form) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a token request."""
    client, fields = form
    credentials = base64.b64encode(f"{client.client_id}:{client.client_secret}".encode()).decode()
    return urlencode(fields).encode(), {
        "Authorization": f"Basic {credentials}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
