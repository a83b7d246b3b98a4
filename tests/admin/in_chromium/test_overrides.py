"""Overrides: the form, its preview, and the effect on another server."""

import pytest

from demo.database import BATCH_JOBS
from tests.admin.browser import Browser
from tests.admin.in_chromium.conftest import Clients
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chromium


def test_override_takes_effect_on_the_other_server_until_it_is_removed(
    browser: Browser, clients: Clients, url: str
) -> None:
    browser.open(f"{url}client?id=batch-jobs")
    browser.wait_for("Change limits")
    browser.click("#actions a[href*='kind=limit']")
    wait_until(lambda: browser.value("#limit-client-1") == "client-burst: 40/5s", "the present limit is filled in")
    browser.fill("#limit-client-1", "client-burst: 1/1h enforce")
    browser.type("#reason", "ticket 4711")
    browser.click("#show-preview")
    browser.wait_for("client-burst: 1/hour enforce", "#preview-changes")
    for words in ("batch-jobs", "client-burst: 1/hour enforce", "until", "UTC"):
        assert words in browser.text("#confirm")
    assert 200 == clients.ask(BATCH_JOBS, server=1)
    browser.click("#apply")
    browser.wait_for("Applied to batch-jobs", "#done")
    wait_until(lambda: clients.ask(BATCH_JOBS, server=1) == 429, "the other server denies")

    browser.wait_for("demo operator", "#active tr")
    browser.click("#active button")
    browser.type("#remove-reason", "done")
    browser.click("#remove .primary")
    browser.wait_for("Removed.", "#done")
    wait_until(lambda: clients.ask(BATCH_JOBS, server=1) == 200, "the other server admits again")


def test_every_error_of_a_form_is_at_its_field(browser: Browser, url: str) -> None:
    browser.open(f"{url}overrides?id=batch-jobs")
    wait_until(lambda: browser.value("#limit-client-1"), "the present limit is filled in")
    browser.fill("#limit-client-1", "lots")
    browser.click("#show-preview")

    browser.wait_for("allowed", "#limit-client-1-problem")
    browser.wait_for("characters", "#reason-problem")
    assert "true" == browser.one("#limit-client-1").get_attribute("aria-invalid")
    assert "limit-client-1" == browser.run("return document.activeElement.id")
    complaints = wait_until(browser.console, "the console has an error")
    assert ["Failed to load resource"] == [text[text.index("Failed") :][:23] for text in complaints]


def test_form_warns_of_a_tier_that_is_dropped(browser: Browser, url: str) -> None:
    browser.open(f"{url}overrides?id=batch-jobs")
    wait_until(lambda: browser.value("#limit-client-1"), "the present limit is filled in")
    browser.click("#tiers .tier button")
    assert "Drops client-burst: 40/5s." in browser.text("#tiers .dropped")
    browser.click("#tiers .tier button")
    assert "No limit of this kind is left." in browser.text("#tiers .dropped")
