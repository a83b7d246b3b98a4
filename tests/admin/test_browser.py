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
    browser.open(url)
    browser.wait_for("batch-jobs", "#top")
    browser.run("document.querySelector('#top a').focus()")

    def is_first() -> bool:
        for _ in range(10):
            clients.ask(PARTNER_BANK, server=1)
        refresh(browser)
        return "partner-bank" in browser.text("#top tbody tr:first-child")

    wait_until(is_first, "the busiest client is the first")
    assert browser.run("return document.activeElement.matches('#top a')")


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
    browser.type("#limit-client", "{limit: 1, window: 1h, mode: enforce}")
    browser.type("#reason", "ticket 4711")
    browser.click("#show-preview")
    browser.wait_for("client: 1/3600s enforce", "#preview-changes")
    assert 200 == clients.ask(BATCH_JOBS, server=1)
    browser.click("#apply")
    browser.wait_for("Applied.", "#done")
    wait_until(lambda: clients.ask(BATCH_JOBS, server=1) == 429, "the other server denies")

    browser.wait_for("demo operator", "#active tr")
    browser.click("#active button")
    browser.type("#remove-reason", "done")
    browser.click("#remove-confirm")
    browser.wait_for("Removed.", "#done")
    wait_until(lambda: clients.ask(BATCH_JOBS, server=1) == 200, "the other server admits again")


def test_unknown_client_gets_a_suggestion(browser: Browser, url: str) -> None:
    hint = "No counters, statistics or configuration for 'btach-jobs'; did you mean 'batch-jobs'?"
    browser.open(f"{url}client?id=btach-jobs")
    browser.wait_for(hint, "#hint")
    assert "btach-jobs" in browser.text("h1")
    browser.open(f"{url}overrides?id=btach-jobs&kind=trusted")
    browser.type("#reason", "x")
    browser.click("#show-preview")
    browser.wait_for(hint, "#preview-notes")


def test_time_in_another_year_has_its_year(browser: Browser, url: str) -> None:
    browser.open(url)
    script = "return import(arguments[0]).then((format) => arguments[1].map(format.dateTime))"
    year = time.gmtime().tm_year
    moments = [f"{year}-06-30T10:00:00Z", f"{year + 9}-06-30T10:00:00Z"]
    address = browser.run("return document.querySelector('script[type=module]').src")
    now, then = browser.run(script, f"{address.rpartition('/')[0]}/format.js", moments)

    assert str(year + 9) in then
    assert str(year) not in now


def test_invalid_limit_is_explained_in_the_form(browser: Browser, url: str) -> None:
    browser.open(f"{url}overrides?id=app")
    browser.type("#limit-user", "lots")
    browser.type("#reason", "x")
    browser.click("#show-preview")

    browser.wait_for("limits.user[0]", "#form-problem")
    complaints = wait_until(browser.console, "the console has an error")
    assert ["Failed to load resource"] == [text[text.index("Failed") :][:23] for text in complaints]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_have_contrast(browser: Browser, url: str, is_dark: bool) -> None:
    browser.resize(DESKTOP, is_dark=is_dark)
    browser.open(f"{url}instances")
    browser.wait_for("dry-run", ".head")

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
        ("--limit", "--card"),
    ]
    texts += [(f"--{name}", f"--{name}-soft") for name in ("good", "warn", "bad")]
    lines = [(f"--series-{number}", "--card") for number in range(1, 7)]
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
def test_every_page_says_that_mongodb_is_unreachable(browser: Browser, app_without_mongodb: Flask) -> None:
    with serving(app_without_mongodb) as url:
        for page in ("", "client?id=app", "overrides", "instances"):
            browser.open(f"{url}/ratelimit/{page}")
            browser.wait_for("MongoDB is unreachable", "#problem")
        browser.open("about:blank")  # so that no request is under way when the server goes


# Tests that need statistics come last, because instances write them every ten seconds.


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

    def rows() -> dict[str, list[str]]:
        script = "return [...document.querySelectorAll('#clients tbody tr')].map((row) => row.innerText)"
        return {words[0]: words for words in map(str.split, browser.run(script)) if words}

    wait_until(lambda: {name: (*row[2:3], *row[4:5]) for name, row in rows().items()} == expected, "all are counted")
    assert int(rows()["batch-jobs"][5]) > 0, "in a dry run some would be denied"
    for chart in ("#allowed", "#denied"):
        # Of one minute there is a point, and no line before the next one.
        wait_until(lambda chart=chart: drawn_pixels(browser, chart, "--series-1") > 20, f"{chart} has a line", 120.0)  # type: ignore[misc]
    assert "batch-jobs" in (browser.one("#allowed").get_attribute("aria-label") or "")


def test_everything_is_reached_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.tab_to("input[name=span]")
    browser.press("\ue014")  # arrow to the right
    browser.tab_to("#allowed")
    browser.press("\ue012")  # arrow to the left
    wait_until(lambda: browser.text("#allowed .tip"), "the values of a moment are shown")
    browser.tab_to("#clients button")
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


def test_slider_shows_affected_clients_and_creates_an_override(browser: Browser, clients: Clients, url: str) -> None:
    browser.open(url)
    browser.wait_for("batch-jobs", "#clients")
    browser.open(f"{url}what-if")
    browser.wait_for("batch-jobs", "#bearers")
    browser.wait_for("nobody", "#tiles")
    browser.run("arguments[0].focus()", browser.one("#slider"))
    browser.press("\ue011")  # Home: a limit of one
    wait_until(lambda: "nobody" not in browser.text("#tiles"), "some would have been denied")
    browser.click("#actions a")
    browser.wait_for("New override")

    assert "{limit: 1, window: 1m}" == browser.one("#limit-client").get_attribute("value")


@pytest.mark.parametrize("size", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
def test_phone_needs_no_sideways_scrolling(browser: Browser, url: str, size: tuple[int, int]) -> None:
    browser.resize(size)
    for page in PAGES:
        browser.open(url + page)
        browser.wait_for("dry-run", ".head")
        browser.wait_for(*("batch-jobs", "#clients") if not page else ("", "main"))
        widths = browser.run(
            "return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('.scroll')]"
            ".filter((each) => each.offsetParent).map((each) => each.scrollWidth - each.clientWidth)]"
        )
        assert [size[0], *[0] * (len(widths) - 1)] == widths, page
