"""The admin page in a real browser, of two real servers that share a MongoDB."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import requests
from flask import Flask

from demo.database import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, PARTNER_BANK, WEB_SHOP
from demo.deployment import Deployment, Instance, deploy
from demo.models import Client
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.admin import admin_blueprint
from tests.admin.axe import violations
from tests.admin.browser import DESKTOP, PHONE, SMALL_PHONE, Browser, open_browser
from tests.support.apps import protected_app
from tests.support.helpers import patient, wait_until, with_database
from tests.support.mongod import free_port
from tests.support.mongod_program import MONGO_URI_VARIABLE
from tests.support.serving import serving

pytestmark = pytest.mark.chromium

PAGES = ("", "client?id=batch-jobs", "client?id=web-shop#user=alice", "what-if", "overrides", "instances")
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b"
REQUESTS = {BATCH_JOBS: 100, PARTNER_BANK: 6, WEB_SHOP: 4}  # batch-jobs may have 40 in 5 s


class Clients:
    """Clients that request tokens.

    Args:
        servers: The servers.

    Attributes:
        answers: Number of responses by client and status.
    """

    def __init__(self, servers: Sequence[Instance]) -> None:
        self.servers = servers
        self.answers: Counter[tuple[str, int]] = Counter()
        self._session = requests.Session()

    def ask(self, client: Client, *, server: int = 0) -> int:
        """Request a token, for a user if the client is the web shop, and return the status."""
        form = {"grant_type": "client_credentials"}
        if client is WEB_SHOP:
            form = {"grant_type": "password", "username": DEMO_USERS[0].username, "password": DEMO_USERS[0].password}
        url, auth = f"http://{self.servers[server].address}/token", (client.client_id, client.client_secret)
        status = self._session.post(url, data=form, auth=auth, timeout=60).status_code
        self.answers[client.client_id, status] += 1
        return status

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


@pytest.fixture(scope="module")
def deployment(mongodb: str) -> Iterator[Deployment]:
    """Two servers of the demo that share a database of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MONGO_URI_VARIABLE, patient(with_database(mongodb, f"test_{uuid.uuid4().hex[:12]}")))
        patch.delenv("OAUTH_RATELIMIT_MODE", raising=False)
        with deploy(instance_count=2, clients=DEMO_CLIENTS, users=DEMO_USERS) as deployment:
            yield deployment
            deployment.counters.database.client.drop_database(deployment.counters.database.name)


@pytest.fixture(scope="module")
def clients(deployment: Deployment) -> Iterator[Clients]:
    """Clients that have sent requests to both servers, one of them above its limit."""
    with closing(Clients(deployment.instances)) as clients:
        for client, request_count in REQUESTS.items():
            for number in range(request_count):
                assert 200 == clients.ask(client, server=number % 2)

        def is_over() -> bool:
            assert 200 == clients.ask(BATCH_JOBS)
            return any("request_would_be_denied" in server.log for server in deployment.instances)

        wait_until(is_over, "batch-jobs exceeds its limit")  # the hundred may take a busy machine too long
        yield clients


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """One window for all tests."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A desktop window in light colours. Its console must stay empty after each test."""
    window.open("about:blank")
    window.console()
    window.resize(DESKTOP)
    window.set_timezone("UTC")
    yield window
    assert [] == window.console()


@pytest.fixture
def url(clients: Clients) -> str:
    """The page of the first server."""
    return f"http://{clients.servers[0].address}/ratelimit/"


def colour_of(browser: Browser, name: str) -> list[int]:
    """Return a colour of the page as red, green and blue."""
    text = browser.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", name).strip()
    return [int(text[start : start + 2], 16) for start in (1, 3, 5)]


def drawn_pixels(browser: Browser, chart: str, name: str) -> int:
    """Return the number of pixels of a chart in a colour of the palette."""
    script = """
    const canvas = document.querySelector(arguments[0] + " canvas");
    if (!canvas || !canvas.width) return 0;
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const picture = copy.getContext("2d", { willReadFrequently: true });
    picture.drawImage(canvas, 0, 0);
    const { data } = picture.getImageData(0, 0, copy.width, copy.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      const isClose = arguments[1].every((value, index) => Math.abs(data[at + index] - value) < 12);
      if (isClose && data[at + 3] > 200) count += 1;
    }
    return count;
    """
    return int(browser.run(script, chart, colour_of(browser, name)))


