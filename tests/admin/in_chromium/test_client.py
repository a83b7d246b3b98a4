"""The page of one client."""

import pytest

from testbed.clock import wait_until
from tests.admin.browser import Browser

REQUESTED = "return performance.getEntries().map((entry) => entry.name).filter((name) => name.includes('/part/'))"

pytestmark = pytest.mark.chromium


def test_all_parts_are_read_in_one_request_with_what_takes_long_only_now_and_then(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=web-shop")
    browser.wait_for_content()
    assert 1 == len(browser.run(REQUESTED))
    browser.refresh()
    wait_until(lambda: len(browser.run(REQUESTED)) > 1, "the page is refreshed")
    names, later = (each.partition("/part/")[2].partition("?")[0] for each in browser.run(REQUESTED)[:2])

    assert "state,client,panel,amounts,limits,traffic,users,day" == names
    assert "state,client,panel,amounts,limits,traffic,users" == later


def test_username_stays_out_of_requested_urls_and_its_numbers_are_in_the_panel(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=web-shop#user=ann+%C3%B6")
    browser.wait_for("ann ö", "h1")
    browser.run("document.querySelector('#user').value = ''")
    browser.type("#user", "bob & co")
    browser.click("#search button")
    browser.wait_for("bob & co", "h1")

    def requested() -> list[str]:
        return list(browser.run("return performance.getEntries().map((entry) => entry.name)"))

    browser.wait_for("bob & co: ", "#panel .part")
    browser.fill("#panel-limits input[type=number]", "1")
    browser.wait_for("bob & co: ", "#panel-preview")
    wait_until(
        lambda: any("/part/state,client,panel," in address for address in requested()), "the server got the request"
    )
    assert not [address for address in requested() if "bob" in address.partition("#")[0]]
    assert f"{url}client?id=web-shop#user=bob+%26+co" == browser.run("return location.href")
