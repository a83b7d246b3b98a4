"""Parts of every page: the choice of a zone, the line of state, and problems."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Response, redirect

from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.security import Authorize
from tests.admin.browser import Browser
from tests.support.apps import protected_app
from tests.support.mongod import free_port
from tests.support.serving import serving

pytestmark = pytest.mark.chromium


def test_chosen_zone_applies_to_all_times_and_is_remembered(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(f"{url}instances")
    browser.wait_for("UTC", "#updated")
    browser.choose_zone("local")
    browser.wait_for("GMT+5:30", "#updated")
    browser.open(f"{url}overrides")
    browser.wait_for("GMT+5:30", "#updated")
    assert "local" == browser.value("#zone")
    browser.choose_zone("utc")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: redirect("/login"), "You are no longer signed in. Sign in, then reload this page."),
        (lambda: Response(status=401), "You are no longer signed in. Sign in, then reload this page."),
        (lambda: None, "You may not see this page, or you are no longer signed in. Sign in, then reload it."),
        (lambda: Response("<h1>Log in</h1>"), "The server answered with status 200 and no data. If you are no longer"),
    ],
    ids=["redirect to the login", "401", "403", "login page"],
)
def test_page_of_an_operator_who_is_signed_out_says_so(
    browser: Browser, mongo_uri: str, answer: Authorize, words: str
) -> None:
    operators: list[Authorize] = [lambda: "ann"]
    with protected_app(clock=time.time, OAUTH_RATELIMIT_CONFIG={"store": {"uri": mongo_uri}}) as app:
        app.secret_key = "a secret"
        app.register_blueprint(admin_blueprint(lambda: operators[-1]()))
        with serving(app) as url:
            browser.open(f"{url}/ratelimit/overrides?kind=trusted&id=app")
            browser.wait_for("reachable", "#state")
            operators.append(answer)
            browser.click("#show-preview")
            browser.wait_for(words, "#form-problem")
            browser.refresh()
            browser.wait_for(words, "#problem")
            browser.open("about:blank")  # so that no request is under way when the server goes
    assert all("Failed to load resource" in message for message in browser.console())


def test_page_without_a_shared_store_shows_only_why(browser: Browser) -> None:
    with protected_app(OAUTH_RATELIMIT_CONFIG={}) as app:
        app.register_blueprint(admin_blueprint(lambda: "ann"))
        with serving(app) as url:
            for page in ("", "client?id=app", "what-if", "overrides", "instances"):
                browser.open(f"{url}/ratelimit/{page}")
                browser.wait_for("the configuration has no store.uri", "#problem")
                assert browser.text("#problem") == browser.text("main")
            browser.open("about:blank")  # so that no request is under way when the server goes


@pytest.fixture
def app_without_mongodb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    """An application with an unreachable MongoDB."""
    monkeypatch.delenv("OAUTH_RATELIMIT_MODE", raising=False)
    store: dict[str, Any] = {"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"}
    with protected_app(OAUTH_RATELIMIT_CONFIG={"store": store}) as app:
        app.register_blueprint(admin_blueprint(lambda: "ann"))
        yield app


@pytest.mark.usefixtures("quick_reconnect")
def test_every_page_says_that_mongodb_is_unreachable_and_what_goes_on(
    browser: Browser, app_without_mongodb: Flask
) -> None:
    with serving(app_without_mongodb) as url:
        for page in ("", "client?id=app", "what-if", "overrides", "instances"):
            browser.open(f"{url}/ratelimit/{page}")
            browser.wait_for("MongoDB is unreachable", "#problem")
            browser.wait_for("Limits are still enforced, from memory", "#problem")
            browser.wait_for("unreachable since", "#state")
            assert browser.all("body.is-stale")
            assert "Error" not in browser.text("#problem")
        browser.run(
            "window.said = 0; new MutationObserver((all) => { window.said += all.length; })"
            ".observe(document.querySelector('#problem'), { childList: true, subtree: true, characterData: true })"
        )
        for _ in range(3):
            browser.refresh()
            browser.run("return fetch(document.body.dataset.api + 'verdict').then((answer) => answer.json())")
        assert 0 == browser.run("return window.said"), "a screen reader announces it once"
        browser.open("about:blank")  # so that no request is under way when the server goes
