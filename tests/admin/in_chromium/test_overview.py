"""The overview: verdict, charts, clients, keys nearest to a limit."""

import time
from contextlib import closing

import pytest

from demo.deployment import Deployment
from oauth_ratelimit import Limiter, load_config
from tests.admin.browser import Browser
from tests.admin.in_chromium.conftest import REQUESTS, Clients
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chromium

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b"
BROKEN_WORDS = """
const range = document.createRange();
return [...document.querySelectorAll(arguments[0])].flatMap((element) => {
  const { firstChild: text } = element.querySelector("button") || element;
  return [...text.textContent.matchAll(/\\S+/g)].filter(({ 0: word, index }) => {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    return range.getClientRects().length > 1;
  }).map(([word]) => word);
});
"""
BROKEN_LINES = """
return [...document.querySelectorAll(arguments[0])].filter((element) => (
  element.offsetHeight > 2 * parseFloat(getComputedStyle(element).lineHeight)
)).map((element) => element.textContent);
"""


def count_hits(deployment: Deployment, client_id: str, username: str) -> None:
    """Count a hundredth of the hourly limit, which the page lists for an hour."""
    host, port = deployment.counters.database.client.address or ("", 0)
    uri = f"mongodb://{host}:{port}/{deployment.counters.database.name}"
    config = {"limits": {"user": ["100000/hour"]}, "store": {"uri": uri, "collection": deployment.counters.name}}
    with closing(Limiter(load_config(config), clock=time.time)) as limiter:
        for _ in range(1000):
            limiter.check(client_id, username)
        limiter.sync()


def test_table_is_updated_and_keeps_the_focus(browser: Browser, deployment: Deployment, url: str) -> None:
    count_hits(deployment, "first-client", "alice")
    browser.open(url)
    browser.wait_for("first-client", "#top")
    browser.run("document.querySelector('#top a[href*=first-client]').focus()")
    count_hits(deployment, "second-client", "alice")
    browser.wait_for("second-client", "#top")

    assert "first-client" == browser.run("return document.activeElement.textContent")


def test_client_name_with_markup_is_shown_as_text(browser: Browser, deployment: Deployment, url: str) -> None:
    count_hits(deployment, HOSTILE, HOSTILE)
    name = "<img src=x onerror=alert(1)>\\u{202e}\\u{1b}"
    browser.open(url)
    browser.wait_for(name, "#top")
    browser.click("#top a[href*='onerror']")
    browser.wait_for(name, "#name")

    assert [] == browser.all("img[src=x]")


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
    assert int(row["over a limit"]) == int(row["denied"]) + int(row["would be denied"])
    browser.wait_for("Worst: ", "#verdict-text", 120.0)
    worst = browser.text("#verdict-text a")
    assert int(browser.cells("#clients")[worst]["over a limit"]) > 0
    swatch = browser.one("#clients tr[data-key='batch-jobs'] .swatch").get_attribute("class") or ""
    series = f"--series-{swatch.rpartition(' s')[2]}"
    for chart in ("#allowed", "#denied"):
        # Of one minute there is a point, and no line before the next one.
        wait_until(lambda chart=chart: browser.drawn_pixels(chart, series) > 20, f"{chart} has a line", 120.0)  # type: ignore[misc]
    assert "batch-jobs" in (browser.one("#allowed .plot").get_attribute("aria-label") or "")
    assert "per minute" in (browser.one("#allowed .plot").get_attribute("aria-label") or "")
    browser.wait_for("batch-jobs", "#allowed .legend")
    assert "limit 480" not in browser.text("#allowed"), "of all clients no limit is drawn"
    browser.click("#allowed .legend button[data-name='batch-jobs']")
    browser.wait_for("limit 480 per minute (client-burst", "#allowed .legend")
    assert "partner-bank" not in browser.text("#allowed .legend")
    browser.click("#allowed summary")
    browser.wait_for("batch-jobs", "#allowed table")


def test_clients_are_sorted_by_a_button_and_filtered(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    header = "#clients th:has(button)"
    order = [each.get_attribute("aria-sort") for each in browser.all(header)]
    assert ["descending"] == [each for each in order if each != "none"], "most over a limit first"
    browser.run("arguments[0].focus()", browser.one(f"{header} button"))
    browser.press("\n")
    wait_until(lambda: browser.one(header).get_attribute("aria-sort") == "ascending", "clients are sorted by name")
    wait_until(lambda: list(browser.cells("#clients")) == sorted(browser.cells("#clients")), "rows are in order")
    browser.type("#filter", "BANK")
    wait_until(lambda: list(browser.cells("#clients")) == ["partner-bank"], "one client is left")
    browser.wait_for("1 to 1 of 1 client", "#range")


def test_cursors_of_both_charts_move_together(browser: Browser, url: str) -> None:
    browser.open(url)
    for chart in ("#allowed", "#denied"):  # a chart without requests has no cursor
        browser.wait_for("batch-jobs", f"{chart} .legend")
    browser.run("document.querySelector('#allowed .plot').focus()")
    browser.press("\ue012")  # arrow to the left
    wait_until(lambda: browser.text("#allowed .tip strong"), "the values of a moment are shown")
    assert browser.text("#allowed .tip strong") == browser.text("#denied .tip strong")


@pytest.mark.parametrize("width", [900, 1024, 1160])
def test_titles_of_columns_and_names_of_lines_stay_whole(browser: Browser, url: str, width: int) -> None:
    browser.resize((width, 900))
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.wait_for("of its limit", "#allowed .legend")

    assert [] == browser.run(BROKEN_WORDS, "#clients th")
    assert [] == browser.run(BROKEN_LINES, ".legend li")
