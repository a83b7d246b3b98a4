"""Parts of every page: the choice of a zone, the line of state, and problems."""

import time
from collections.abc import Callable

import pytest
from flask import Response, redirect, request

from oauth_ratelimit.admin.security import Authorize
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from testbed.clock import wait_until
from testbed.mongod import free_port
from tests.admin.browser import Browser
from tests.admin.conftest import DRY_RUN, LIMIT, Page
from tests.support.sites import serving

pytestmark = pytest.mark.chromium

COLLECT_TEXTS = """
window.texts = [];
const part = document.querySelector("[data-part=overrides]");
new MutationObserver(() => window.texts.push(part.innerText)).observe(part, { childList: true });
"""
COUNT_ANSWERS = "return performance.getEntries().filter((each) => each.name.includes(arguments[0])).length"
PAGES = ("", "client?id=app", "overrides", "instances")


def test_chosen_zone_applies_to_all_times_and_is_remembered(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(f"{url}instances")
    browser.wait_for("UTC", "#updated")
    browser.type("#zone", "Local")
    browser.wait_for("UTC+05:30", "#updated")
    browser.open(f"{url}overrides")
    browser.wait_for("UTC+05:30", "#updated")
    assert "local" == browser.value("#zone")
    browser.type("#zone", "UTC")


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
    browser: Browser, open_page: Callable[..., Page], mongo_uri: str, answer: Authorize, words: str
) -> None:
    operators: list[Authorize] = [lambda: "ann"]
    with serving(open_page(authorize=lambda: operators[-1](), store={"uri": mongo_uri}).app) as url:
        browser.open(f"{url}/ratelimit/overrides")
        browser.wait_for("reachable", "#state")
        wait_until(lambda: browser.run(COUNT_ANSWERS, "panel.js"), "the script of the panel is there")
        operators.append(answer)
        browser.click("#act input[value=mode]")
        browser.wait_for(words, "#panel-problem")
        browser.refresh()
        browser.wait_for(words, "#problem")
        browser.open("about:blank")  # so that no request is under way when the server goes
    assert all("Failed to load resource" in message for message in browser.console())


def test_block_is_grey_and_says_its_age_until_its_server_answers_again(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for_content()
    with browser.offline():
        browser.run("const now = performance.now.bind(performance); performance.now = () => now() + 20000;")
        browser.wait_for("The server does not answer", "#problem")
        wait_until(lambda: not browser.all(".part:not(.is-old)"), "all parts are old")
        assert int((browser.one("#verdict .part").get_attribute("data-old") or "").split()[3]) >= 20
    wait_until(lambda: not browser.all(".is-old"), "new numbers are shown")
    wait_until(lambda: not browser.text("#problem"), "the problem is over")
    assert all("Failed to load resource" in message for message in browser.console())


def test_older_answer_of_another_worker_is_never_shown_after_a_newer_one(
    browser: Browser, open_page: Callable[..., Page], mongo_uri: str
) -> None:
    answers: list[bytes | None] = [None]  # None: the worker that has the newest state answers
    path = "/ratelimit/part/state,overrides,panel,amounts"

    def answer() -> Response | None:
        content = answers[-1] if request.path == path else None
        return None if content is None else Response(content)

    page = open_page(store={"uri": mongo_uri}, prepare=lambda app: app.before_request(answer))
    older = page.get(path.removeprefix("/ratelimit/")).data
    page.send("apply", {**LIMIT, "reason": "first"})
    with serving(page.app) as url:
        browser.open(f"{url}/ratelimit/overrides")
        browser.wait_for("first", "#active")
        browser.run(COLLECT_TEXTS)
        answers.append(older)
        received = browser.run(COUNT_ANSWERS, path)
        browser.refresh()
        wait_until(lambda: browser.run(COUNT_ANSWERS, path) > received, "the older answer has come")
        answers.append(None)
        page.send("apply", {**DRY_RUN, "reason": "second"})
        browser.refresh()
        browser.wait_for("second", "#active")
        texts = browser.run("return window.texts")
        browser.open("about:blank")

    assert texts and all("first" in text for text in texts), "the first change has stayed"


def test_page_without_a_shared_store_shows_only_why(browser: Browser, open_page: Callable[..., Page]) -> None:
    with serving(open_page().app) as url:
        for page in PAGES:
            browser.open(f"{url}/ratelimit/{page}")
            browser.wait_for("the configuration has no store.uri", "#problem")
            assert browser.text("#problem") == browser.text("main")
        browser.open("about:blank")  # so that no request is under way when the server goes


def test_long_path_of_a_rejected_file_fits_a_phone(
    browser: Browser, open_page: Callable[..., Page], mongo_uri: str, connection: Connection
) -> None:
    now_s, path = time.time(), f"/etc/{'acme_production_' * 8}limits.yaml"
    beat = Heartbeat("node-1:7:aa", now_s, now_s, "1", "off", 1.0, config_rejected_at_s=now_s, config_file=path)
    HeartbeatStore(connection).put(beat)
    with serving(open_page(store={"uri": mongo_uri}).app) as url:
        browser.resize((390, 844))
        browser.open(f"{url}/ratelimit/instances")
        browser.wait_for(path, "#state")
        assert 390 == browser.run("return document.documentElement.scrollWidth")
        browser.open("about:blank")  # so that no request is under way when the server goes


@pytest.mark.usefixtures("quick_reconnect")
def test_every_page_says_that_mongodb_is_unreachable_and_what_goes_on(
    browser: Browser, open_page: Callable[..., Page]
) -> None:
    store = {"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"}
    with serving(open_page(store=store).app) as url:
        for page in PAGES:
            browser.open(f"{url}/ratelimit/{page}")
            browser.wait_for("MongoDB is unreachable", "#problem")
            browser.wait_for("Limits apply as before, from memory", "#problem")
            browser.wait_for("does not answer since", "#state")
            assert "Error" not in browser.text("#problem")
        browser.run(
            "window.said = 0; new MutationObserver((all) => { window.said += all.length; })"
            ".observe(document.querySelector('#problem'), { childList: true, subtree: true, characterData: true })"
        )
        for _ in range(3):
            browser.refresh()
            browser.run("return fetch(document.body.dataset.root + 'part/verdict').then((answer) => answer.text())")
        assert 0 == browser.run("return window.said"), "a screen reader announces it once"
        browser.open("about:blank")  # so that no request is under way when the server goes