def test_table_is_updated_and_keeps_the_focus(browser: Browser, clients: Clients, url: str) -> None:
    """As long as the row is there: a client that asks no more leaves the table."""
    browser.open(url)
    browser.wait_for("batch-jobs", "#top")
    browser.run("window.link = document.querySelector('#top a'); window.link.focus()")

    def is_first() -> bool:
        for _ in range(10):
            clients.ask(PARTNER_BANK, server=1)
        refresh(browser)
        return "partner-bank" in browser.text("#top tbody tr:first-child")

    wait_until(is_first, "the busiest client is the first")
    assert browser.run("return !window.link.isConnected || document.activeElement === window.link")


def refresh(browser: Browser) -> None:
    """Make the page refresh at once, as if it became visible again."""
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")


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


def test_override_takes_effect_on_the_other_server_until_it_is_removed(
    browser: Browser, clients: Clients, url: str
) -> None:
    browser.open(f"{url}client?id=batch-jobs")
    browser.wait_for("Change limits")
    browser.click("#actions a[href*='kind=limit']")
    wait_until(lambda: value_of(browser, "#limit-client-1") == "client-burst: 40/5s", "the present limit is filled in")
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
    browser.click("#remove-confirm")
    browser.wait_for("Removed.", "#done")
    wait_until(lambda: clients.ask(BATCH_JOBS, server=1) == 200, "the other server admits again")


def value_of(browser: Browser, selector: str) -> str | None:
    """Return the value of a field."""
    return browser.one(selector).get_attribute("value")


def test_unknown_client_is_grey_and_has_links_to_similar_ones(browser: Browser, url: str) -> None:
    browser.open(f"{url}client?id=btach-jobs")
    browser.wait_for("unknown", "#verdict-text")
    assert "verdict" == (browser.one("#verdict").get_attribute("class") or "").strip()
    browser.click("#verdict-more a")
    browser.wait_for("batch-jobs", "h1")
    browser.open(f"{url}overrides?id=btach-jobs&kind=trusted")
    browser.wait_for("No client with this id is known", "#client-note")
    browser.click("#client-note button")
    wait_until(lambda: value_of(browser, "#client-id") == "batch-jobs", "the suggestion is taken")


def module(browser: Browser, name: str, script: str, *arguments: Any) -> Any:
    """Import a module of the open page as ``it`` and return the result of a script."""
    address = browser.run("return document.querySelector('script[type=module]').src").rpartition("/")[0]
    return browser.run(
        f"const given = arguments; return import(given[0]).then((it) => {{ {script} }})", f"{address}/{name}", arguments
    )


