"""The overview: verdict, charts, clients, keys nearest to a limit."""

import time
from contextlib import closing
from urllib.parse import urlencode

import pytest
from selenium.webdriver import ActionChains

from testbed.clock import wait_until
from testbed.deployment import Deployment
from tests.admin.browser import Browser
from tests.admin.in_chromium.conftest import REQUESTS, Clients
from tests.support.limiters import limiter_of, send_hits

pytestmark = pytest.mark.chromium

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b"


def test_client_name_with_markup_is_shown_as_text(browser: Browser, deployment: Deployment, url: str) -> None:
    host, port = deployment.counters.database.client.address or ("", 0)
    uri = f"mongodb://{host}:{port}/{deployment.counters.database.name}"
    config = {"limits": {"user": ["100000/hour"]}, "store": {"uri": uri, "collection": deployment.counters.name}}
    with closing(limiter_of(config, clock=time.time)) as limiter:
        send_hits(limiter, 1000, HOSTILE, HOSTILE)  # a hundredth of the limit, which its page lists for an hour
    name = "<img src=x onerror=alert(1)>\\u202e\\x1b"
    browser.open(f"{url}client?{urlencode({'id': HOSTILE})}")
    browser.wait_for(name, "h1")
    browser.click("[data-part=users] a[href*='onerror']")
    browser.wait_for(f"{name} · {name}", "h1")

    assert [] == browser.all("img[src=x]")


def test_link_that_is_pressed_while_the_page_refreshes_is_followed(
    browser: Browser, clients: Clients, url: str
) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.run("for (const each of document.querySelectorAll('[data-part]')) each.append(new Comment('before'))")
    ActionChains(browser.driver).click_and_hold(browser.one("#clients a[href$='id=batch-jobs']")).perform()
    browser.run("document.getElementById('zone').dispatchEvent(new Event('change'))")
    verdict = "return document.querySelector('[data-part=verdict]').innerHTML"
    wait_until(lambda: "<!--before-->" not in browser.run(verdict), "the page is refreshed")
    ActionChains(browser.driver).release().perform()
    browser.wait_for("batch-jobs", "h1")


def test_charts_and_table_show_what_clients_sent(browser: Browser, clients: Clients, url: str) -> None:
    browser.open(url)
    answers = clients.answers
    expected = {
        client.client_id: (
            str(answers[client.client_id, 200] + answers[client.client_id, 429]),
            str(answers[client.client_id, 429]),
        )
        for client in REQUESTS
    }

    def counted() -> dict[str, tuple[str | None, str | None]]:
        rows = browser.cells("#clients").items()
        return {name: (row.get("requests"), row.get("denied")) for name, row in rows if name in expected}

    wait_until(lambda: counted() == expected, "all are counted")
    row = browser.cells("#clients")["batch-jobs"]
    assert int(row["would be denied"]) > 0, "in a dry run some would be denied"
    swatch = browser.one("#clients td:has(a[href$='id=batch-jobs']) .swatch").get_attribute("class") or ""
    series = f"--series-{swatch.rpartition(' s')[2]}"
    for chart in ("#issued", "#denied"):
        # Of one minute there is a point, and no line before the next one.
        wait_until(lambda chart=chart: browser.drawn_pixels(chart, series) > 20, f"{chart} has a line", 120.0)  # type: ignore[misc]
    assert "batch-jobs" in (browser.one("#issued .plot").get_attribute("aria-label") or "")
    assert "per minute" in (browser.one("#issued .plot").get_attribute("aria-label") or "")
    browser.wait_for("batch-jobs", "#issued .legend")
    browser.click("#issued summary")
    browser.wait_for("batch-jobs", "#issued table")


def test_numbers_are_rounded_as_in_tables_and_ticks_are_not(browser: Browser, url: str) -> None:
    browser.open(url)
    texts = "[3.04, 12.5, 0.25, 1234.5].map({0}).join(' ')"
    script = "return import(document.querySelector('script[type=module]').src.replace('page.js', 'format.js'))"
    assert "3 13 0.3 1,235" == browser.run(f"{script}.then((all) => {texts.format('all.number')})")
    assert "3.04 12.5 0.25 1,234.5" == browser.run(f"{script}.then((all) => {texts.format('all.tickLabel')})")


def test_mark_in_a_minute_that_is_not_over_is_in_the_chart(browser: Browser, url: str) -> None:
    browser.open(f"{url}?at={int(time.time()) // 60 * 60 + 59}")
    browser.wait_for("the moment of the link that was followed here", "#issued .legend.marks", 50.0)


def test_span_sorting_and_filter_are_in_the_url_and_survive_a_reload(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.click("[data-span='6h']")
    browser.click("#clients th:first-child a")
    browser.wait_for("client", "#clients th[aria-sort='descending']")
    assert list(browser.cells("#clients")) == sorted(browser.cells("#clients"))
    browser.type("#filter", "BANK")
    wait_until(lambda: list(browser.cells("#clients")) == ["partner-bank"], "one client is left")
    browser.driver.refresh()
    wait_until(lambda: list(browser.cells("#clients")) == ["partner-bank"], "the choice is kept")
    assert "6 hours" == browser.text("#span [aria-current]")
    assert "BANK" == browser.value("#filter")
    browser.driver.back()
    wait_until(lambda: len(browser.cells("#clients")) > 1, "the choice of before is back")
