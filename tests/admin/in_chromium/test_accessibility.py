"""Rules of WCAG, the keyboard, and small windows."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from testbed.clock import wait_until
from tests.admin.browser import DESKTOP, PHONE, Browser

pytestmark = pytest.mark.chromium

AXE = Path(__file__).parents[2] / "support" / "vendor" / "axe-core" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
RUN_AXE = """
const [rules, done] = arguments;
axe.run(document, { runOnly: rules }).then(({ violations }) => done(violations.map(({ id, help, nodes }) => (
  `${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`
))));
"""
TOO_WIDE = """
return [document.documentElement, ...document.querySelectorAll(".scroll")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.outerHTML.slice(0, 200));
"""
PAGES = {
    "": ("batch-jobs", "#clients"),
    "client": ("Explain", "#search"),
    "client?id=batch-jobs": ("Busiest minute", "#recorded-facts"),
    "client?id=web-shop#user=alice": ("alice", "h1"),
    "client?id=btach-jobs": ("Did you mean", "#verdict"),
    "overrides": ("client-burst per 5s", "#panel-limits"),
    "instances": ("for everybody", "main"),
}
"""Each page, and a text that appears with the last answer from the server."""

each_size = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


def open_page(browser: Browser, url: str, page: str) -> None:
    """Open a page without sideways scrolling, and everything that can be unfolded on it."""
    browser.open(url + page)
    browser.wait_for("reachable", "#state")
    browser.wait_for(*PAGES[page])
    assert [] == browser.run(TOO_WIDE)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")


def violations_in_both_themes(browser: Browser, size: tuple[int, int]) -> dict[str, list[str]]:
    """Return the rules of WCAG 2.2 AA, and of good practice, that the open page breaks by theme."""
    found = {}
    browser.run(AXE.read_text())
    for theme in ("light", "dark"):
        browser.resize(size, is_dark=theme == "dark")
        found[theme] = list(browser.driver.execute_async_script(RUN_AXE, list(RULES)))  # type: ignore[no-untyped-call]
    return found


@each_size
@pytest.mark.parametrize("page", PAGES)
def test_page_follows_wcag_in_both_themes_without_sideways_scrolling(
    browser: Browser, url: str, page: str, size: tuple[int, int]
) -> None:
    browser.resize(size)
    open_page(browser, url, page)

    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)


@each_size
def test_panel_with_preview_and_error_follows_wcag(browser: Browser, url: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    open_page(browser, url, "client?id=batch-jobs")
    browser.fill("#panel-client-client-burst", "41")
    browser.wait_for("minute", "#panel-preview")
    browser.click("#panel-apply")
    browser.wait_for("characters", "#panel-problem")
    assert [] == browser.run(TOO_WIDE)
    assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)
    assert 1 == len(browser.console()), "the form without a reason"


@each_size
def test_grey_numbers_follow_wcag_in_both_themes(browser: Browser, url: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    open_page(browser, url, "")
    browser.wait_for_content()
    with browser.offline():
        browser.refresh()
        browser.wait_for("The server does not answer", "#problem")
        assert {"light": [], "dark": []} == violations_in_both_themes(browser, size)
    assert all("Failed to load resource" in message for message in browser.console())


def test_chart_and_table_are_used_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.wait_for("batch-jobs", "#issued .legend")
    browser.tab_to("#span a[data-span='6h']")
    browser.press(Keys.ENTER)
    assert "6 hours" == browser.text("#span [aria-current]")
    wait_until(lambda: browser.all("#issued .plot[aria-label*='average']"), "the chart has the span")
    browser.tab_to("#issued .plot")
    browser.press(Keys.ARROW_LEFT)
    wait_until(lambda: browser.text("#issued .tip"), "the values of a moment are shown")
    browser.tab_to("#clients td a")
    address = browser.run("return document.activeElement.href")
    browser.refresh()
    browser.run("return fetch(document.body.dataset.root + 'part/clients').then((answer) => answer.text())")
    assert address == browser.run("return document.activeElement.href"), "the row keeps the focus"


def test_client_is_trusted_and_no_longer_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=partner-bank")
    browser.wait_for("client-burst per 5s", "#panel")
    browser.tab_to("#act input:checked")
    browser.press(Keys.ARROW_RIGHT)
    assert "panel=trusted" in browser.run("return location.search")
    browser.tab_to("#panel-reason", most=3)
    browser.press("ticket 4711\n")
    browser.wait_for("until", "#panel-undo")
    wait_until(lambda: browser.run("return document.activeElement.id") == "panel-outcome", "the result has the focus")
    browser.press(Keys.SHIFT, Keys.TAB)
    browser.refresh()
    browser.run("return fetch(document.body.dataset.root + 'part/panel?id=partner-bank').then((sent) => sent.text())")
    assert browser.run("return document.activeElement.matches('#panel-undo button')"), "the button keeps the focus"
    browser.press(Keys.ENTER)
    wait_until(lambda: "trusted" not in browser.text("#panel-undo"), "the configuration applies again")
