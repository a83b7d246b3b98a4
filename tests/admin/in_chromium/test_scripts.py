"""Functions of the page's scripts."""

import time

import pytest

from tests.admin.browser import Browser

pytestmark = pytest.mark.chromium


def test_times_have_seconds_a_zone_and_the_year_if_it_is_another(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(url)
    year = time.gmtime().tm_year
    moments = [f"{year}-06-30T10:00:07Z", f"{year + 9}-06-30T22:00:07Z"]
    script = "it.chooseZone(given[1]); return given[0].map(it.dateTime)"

    assert ["30 Jun 10:00:07 UTC", f"30 Jun {year + 9} 22:00:07 UTC"] == browser.module(
        "format.js", script, moments, "utc"
    )
    assert ["30 Jun 15:30:07 GMT+5:30", f"1 Jul {year + 9} 03:30:07 GMT+5:30"] == browser.module(
        "format.js", script, moments, "local"
    )
    browser.run("localStorage.clear()")


def test_client_keeps_its_colour_while_ranks_change(browser: Browser, url: str) -> None:
    browser.open(url)
    names = ["batch-jobs", "partner-bank", "web-shop", "mobile-app", "report-export"]
    script = "return given.map((ids) => Object.fromEntries(it.coloursOf(ids)))"
    first, second, without_one = browser.module("palette.js", script, names, names[::-1], names[2:])

    assert first == second
    assert {name: first[name] for name in names[2:]} == without_one
    assert len(names) == len(set(first.values()))


def test_table_shows_no_cell_of_an_earlier_answer(browser: Browser, url: str) -> None:
    browser.open(url)
    script = """
    const table = document.createElement("table");
    const show = (text, isElement) => {
      const value = () => (isElement ? Object.assign(document.createElement("b"), { textContent: text }) : text);
      it.table(table, [{ title: "after", value }], [{}], { keyOf: () => "row", empty: "" });
      return table.tBodies[0].innerText;
    };
    return [show("no change", false), show("limit 5", true), show("no change", false)];
    """
    assert ["no change", "limit 5", "no change"] == browser.module("dom.js", script)


def test_table_keeps_the_focus_when_a_column_or_a_row_goes(browser: Browser, url: str) -> None:
    browser.open(url)
    script = """
    const table = document.body.appendChild(document.createElement("table"));
    const link = (row) => Object.assign(document.createElement("a"), { href: "#", textContent: row });
    const columns = [
      { title: "number", value: (row) => row.length, isShown: (rows) => rows.length > 2 },
      { title: "name", value: link, version: String },
    ];
    const show = (...rows) => it.table(table, columns, rows, { keyOf: String, empty: "" });
    show("ann", "bob", "eve");
    table.querySelectorAll("a")[1].focus();
    show("bob", "eve");
    const moved = document.activeElement.textContent;
    show("eve");
    return [moved, document.activeElement.textContent];
    """
    assert ["bob", "eve"] == browser.module("dom.js", script)


def test_axis_names_the_day_where_it_changes(browser: Browser, url: str) -> None:
    browser.open(url)
    midnight = 1_700_006_400  # 15 November 2023 in UTC
    script = "it.chooseZone('utc'); return it.axisLabels(given[0], given[1])"
    hours = [midnight - 7200, midnight - 3600, midnight, midnight + 3600]

    assert ["22:00\n14 Nov UTC", "23:00\n", "00:00\n15 Nov", "01:00\n"] == browser.module(
        "format.js", script, hours, 3600
    )
    days = [midnight, midnight + 86_400]
    assert ["15 Nov\nUTC", "16 Nov\n"] == browser.module("format.js", script, days, 86_400)
