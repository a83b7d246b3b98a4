"""The panel on a client's page."""

import pytest

from testbed.clock import wait_until
from tests.admin.browser import Browser

pytestmark = pytest.mark.chromium

AMOUNT = "#panel-client-client-burst"
KEEP_ANNOUNCED = """
window.announced = [];
const live = document.querySelector("#announcer");
new MutationObserver(() => announced.push(live.textContent)).observe(live, { childList: true });
"""
UNDONE = "return announced.filter((text) => /undo/i.test(text))"


def test_limit_is_lowered_on_all_servers_once_and_undone(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=batch-jobs")
    wait_until(lambda: browser.value(AMOUNT) == "40", "the present amount is filled in")
    browser.fill(AMOUNT, "1")
    browser.wait_for("minute", "#panel-preview")
    browser.type("#panel-reason", "ticket 4711")
    browser.run("for (let time = 0; time < 3; time += 1) document.querySelector('#panel-form').requestSubmit()")
    browser.wait_for("Applied", "#panel-outcome")
    browser.wait_for("client-burst: 1/5s", "#panel-undo")
    wait_until(lambda: browser.run("return document.activeElement.id") == "panel-outcome", "the result has the focus")

    browser.type("#panel-length", "7 days")
    browser.wait_for("This replaces the override by", "#panel-preview")
    browser.type("#panel-reason", "until next week")
    browser.run("document.querySelector('#panel-form').requestSubmit()")
    browser.wait_for("until next week", "#panel-undo")
    wait_until(lambda: browser.all("#panel-preview[hidden]"), "nothing is to be applied")

    browser.run(KEEP_ANNOUNCED)
    browser.run("document.querySelector('main').append(document.querySelector('[data-undo]').cloneNode(true))")
    browser.click("#panel-undo button[aria-label^='Undo: client limit']")
    wait_until(lambda: browser.value(AMOUNT) == "40", "the limit of before applies again")
    browser.click("main > [data-undo]")  # as if another operator had been faster
    wait_until(lambda: len(browser.run(UNDONE)) > 1, "both are answered")
    assert ["Undone.", "Nothing to undo: the override was removed or has ended before."] == browser.run(UNDONE)
    browser.open(f"{url}overrides")
    browser.click("#history-details summary")
    browser.wait_for("ticket 4711", "#history")
    assert 2 == browser.text("#history").count("client-burst: 1/5s")