def test_times_have_seconds_a_zone_and_the_year_if_it_is_another(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(url)
    year = time.gmtime().tm_year
    moments = [f"{year}-06-30T10:00:07Z", f"{year + 9}-06-30T22:00:07Z"]
    script = "it.chooseZone(given[1][1]); return given[1][0].map(it.dateTime)"

    assert ["30 Jun 10:00:07 UTC", f"30 Jun {year + 9} 22:00:07 UTC"] == module(
        browser, "format.js", script, moments, "utc"
    )
    assert ["30 Jun 15:30:07 GMT+5:30", f"1 Jul {year + 9} 03:30:07 GMT+5:30"] == module(
        browser, "format.js", script, moments, "local"
    )
    browser.run("localStorage.clear()")


def test_chosen_zone_applies_to_all_times_and_is_remembered(browser: Browser, url: str) -> None:
    browser.set_timezone("Asia/Kolkata")
    browser.open(f"{url}instances")
    browser.wait_for("UTC", "#updated")
    browser.run(
        "const zone = document.querySelector('#zone'); zone.value = 'local'; zone.dispatchEvent(new Event('change'))"
    )
    browser.wait_for("GMT+5:30", "#updated")
    browser.open(f"{url}overrides")
    browser.wait_for("GMT+5:30", "#updated")
    browser.run("localStorage.clear()")


def test_client_keeps_its_colour_while_ranks_change(browser: Browser, url: str) -> None:
    browser.open(url)
    names = ["batch-jobs", "partner-bank", "web-shop", "mobile-app", "report-export"]
    script = "return given[1].map((ids) => Object.fromEntries(it.coloursOf(ids)))"
    first, second, without_one = module(browser, "palette.js", script, names, names[::-1], names[2:])

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
    assert ["no change", "limit 5", "no change"] == module(browser, "dom.js", script)


def test_axis_names_the_day_where_it_changes(browser: Browser, url: str) -> None:
    browser.open(url)
    midnight = 1_700_006_400  # 15 November 2023 in UTC
    script = "it.chooseZone('utc'); return it.axisLabels(given[1][0], given[1][1])"
    hours = [midnight - 7200, midnight - 3600, midnight, midnight + 3600]

    assert ["22:00\n14 Nov UTC", "23:00\n", "00:00\n15 Nov", "01:00\n"] == module(
        browser, "format.js", script, hours, 3600
    )
    days = [midnight, midnight + 86_400]
    assert ["15 Nov\nUTC", "16 Nov\n"] == module(browser, "format.js", script, days, 86_400)


def test_every_error_of_a_form_is_at_its_field(browser: Browser, url: str) -> None:
    browser.open(f"{url}overrides?id=batch-jobs")
    wait_until(lambda: value_of(browser, "#limit-client-1"), "the present limit is filled in")
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
    wait_until(lambda: value_of(browser, "#limit-client-1"), "the present limit is filled in")
    browser.click("#tiers .tier button")

    browser.wait_for("Drops client-burst: 40/5s.", "#tiers")
    browser.click("#tiers .tier button")
    browser.wait_for("No limit of this kind is left.", "#tiers")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_have_contrast(browser: Browser, url: str, is_dark: bool) -> None:
    browser.resize(DESKTOP, is_dark=is_dark)
    browser.open(f"{url}instances")
    browser.wait_for("dry-run", "#state")

    assert is_dark == (luminance(colour_of(browser, "--paper")) < 0.2)
    texts = [
        ("--text", "--card"),
        ("--text", "--paper"),
        ("--dim", "--card"),
        ("--dim", "--paper"),
        ("--dim", "--sunken"),
    ]
    texts += [
        ("--accent", "--card"),
        ("--accent-text", "--accent"),
        ("--accent", "--accent-soft"),
        ("--card", "--limit"),
        ("--card", "--bad"),
        ("--bad", "--card"),
        ("--warn", "--card"),
    ]
    texts += [(f"--{name}", f"--{name}-soft") for name in ("good", "warn", "bad")]
    lines = [(f"--series-{name}", "--card") for name in (*range(1, 8), "rest")]
    lines += [("--bar", "--card"), ("--bar-warn", "--sunken"), ("--bar-bad", "--sunken"), ("--line-strong", "--card")]
    found = {pair: contrast(*(colour_of(browser, name) for name in pair)) for pair in [*texts, *lines]}
    assert {} == {pair: ratio for pair, ratio in found.items() if ratio < (4.5 if pair in texts else 3.0)}


def luminance(colour: list[int]) -> float:
    """Return the relative luminance of WCAG."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (each / 255 for each in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    """Return the contrast ratio of WCAG."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_client_name_with_markup_is_shown_as_text(browser: Browser, deployment: Deployment, url: str) -> None:
    config = {
        "mode": "enforce",
        "limits": {"user": [{"limit": 20, "window": "5s", "name": "user-burst"}]},
        "store": {"uri": uri_of(deployment), "collection": deployment.counters.name},
    }
    name = "<img src=x onerror=alert(1)>\\u{202e}\\u{1b}"
    browser.open(url)
    with closing(Limiter(load_config(config), clock=time.time)) as limiter:

        def is_listed() -> bool:
            for _ in range(20):
                limiter.check(HOSTILE, HOSTILE)  # again and again: within seconds it is not near its limit any more
            limiter.sync()
            refresh(browser)
            return name in browser.text("#top")

        wait_until(is_listed, "the client is listed")
    browser.click("#top a[href*='onerror']")
    browser.wait_for(name, "#name")

    assert [] == browser.all("img[src=x]")


def uri_of(deployment: Deployment) -> str:
    """Return the URI of the servers' database."""
    host, port = deployment.counters.database.client.address or ("", 0)
    return f"mongodb://{host}:{port}/{deployment.counters.database.name}"


@pytest.fixture
def app_without_mongodb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    """An application with an unreachable MongoDB."""
    monkeypatch.delenv("OAUTH_RATELIMIT_MODE", raising=False)
    store: dict[str, Any] = {"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"}
    with protected_app(OAUTH_RATELIMIT_CONFIG={"store": store}) as app:
        app.register_blueprint(admin_blueprint(lambda: "ann"))
        yield app


@pytest.mark.usefixtures("quick_reconnect")
def test_every_page_says_that_mongodb_is_unreachable_and_what_goes_on(
    browser: Browser, app_without_mongodb: Flask
) -> None:
    with serving(app_without_mongodb) as url:
        for page in ("", "client?id=app", "what-if", "overrides", "instances"):
            browser.open(f"{url}/ratelimit/{page}")
            browser.wait_for("MongoDB is unreachable", "#problem")
            browser.wait_for("Limits go on being enforced from memory", "#problem")
            browser.wait_for("unreachable since", "#state")
            assert browser.all("body.is-stale")
            assert "Error" not in browser.text("#problem")
        browser.run(
            "window.said = 0; new MutationObserver((all) => { window.said += all.length; })"
            ".observe(document.querySelector('#problem'), { childList: true, subtree: true, characterData: true })"
        )
        for _ in range(3):
            refresh(browser)
            browser.run("return fetch(document.body.dataset.api + 'verdict').then((answer) => answer.json())")
        assert 0 == browser.run("return window.said"), "a screen reader announces it once"
        browser.open("about:blank")  # so that no request is under way when the server goes


# Tests that need statistics come last, because instances write them every ten seconds.


def cells(browser: Browser, table: str) -> dict[str, dict[str, str]]:
    """Return the texts of a table by the first cell of the row and the title of the column."""
    script = """
    return Object.fromEntries([...document.querySelectorAll(arguments[0] + " tbody tr")].map((row) => [
      row.cells[0].innerText.trim(),
      Object.fromEntries([...row.cells].map((cell) => [cell.dataset.title, cell.innerText.trim()])),
    ]));
    """
    return dict(browser.run(script, table))


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
        rows = cells(browser, "#clients").items()
        return {name: (row.get("requests"), row.get("denied")) for name, row in rows if name in expected}

    wait_until(lambda: counted() == expected, "all are counted")
    row = cells(browser, "#clients")["batch-jobs"]
    assert int(row["would be denied"]) > 0, "in a dry run some would be denied"
    assert int(row["over a limit"]) == int(row["denied"]) + int(row["would be denied"])
    browser.wait_for("Worst: ", "#verdict-text", 120.0)
    worst = browser.text("#verdict-text a")
    assert int(cells(browser, "#clients")[worst]["over a limit"]) > 0
    swatch = browser.one("#clients tr[data-key='batch-jobs'] .swatch").get_attribute("class") or ""
    series = f"--series-{swatch.rpartition(' s')[2]}"
    for chart in ("#allowed", "#denied"):
        # Of one minute there is a point, and no line before the next one.
        wait_until(lambda chart=chart: drawn_pixels(browser, chart, series) > 20, f"{chart} has a line", 120.0)  # type: ignore[misc]
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
    wait_until(lambda: list(cells(browser, "#clients")) == sorted(cells(browser, "#clients")), "rows are in order")
    browser.type("#filter", "BANK")
    wait_until(lambda: list(cells(browser, "#clients")) == ["partner-bank"], "one client is left")
    browser.wait_for("1 to 1 of 1 client", "#range")


def test_cursors_of_both_charts_move_together(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#allowed .legend")
    browser.run("document.querySelector('#allowed .plot').focus()")
    browser.press("\ue012")  # arrow to the left
    wait_until(lambda: browser.text("#allowed .tip strong"), "the values of a moment are shown")
    assert browser.text("#allowed .tip strong") == browser.text("#denied .tip strong")


def test_everything_is_reached_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.tab_to("input[name=span]")
    browser.press("\ue014")  # arrow to the right
    browser.tab_to("#allowed .plot")
    browser.press("\ue012")  # arrow to the left
    wait_until(lambda: browser.text("#allowed .tip"), "the values of a moment are shown")
    browser.tab_to("#clients td button")
    browser.press(" ")
    browser.wait_for("show all", "#clients")
    wait_until(lambda: browser.run("return document.activeElement.textContent") == "show all", "it keeps the focus")

    browser.open(f"{url}overrides?id=batch-jobs&kind=trusted")
    browser.wait_for("New override")
    browser.tab_to("#reason")
    browser.press("ticket 4711\n")
    browser.wait_for("Preview", "#preview")
    browser.tab_to("#cancel")
    browser.press("\n")
    wait_until(lambda: browser.run("return document.activeElement.id") == "show-preview", "the focus is back")


def test_limit_is_moved_by_keys_and_pointer_and_becomes_an_override(
    browser: Browser, clients: Clients, url: str
) -> None:
    browser.open(f"{url}what-if?id=batch-jobs")
    browser.wait_for("client-burst: 40/5s", "#current")
    browser.wait_for("With 100,000 per hour for batch-jobs", "#result-title")
    assert "100000" == value_of(browser, "#limit")
    browser.run("arguments[0].focus()", browser.one(".limit-line"))
    browser.press("\ue011")  # Home: a limit of one
    browser.wait_for("With 1 per hour for batch-jobs", "#result-title")
    assert "1 per hour" in (browser.one(".limit-line").get_attribute("aria-valuetext") or "")
    browser.drag(".limit-line", down_px=-80)
    wait_until(lambda: int(value_of(browser, "#limit") or 0) > 1, "the line has moved")
    limit = value_of(browser, "#limit")
    browser.wait_for(f"With {int(limit or 0):,} per hour", "#result-title")
    browser.click("#actions a")
    wait_until(
        lambda: f"client-hourly: {limit}/hour" == value_of(browser, "#limit-client-2"),
        "the limit is proposed as a tier",
    )
    assert "client-burst: 40/5s" == value_of(browser, "#limit-client-1"), "other tiers stay"


def test_result_says_which_limit_it_belongs_to(browser: Browser, url: str) -> None:
    browser.open(f"{url}what-if")
    browser.wait_for("With 100,000 per hour", "#result-title")
    browser.fill("#limit", "12x")
    browser.wait_for("The result below is that of 100,000.", "#form-problem")
    assert browser.all("#result.is-pending")
    assert "Name a client above" in browser.text("#actions"), "everybody is never the default"


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_pages_follow_wcag(browser: Browser, url: str, is_dark: bool) -> None:
    browser.resize(DESKTOP, is_dark=is_dark)
    for page in PAGES:
        browser.open(url + page)
        browser.wait_for("reachable", "#state")
        browser.wait_for(*("batch-jobs", "#clients") if not page else ("", "main"))
        browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
        assert [] == violations(browser), page


@pytest.mark.parametrize("size", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
def test_phone_needs_no_sideways_scrolling(browser: Browser, url: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    for page in PAGES:
        browser.open(url + page)
        browser.wait_for("dry-run", "#state")
        browser.wait_for(*("batch-jobs", "#clients") if not page else ("", "main"))
        widths = browser.run(
            "return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('.scroll')]"
            ".filter((each) => each.offsetParent).map((each) => each.scrollWidth - each.clientWidth)]"
        )
        assert [size[0], *[0] * (len(widths) - 1)] == widths, page
