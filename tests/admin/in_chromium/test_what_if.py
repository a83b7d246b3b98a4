"""Effect of another limit, with a line to drag."""

import pytest

from tests.admin.browser import Browser
from tests.admin.in_chromium.conftest import Clients
from tests.support.helpers import wait_until

pytestmark = pytest.mark.chromium


def test_limit_is_moved_by_keys_and_pointer_and_becomes_an_override(
    browser: Browser, clients: Clients, url: str
) -> None:
    browser.open(f"{url}what-if?id=batch-jobs")
    browser.wait_for("client-burst: 40/5s", "#current")
    browser.wait_for("With 100,000 per hour for batch-jobs", "#result-title")
    assert "100000" == browser.value("#limit")
    browser.run("arguments[0].focus()", browser.one(".limit-line"))
    browser.press("\ue011")  # Home: a limit of one
    browser.wait_for("With 1 per hour for batch-jobs", "#result-title")
    assert "1 per hour" in (browser.one(".limit-line").get_attribute("aria-valuetext") or "")
    browser.drag(".limit-line", down_px=-80)
    wait_until(lambda: int(browser.value("#limit") or 0) > 1, "the line has moved")
    limit = browser.value("#limit")
    browser.wait_for(f"With {int(limit or 0):,} per hour", "#result-title")
    browser.click("#actions a")
    wait_until(
        lambda: f"client-hourly: {limit}/hour" == browser.value("#limit-client-2"),
        "the limit is proposed as a tier",
    )
    assert "client-burst: 40/5s" == browser.value("#limit-client-1"), "other tiers stay"


def test_result_says_which_limit_it_belongs_to(browser: Browser, url: str) -> None:
    browser.open(f"{url}what-if")
    browser.wait_for("With 100,000 per hour", "#result-title")
    browser.fill("#limit", "12x")
    browser.wait_for("The result below is that of", "#limit-problem")
    assert browser.all("#result.is-pending")
    assert "100000" == browser.one(".limit-line").get_attribute("aria-valuenow"), "the line is at that limit, too"
    assert "Name a client above" in browser.text("#actions"), "everybody is never the default"
