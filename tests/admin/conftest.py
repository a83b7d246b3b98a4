"""The admin page in an application that is protected."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.admin import admin_blueprint
from tests.support.apps import protected_app

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
LIMITS = {"client": ["10/hour"], "user": ["5/hour"], "client_total": ["50/hour"]}


class Page:
    """What one operator's browser does.

    Args:
        app: The application that has the page.
    """

    def __init__(self, app: Flask) -> None:
        self.app = app
        self.browser: FlaskClient = app.test_client()

    def get(self, path: str, **question: str) -> TestResponse:
        """Open something. The name of a user is sent as the page does."""
        headers = {"X-Ratelimit-User": quote(question.pop("user", ""))}
        return self.browser.get(f"/ratelimit/{path}", query_string=question or None, headers=headers, buffered=True)

    def ask(self, name: str, **question: str) -> Any:
        """Return what the API tells."""
        response = self.get(f"api/{name}", **question)
        assert (200, "application/json") == (response.status_code, response.mimetype), response.text
        return response.json

    def token(self) -> str:
        """Return the token in a page."""
        found = re.search(r'data-token="([^"]*)"', self.get("overrides").text)
        assert found
        return found[1]

    def send(self, name: str, body: Any, **headers: str) -> TestResponse:
        """Send a change as the page does; headers may be others, or none with an empty text."""
        sent = {
            "X-Ratelimit-Token": self.token(),
            **SAME_SITE,
            **{key.replace("_", "-"): headers[key] for key in headers},
        }
        return self.browser.post(
            f"/ratelimit/api/{name}", json=body, headers={key: value for key, value in sent.items() if value}
        )


@pytest.fixture
def open_page() -> Iterator[Callable[..., Page]]:
    """Opens the page of an application with some settings."""
    with ExitStack() as undo:

        def open_one(
            *,
            authorize: Callable[[], Any] = lambda: "ann",
            secret_key: str | None = "a secret",
            may_change: Any = None,
            **settings: Any,
        ) -> Page:
            app = undo.enter_context(
                protected_app(clock=time.time, OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": LIMITS, **settings})
            )
            app.secret_key = secret_key
            more = {"may_change": may_change} if may_change else {}
            app.register_blueprint(admin_blueprint(authorize, **more))
            return Page(app)

        yield open_one


@pytest.fixture
def page(open_page: Callable[..., Page], mongo_uri: str) -> Page:
    """The page of an application with an empty database."""
    return open_page(store={"uri": mongo_uri})


@pytest.fixture
def limiter(mongo_uri: str) -> Iterator[Limiter]:
    """Another instance with the same limits. Its clock stands still, at the present."""
    now_s = time.time()
    limiter = Limiter(
        load_config({"mode": "enforce", "limits": LIMITS, "store": {"uri": mongo_uri}}), clock=lambda: now_s
    )
    yield limiter
    limiter.close()


def spend(limiter: Limiter, count: int, *key: Any, **place: Any) -> None:
    """Count requests, and send them."""
    for _ in range(count):
        limiter.check(*key, **place)
    limiter.sync()
