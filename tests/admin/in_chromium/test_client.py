"""The page of one client."""

import pytest

from tests.admin.browser import Browser
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chromium


def test_username_stays_out_of_requested_urls(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=web-shop#user=ann+%C3%B6")
    browser.wait_for("ann ö", "#name")
    browser.run("document.querySelector('#user').value = ''")
    browser.type("#user", "bob & co")
    browser.click("#search button")
    browser.wait_for("bob & co", "#name")

    def requested() -> list[str]:
        return list(browser.run("return performance.getEntries().map((entry) => entry.name)"))

    wait_until(
        lambda: any("api/client?id=web-shop" in address for address in requested()), "the server got the request"
    )
    assert not [address for address in requested() if "bob" in address.partition("#")[0]]
    assert f"{url}client?id=web-shop#user=bob+%26+co" == browser.run("return location.href")


def test_unknown_client_is_grey_and_has_links_to_similar_ones(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=btach-jobs")
    browser.wait_for("Unknown", "#verdict-text")
    assert "verdict" == (browser.one("#verdict").get_attribute("class") or "").strip()
    browser.click("#verdict-more a")
    browser.wait_for("batch-jobs", "h1")
    browser.open(f"{url}overrides?id=btach-jobs&kind=trusted")
    browser.wait_for("No client with this id is known", "#client-note")
    browser.click("#client-note button")
    wait_until(lambda: browser.value("#client-id") == "batch-jobs", "the suggestion is taken")


def test_letter_follows_the_chosen_zone(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(f"{url}client?id=batch-jobs")

    def letter() -> str:
        return str(browser.run("return document.querySelector('#letter').textContent"))

    wait_until(lambda: " UTC, your OAuth client batch-jobs" in letter(), "the letter has times in UTC")
    browser.choose_zone("local")
    wait_until(lambda: " UTC+05:30, your OAuth client batch-jobs" in letter(), "the letter has times of the zone")
    assert "UTC, your" not in letter()
    browser.choose_zone("utc")


def test_raising_a_limit_names_errors_as_the_dialog_names_its_fields(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=batch-jobs")
    browser.wait_for("Raise client-burst", "#actions")
    browser.click("#actions button")
    browser.fill("#raise-limit", "client-burst: lots")
    browser.click("#raise .primary")
    browser.wait_for("Reason: expected", "#raise .notice")

    assert "Limit: got" in browser.text("#raise .notice")
    assert "Failed to load resource" in browser.console()[0]
