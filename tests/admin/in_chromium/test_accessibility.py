"""Rules of WCAG, the keyboard, and small windows."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.admin.axe import violations
from tests.admin.browser import DESKTOP, PHONE, SMALL_PHONE, Browser
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chromium

PAGES = {
    "": ("batch-jobs", "#clients"),
    "client": ("Explain", "#search"),
    "client?id=batch-jobs": ("Busiest minute", "#recorded-facts"),
    "client?id=web-shop#user=alice": ("alice", "#name"),
    "client?id=btach-jobs": ("Did you mean", "#verdict-more"),
    "what-if": ("With", "#result-title"),
    "overrides?id=batch-jobs": ("from the configuration", "#tiers"),
    "instances": ("from the configuration", "#facts"),
}
"""Each page, and a text that appears with the last answer from the server."""


def open_page(browser: Browser, url: str, page: str) -> None:
    """Open a page, and everything that can be unfolded on it."""
    browser.open(url + page)
    browser.wait_for("reachable", "#state")
    browser.wait_for(*PAGES[page])
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")


def violations_in_both_themes(browser: Browser, size: tuple[int, int]) -> dict[str, list[str]]:
    """Return the broken rules of the open page by theme."""
    found = {}
    for theme in ("light", "dark"):
        browser.resize(size, is_dark=theme == "dark")
        found[theme] = violations(browser)
    return found


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", PAGES)
def test_page_follows_wcag_in_both_themes(browser: Browser, url: str, page: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    open_page(browser, url, page)

    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_preview_dialog_and_errors_follow_wcag_in_both_themes(
    browser: Browser, url: str, size: tuple[int, int]
) -> None:
    browser.resize(size)
    open_page(browser, url, "overrides?id=batch-jobs")
    browser.click("#show-preview")
    browser.wait_for("characters", "#reason-problem")
    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)

    browser.fill("#limit-client-1", "client-burst: 41/5s")
    browser.type("#reason", "a test\n")
    browser.wait_for("Apply to batch-jobs", "#confirm")
    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)

    browser.click("#apply")
    browser.wait_for("Applied to batch-jobs", "#done")
    browser.click("#active button")
    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)

    browser.type("#remove-reason", "a test\n")
    browser.wait_for("Removed.", "#done")
    assert all("Failed to load resource" in message for message in browser.console())  # of the form with errors


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_grey_numbers_follow_wcag_in_both_themes(browser: Browser, url: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    open_page(browser, url, "what-if")
    browser.fill("#limit", "12x")
    browser.one("#result.is-pending")
    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)

    open_page(browser, url, "")
    with browser.offline():
        browser.refresh()
        browser.wait_for("The server does not answer", "#problem")
        assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)
    assert all("Failed to load resource" in message for message in browser.console())


def test_chart_and_table_are_used_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.wait_for("batch-jobs", "#allowed .legend")  # from here on the page keeps the time range
    browser.tab_to("input[name=span]")
    chosen = browser.value("input[name=span]:checked")
    browser.press(Keys.ARROW_RIGHT)
    assert {"15m": "1h", "1h": "6h"}[chosen or ""] == browser.value("input[name=span]:checked")
    browser.tab_to("#allowed .plot")
    browser.press(Keys.ARROW_LEFT)
    wait_until(lambda: browser.text("#allowed .tip"), "the values of a moment are shown")
    browser.tab_to("#clients td button")
    browser.press(" ")
    wait_until(
        lambda: browser.run("return document.activeElement.textContent") == "show all", "the row keeps the focus"
    )
    browser.wait_for("Only ", "#shown-note")


def test_limit_is_raised_and_restored_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=batch-jobs")
    browser.wait_for("Over its limit", "#verdict-text", 120.0)
    browser.tab_to("#actions button")
    browser.press(Keys.ENTER)
    browser.press("41")  # the amount is selected
    assert "client-burst: 41/5s" == browser.value("#raise-limit")
    browser.press(Keys.TAB)
    assert "2h" == browser.value("#raise-length")
    browser.press(Keys.TAB)
    browser.press("ticket 4711\n")
    browser.wait_for("Applied to batch-jobs until", "#done")
    browser.wait_for("client-burst: 41/5s", "#overrides")

    wait_until(lambda: browser.run("return document.activeElement.id") == "done", "the result has the focus")
    browser.tab_to("#overrides button", most=3)
    browser.press(Keys.ENTER)
    browser.press("done\n")
    browser.wait_for("Removed.", "#done")
    wait_until(lambda: "41/5s" not in browser.text("#known"), "the limit of before applies again")
    assert "client-burst: 40/5s" in browser.text("#facts")


@pytest.mark.parametrize("size", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
@pytest.mark.parametrize("page", PAGES)
def test_phone_needs_no_sideways_scrolling(browser: Browser, url: str, page: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    browser.open(url + page)
    browser.wait_for(*PAGES[page])
    widths = browser.run(
        "return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('.scroll')]"
        ".filter((each) => each.offsetParent).map((each) => each.scrollWidth - each.clientWidth)]"
    )

    assert [size[0], *[0] * (len(widths) - 1)] == widths
